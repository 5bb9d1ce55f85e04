"""Flags that would remove a cause of float32; each is tried on the model before it is suggested."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.analysis.unit_building import OPAQUE
from amp_rewrite.analysis.units import Unit, UnitGraph
from amp_rewrite.colouring import classification
from amp_rewrite.colouring import pins as naming
from amp_rewrite.colouring.match_counts import Matched
from amp_rewrite.colouring.painting import Painting, Rule
from amp_rewrite.costs.flop_count import Flops
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.explaining.causes import OptionChange, RootCause, Suggestion
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import DECLARED
from amp_rewrite.policy import node_patterns
from amp_rewrite.policy.entries import authority_in_words
from amp_rewrite.policy.evidence import OF_FINDINGS, Authority, Reason, in_words
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.rewriting.decisions import Decision
from amp_rewrite.rewriting.report import extents

PINNED = 3
"""The number of nodes up to which pins by name are tried first; beyond it, the operator's flag is shorter."""

MOST_PINNED = 10
"""The most nodes that are ever pinned by name."""

TRIES = 24
"""The most times that a model is decided anew to try flags, for all causes together."""

UNITS = 1_000_000
"""The most units decided anew in all tries, so that large models get fewer tries."""

LEAST = 3
"""The least number of tries, however large the model."""


@dataclass(frozen=True, slots=True)
class AnalysedModel:
    """An analysed model with its decisions, and `again`, which decides it anew with other options.

    `again` raises AmpRewriteError for options that the command line would refuse.
    """

    graph: UnitGraph
    painting: Painting
    options: Options
    again: Callable[[Options], Painting]
    flops: Flops


def tried(root_causes: Iterable[RootCause], subject: AnalysedModel) -> Iterator[RootCause]:
    """Yield the causes, each with the mildest flags that bring more nodes into half, its own among them.

    Earlier causes have priority: there are at most TRIES tries in all.
    """
    trials = _Trials(subject)
    for cause in root_causes:
        yield replace(cause, suggestion=trials.remedy(cause))


def with_effects(
    matched: Iterable[Matched], graph: UnitGraph, painting: Painting, half: Half
) -> Iterator[Matched]:
    """Yield the matches; for operators that were to be half but have no half node, with the reason and a
    remedy.
    """
    for one in matched:
        units = [u for u in graph.units if one.by in _TO_HALF and schema.written(*_of(u)) == one.pattern]
        if not units or any(painting.is_half(unit.index) for unit in units):
            yield one
            continue
        index = units[0].index
        entry = painting.entries[index]
        pin = node_patterns.pinned_as(units[0].node)
        would = _beyond_schema(index, graph, half) or "no flag changes what a schema does not say"
        if half.tensor in units[0].allowed and Authority.PIN.outranks(entry.authority) and pin:
            would = f"--force-half {shlex.quote(pin)} would"
        yield replace(
            one, why=f"{in_words(entry.evidence)} ({authority_in_words(entry.evidence, entry.kind)}); {would}"
        )


_TO_HALF = (Kind.ALLOW.value, Kind.INFER.value, Kind.CLEAR.value, naming.OPERATORS)
"""The lists whose operators are half, or may be, and the flag for such operators alone."""


def _of(unit: Unit) -> tuple[str, str]:
    return unit.node.domain, classification.listed_as(unit.node)


def _beyond_schema(index: int, graph: UnitGraph, half: Half) -> str:
    """Return advice on the opset whose schema lets this float32 unit be half, or on the declaration of a
    custom operator's types; empty where neither helps.
    """
    unit, imported = graph.units[index], graph.root.opset_imports
    domain, name = unit.node.domain, unit.node.op_type
    is_other = unit.var is DECLARED and unit.allowed and half.tensor not in unit.allowed
    if (is_other or unit.var is OPAQUE) and not schema.is_known(domain, name):
        operator = shlex.quote(f"{schema.written(domain, name)}={half.name}")
        return f"if its kernels take {half.name}, --op-type {operator} says so"
    opset = imported.get("", imported.get("ai.onnx"))
    if domain or opset is None:
        return ""
    newer = range(opset + 1, NEWEST + 1)
    first = next((version for version in newer if half.tensor in _allowed(unit, version)), None)
    diagnosis = f"nothing at opset {opset}: the schema has {half.name} from {first} on"
    return "" if first is None else f"{diagnosis}, which --opset {first} sets"


