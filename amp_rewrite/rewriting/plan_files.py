"""Plans: the decision on every unit and its reason, which can be replayed on the same model.

A file has a plan as JSON; the metadata of a result (`annotations`) have the same, compressed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.analysis.units import Unit, UnitGraph
from amp_rewrite.colouring.painting import Paint, Painting
from amp_rewrite.errors import OptionError, PlanError
from amp_rewrite.files import reading
from amp_rewrite.model.traversal import graphs
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy import targets
from amp_rewrite.policy.entries import Entry, Operator
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import Form, IOTypes, Options
from amp_rewrite.rewriting import decisions, records
from amp_rewrite.rewriting.decisions import CastSite, Decision, Decisions
from amp_rewrite.rewriting.plan import Rescaled

FORMAT = 5
"""The version of the format; other versions are refused."""


def is_plan(path: Path) -> bool:
    """Return whether a file is JSON, as a plan is and no model, by its suffix or its first character."""
    try:
        with reading.open_regular(path) as file:
            return path.suffix == ".json" or file.read(_SHORT).lstrip(_BLANK).startswith(b"{")
    except OSError:
        return path.suffix == ".json"


_SHORT, _BLANK = 64, b"\xef\xbb\xbf \t\r\n"
"""Bytes that are read, and those before the first character: of a byte order mark, and white space."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run that decide with its plan: those of the form (policy.options), and of types."""

    half: str
    target: str
    io: IOTypes
    keep_io: tuple[str, ...]
    keep_functions: bool
    fold: bool
    raise_opset: bool
    idioms: bool
    kept_nodes: tuple[str, ...]
    kept_operators: tuple[Operator, ...]
    opset: int | None
    keep_overridable: bool
    storage_only: bool
    op_types: dict[str, str]

    @property
    def half_type(self) -> Half:
        """The half type; OptionError for one that there is not."""
        return arguments.named("half", self.half, Half, halves.BY_NAME)

    @property
    def form(self) -> Form:
        """The form; OptionError for a half type or a target that there is not."""
        own: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(Form)}
        own |= {"half": self.half_type, "target": targets.named(self.target)}
        return Form(**own)


def options_of(options: Options) -> PlanOptions:
    """Return the options of a run that decide with its plan."""
    names, form = PlanOptions.__struct_fields__, options.form
    own: dict[str, Any] = {name: getattr(form, name, getattr(options, name, None)) for name in names}
    own |= {"half": options.half.name, "target": options.target.name, "op_types": dict(options.op_types)}
    return PlanOptions(**own)


class SavedPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The decisions of a run on a model, with the options behind them.

    `model` is the fingerprint of the model, empty in the metadata of a result. The precision of a decision
    may be edited. `casts` follow from the decisions, for the reader, and `assumptions` are those behind the
    FLOPs of nodes. `where` is the file that errors name.
    """

    format: int
    model: str = ""
    options: PlanOptions
    decisions: tuple[Decision, ...]
    casts: tuple[CastSite, ...] = ()
    rescaled: Rescaled | None = None
    assumptions: tuple[str, ...] = ()
    where: str = "the plan"

    @property
    def form(self) -> Form:
        """The form in which the model was analysed."""
        return self.options.form

    @property
    def half(self) -> Half:
        """The half type."""
        return self.options.half_type

    def over(self, options: Options) -> Options:
        """Return the options with all that the plan decides taken from it."""
        own = msgspec.structs.asdict(self.options)
        for name in ("raise_opset", "idioms", "kept_nodes", "kept_operators"):
            del own[name]  # the plan has its own form
        keep_opset = not self.options.raise_opset and self.options.opset is None
        return replace(options, **own, keep_opset=keep_opset, gate=False)

    def painting(self, graph: UnitGraph) -> Painting:
        """Return the saved colours of this model's units; PlanError when they cannot be, or are of another
        model's.
        """
        rows = self.decisions
        same = len(rows) == len(graph.units) and self.model == fingerprint(graph.root)
        if not same or not all(map(_is_of, rows, graph.units)):
            raise PlanError(
                "this plan was made for another model",
                where=self.where,
                remedy="make a new one with `Analysis.save_plan`",
            )
        paints = tuple(Paint(row.precision, row.rule, row.cause) for row in rows)
        painting = Painting(paints, tuple(Entry(row.kind, row.evidence) for row in rows))
        self._refuse_impossible(graph, painting)
        return painting

    def _refuse_impossible(self, graph: UnitGraph, painting: Painting) -> None:
        half = self.half
        for unit in graph.units:
            able = any(half.tensor in kind for kind in unit.allowed)
            bound = painting.entries[unit.index].authority is Authority.SCHEMA
            if painting.is_half(unit.index) and (bound or not able):
                raise PlanError(
                    f"{unit} cannot be {half.name}: its schema does not allow it",
                    where=self.where,
                    remedy='set its precision to "full"',
                )
        for tie in graph.ties:
            if len({painting.is_half(unit) for unit in tie}) > 1:
                raise PlanError(
                    f"{' and '.join(str(graph.units[u]) for u in tie)} must have one precision",
                    where=self.where,
                    remedy="change the precision of all of them",
                )

    def decided(self) -> Decisions:
        """Return the decisions, independent of the model."""
        return decisions.without_model(self.decisions, self.casts)


def _is_of(row: Decision, unit: Unit) -> bool:
    node = unit.node
    key = (node.name or "", schema.written(node.domain, node.op_type), str(unit.var))
    return (row.node, row.operator, row.variable) == key


def of(
    model: str,
    decided: Decisions,
    options: PlanOptions,
    rescaled: Rescaled | None = None,
    assumptions: tuple[str, ...] = (),
) -> SavedPlan:
    """Return the plan of these decisions; `model` and `assumptions` are those of the plan, `options` those of
    its run.
    """
    return SavedPlan(
        format=FORMAT,
        model=model,
        options=options,
        decisions=tuple(decided.recorded()),
        casts=decided.cast_sites,
        rescaled=rescaled,
        assumptions=assumptions,
    )


def dump(plan: SavedPlan) -> str:
    """Return a plan as JSON text."""
    return json.dumps(records.plain(plan), indent=1, ensure_ascii=False) + "\n"


def fingerprint(root: ir.Graph) -> str:
    """Return a digest of a model's structure: nodes, names, attributes' names, and stored tensors' types and
    shapes, but not their numbers.
    """
    digest = hashlib.sha256()
    for line in _structure(root):
        digest.update(line.encode(errors="surrogatepass"))
    return digest.hexdigest()


def _structure(root: ir.Graph) -> Iterator[str]:
    for graph in graphs(root):
        yield f"graph {[v.name for v in graph.inputs]} {[v.name for v in graph.outputs]}\n"
        for value in graph.initializers.values():
            tensor = value.const_value
            yield f"tensor {value.name} {tensor and tensor.dtype} {tensor and tensor.shape}\n"
        for node in graph:
            inputs = [value and value.name for value in node.inputs]
            outputs = [value.name for value in node.outputs]
            operator = schema.written(node.domain, node.op_type)
            yield f"{operator} {node.name} {inputs} {outputs} {list(node.attributes)}\n"


def load(path: str | Path) -> SavedPlan:
    """Read a plan that `Analysis.save_plan` or --save plan saved, for `rewrite(..., replay=plan)`.

    Raises PlanError when it is missing, damaged, or of another format.

    Examples:
        >>> import tempfile
        >>> from amp_rewrite import analyze, load_plan
        >>> from amp_rewrite.demo import network
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     analyze(network()).save_plan(f'{folder}/plan.json')
        ...     load_plan(f'{folder}/plan.json').half.name
        'float16'
    """
    file = arguments.path("path", path)
    try:
        return parse(reading.read(file), str(path))
    except OSError as error:
        raise PlanError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except (ValueError, OptionError) as error:
        raise PlanError(
            f"is not a valid plan ({error})", where=path, remedy="make it again with `Analysis.save_plan`"
        ) from error


def parse(text: bytes | str, where: str) -> SavedPlan:
    """Return the plan in a JSON text; ValueError and OptionError for anything else."""
    plan = records.parse(text, SavedPlan, FORMAT)
    for number, decision in enumerate(plan.decisions):
        _refuse_dangling([decision.cause], plan, f"decisions[{number}].cause")
    for number, cast in enumerate(plan.casts):
        _refuse_dangling([cast.producer, *cast.consumers], plan, f"casts[{number}]")
    _ = plan.form  # names that there are
    return msgspec.structs.replace(plan, where=where)


def _refuse_dangling(positions: Iterable[int | None], plan: SavedPlan, where: str) -> None:
    for position in positions:
        if position is not None and position >= len(plan.decisions):
            raise ValueError(f"{where}: there is no decision {position}")