NEWEST = 24
"""The newest opset to consider: no operator gains a half type in a newer one."""


def _allowed(unit: Unit, version: int) -> frozenset[str]:
    """Return the types that the schema of an opset allows at the first port of a unit, by port since another
    opset may fix its type, without a variable of this name.
    """
    node = unit.node
    groups = schema.layout(node.domain, node.op_type, version, len(node.inputs), len(node.outputs)) or ()
    if unit.defs and unit.defs[0] in node.outputs:
        at = node.outputs.index(unit.defs[0])
        return next((group.allowed for group in groups if at in group.outputs), frozenset())
    at = unit.uses[0].port if unit.uses else -1
    return next((group.allowed for group in groups if at in group.inputs), frozenset())


def untried(root_causes: Iterable[RootCause]) -> Iterator[RootCause]:
    """Yield the causes with the remedies that need no trial, for lack of a model to try flags on."""
    return (replace(cause, suggestion=Suggestion(why=_without_trying(cause))) for cause in root_causes)


def _without_trying(cause: RootCause) -> str:
    """Return the explanation why no flag would help, where the reason implies it; else an empty string."""
    root = cause.first
    if root.by_hand:
        return 'set "precision" to "half" in the plan'
    if root.rule in _PREDICTED:
        return _PREDICTED[root.rule]
    if root.evidence.authority is Authority.SCHEMA:
        alone = root.kind is not Kind.DENY or len(cause.root_places) == len(cause.affected)
        return f"nothing at this opset: {_later(root)}" if alone else ""  # those downstream might
    if root.rule is not Rule.LEFT or root.evidence.authority in OF_FINDINGS | _BY_USER:
        return ""
    if root.operator == "Cast":
        return "nothing to gain: a Cast has the type of its neighbours"
    return "nothing to gain: it takes the type of its neighbours" if root.kind is Kind.CLEAR else ""


def _later(root: Decision) -> str:
    """Return the opset from which on the schema has half, for one that had none; else that float32 stays."""
    half = halves.BY_NAME.get(root.evidence.half)
    first = None
    if half is not None and root.evidence.reason is Reason.NO_HALF_TYPE:
        first = schema.first_with(*schema.parse(root.operator), root.variable, half.tensor)
    return f"the schema has {half.name} from {first} on" if half and first else "it can only be float32 here"


_PREDICTED = {
    Rule.PRUNE: "nothing to gain, as predicted",
    Rule.GATE: "leave out --gate, or tune with --prefer flops",
}
_BY_USER = frozenset((Authority.PIN, Authority.OVERRIDE))


@dataclass(frozen=True, slots=True)
class _Trial:
    """Options, the changes that ask for them, and the changes that are to be left out."""

    options: Options
    adds: tuple[OptionChange, ...] = ()
    drops: tuple[OptionChange, ...] = ()

    def __str__(self) -> str:
        additions, dropped = ([change.flag for change in changes] for changes in (self.adds, self.drops))
        return " ".join(additions) or f"without {' '.join(dropped)}"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a trial: the nodes of which more is half, how many more these are than those of which
    less is, and their share of the FLOPs.
    """

    risen: frozenset[ir.Node]
    frees: int
    flop_share: float | None


class _Trials:
    """Trials of flags on one model, up to a limit; outcomes are cached."""

    def __init__(self, subject: AnalysedModel) -> None:
        self._subject = subject
        self._before = extents(subject.graph, subject.painting)
        self._names = naming.pinnable(subject.graph)
        self._left = min(TRIES, max(LEAST, UNITS // max(len(subject.graph.units), 1)))
        self._known: dict[str, _Outcome | None] = {}

    def remedy(self, cause: RootCause, targets: Collection[ir.Node] = ()) -> Suggestion:
        """Return the suggestion for a cause (for one of the target nodes, if any), or why there is none."""
        newer = ""
        if cause.first.evidence.authority is Authority.SCHEMA:
            newer = _beyond_schema(cause.roots[0], self._subject.graph, self._subject.options.half)
        if hopeless := newer or _without_trying(cause):
            return Suggestion(why=hopeless)
        nodes = set(targets) or {self._subject.graph.units[unit].node for unit in cause.affected}
        vain: dict[str, None] = {}
        for trial in self._of(cause):
            if not self._left and str(trial) not in self._known:
                return Suggestion(why=_exhausted(vain))
            outcome = self._outcome(trial)
            if outcome is not None and outcome.frees > 0 and not nodes.isdisjoint(outcome.risen):
                return Suggestion(trial.adds, outcome.frees, outcome.flop_share, trial.drops)
            vain |= {} if outcome is None else {str(trial): None}
        return Suggestion(why=_in_vain(vain))

    def _outcome(self, trial: _Trial) -> _Outcome | None:
        """Return the outcome of a trial; None where the flags are refused."""
        key = str(trial)
        if key not in self._known:
            self._left -= 1
            self._known[key] = self._try(trial.options)
        return self._known[key]

    def _try(self, options: Options) -> _Outcome | None:
        subject = self._subject
        try:
            after = extents(subject.graph, subject.again(options))
        except AmpRewriteError:
            return None
        risen = frozenset(node for node, before in self._before.items() if after[node] > before)
        fallen = [node for node, before in self._before.items() if after[node] < before]
        total = _sum(subject.flops, subject.flops)
        flops = _sum(subject.flops, risen) - _sum(subject.flops, fallen)
        is_known = flops or all(subject.flops.get(node, 0) is not None for node in risen)
        return _Outcome(risen, len(risen) - len(fallen), flops / total if total and is_known else None)

    def _of(self, cause: RootCause) -> Iterator[_Trial]:
        """Yield trials, mildest first: the user's change dropped, INFER for denied operators, pins, ALLOW."""
        evidence, kind = cause.first.evidence, cause.first.kind
        units = [self._subject.graph.units[unit] for unit in cause.roots]
        nodes = list(dict.fromkeys(unit.node for unit in units))
        listed = dict.fromkeys(schema.written(*_of(unit)) for unit in units)
        operators = [operator for operator in listed if operator != "Cast"]
        is_found = evidence.authority in OF_FINDINGS
        if evidence.authority is Authority.PIN:
            yield from self._unpinned(evidence.subject)
        if evidence.authority is Authority.OVERRIDE and operators:
            yield from self._put_back(operators, kind)
        if kind is Kind.DENY and not is_found and self._subject.options.level is Level.DEFAULT:
            yield from self._of_operators(operators, Kind.INFER)
        if is_found and len(nodes) <= PINNED:
            yield from self._of_nodes(nodes)
        yield from self._of_operators(operators, Kind.ALLOW)
        yield from self._of_nodes(nodes)

    def _unpinned(self, pattern: str) -> Iterator[_Trial]:
        """Yield the trial without the pin of this pattern, or without the restriction to what pins name."""
        options = self._subject.options
        patterns = tuple(other for other in options.pins.keep_full if other != pattern)
        if patterns != options.pins.keep_full:
            pins = replace(options.pins, keep_full=patterns)
            yield _Trial(replace(options, pins=pins), drops=(OptionChange("keep_full", pattern),))
        if pattern == options.pins.restriction:
            by_flag = (("only", options.pins.only), ("only_op", options.pins.only_op))
            drops = tuple(OptionChange(name, each) for name, patterns in by_flag for each in patterns)
            pins = replace(options.pins, only=(), only_op=())
            yield _Trial(replace(options, pins=pins), drops=drops)

    def _put_back(self, operators: Sequence[str], kind: Kind) -> Iterator[_Trial]:
        """Yield the trial without the override of these operators."""
        options = self._subject.options
        lists = options.operator_lists()
        plain = (operator.removesuffix("(x,x)") for operator in operators)
        overrides = [o for o in dict.fromkeys((*operators, *plain)) if lists.moved_to(o) is kind]
        if overrides:
            drops = tuple(OptionChange(kind.value, operator) for operator in overrides)
            yield _Trial(replace(options, lists=lists.put_back(overrides)), drops=drops)

    def _of_nodes(self, nodes: Sequence[ir.Node]) -> Iterator[_Trial]:
        """Yield the trial with a pin for each node; none where there are too many, or one cannot be named."""
        names = list(dict.fromkeys(map(node_patterns.pinned_as, nodes)))
        if len(names) > MOST_PINNED or not all(names):
            return
        options = self._subject.options
        patterns = tuple(node_patterns.pattern_for(name, self._names) for name in names)
        pins = replace(options.pins, force_half=(*options.pins.force_half, *patterns))
        yield _Trial(replace(options, pins=pins), tuple(OptionChange("force_half", p) for p in patterns))

    def _of_operators(self, operators: Sequence[str], kind: Kind) -> Iterator[_Trial]:
        """Yield the trial with an override for each operator, which covers all of its nodes."""
        if not operators:  # no list moves a Cast
            return
        before = self._subject.options.operator_lists()
        try:
            lists = before.override(kind, operators)
        except AmpRewriteError:  # an operator that no flag can name
            return
        overrides = ((before.moved_to(operator), operator) for operator in operators)
        drops = tuple(
            OptionChange(old.value, operator) for old, operator in overrides if old not in (None, kind)
        )
        adds = tuple(OptionChange(kind.value, operator) for operator in operators)
        yield _Trial(replace(self._subject.options, lists=lists), adds, drops)


def _sum(flops: Flops, nodes: Iterable[ir.Node]) -> int:
    return sum(flops.get(node) or 0 for node in nodes)


def _in_vain(attempts: Collection[str]) -> str:
    """Return the sentence for the lack of a flag that helps."""
    return f"no flag frees any (tried: {'; '.join(attempts)})" if attempts else "no flag can name it"


def _exhausted(vain: Collection[str]) -> str:
    """Return the sentence for a cause when no tries are left."""
    enough = "enough flags were tried for what stands above"
    return f"{_in_vain(vain)}; {enough}" if vain else f"no flag was tried: {enough}"


# Flags that would change the decision on one node; each is tried before it is suggested.


@dataclass(frozen=True, slots=True)
class NodeRemedy:
    """Changes of the colour of a unit.

    `cause` is the reason for its float32, with a suggestion that frees it among others; None for a unit that
    is half, or that cannot be. `pin` changes the colour of its node alone; None where no pin does.
    """

    cause: RootCause | None
    pin: OptionChange | None


def of_units(
    units: Iterable[int], causes: Sequence[RootCause], subject: AnalysedModel
) -> Iterator[NodeRemedy]:
    """Yield the remedy that changes the colour of each unit; flags are tried once per node."""
    units_of, before = subject.graph.units, subject.painting

    @functools.cache
    def freeing(node: ir.Node) -> RootCause | None:
        holding = next((cause for cause in causes if node in cause.nodes), None)
        return holding and replace(holding, suggestion=_Trials(subject).remedy(holding, {node}))

    @functools.cache
    def pinned(node: ir.Node, *, keep: bool) -> tuple[OptionChange, Painting] | None:
        return _pinned(node, "keep_full" if keep else "force_half", subject)

    for unit in units:
        node, is_half = units_of[unit].node, before.is_half(unit)
        change = pinned(node, keep=is_half)
        changed = change is not None and change[1].is_half(unit) is not is_half
        yield NodeRemedy(None if is_half else freeing(node), change[0] if change and changed else None)


def _pinned(node: ir.Node, option: str, subject: AnalysedModel) -> tuple[OptionChange, Painting] | None:
    """Return a pin of the node, and the painting with it; None where it has no name, or is refused."""
    name = node_patterns.pinned_as(node)
    if not name:
        return None
    pattern, pins = node_patterns.pattern_for(name, naming.pinnable(subject.graph)), subject.options.pins
    pins_with_pattern = replace(pins, **{option: (*getattr(pins, option), pattern)})
    try:
        return OptionChange(option, pattern), subject.again(replace(subject.options, pins=pins_with_pattern))
    except AmpRewriteError:  # no schema allows it, or another pin says otherwise
        return None
