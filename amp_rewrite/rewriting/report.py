"""The report on a rewrite, as data."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import onnx_ir as ir

from amp_rewrite.analysis.observed import Held
from amp_rewrite.analysis.units import Unit, UnitGraph
from amp_rewrite.bounds.unit_ranges import RangeCounts
from amp_rewrite.certificate.certificate import Certificate
from amp_rewrite.colouring.match_counts import Matched
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.costs.model_costs import Prediction
from amp_rewrite.model import constants
from amp_rewrite.operators.catalogue import has_arithmetic
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.preparing.form_changes import FormChange
from amp_rewrite.preparing.opset_raising import NewerOpset
from amp_rewrite.rewriting import records
from amp_rewrite.rewriting.plan import FloatState, Plan, Rescaled, Storage
from amp_rewrite.text import brief

M = TypeVar("M", covariant=True)


@dataclass(frozen=True, slots=True)
class Counts:
    """Amounts by precision, of nodes, FLOPs, or bytes of weights: of what has all its float32 in half, none
    of it, or some, and of what has none.
    """

    half: int = 0
    full: int = 0
    mixed: int = 0
    other: int = 0

    @property
    def floats(self) -> int:
        """Everything that does float arithmetic."""
        return self.half + self.full + self.mixed

    @property
    def total(self) -> int:
        """Everything."""
        return self.floats + self.other

    @property
    def share(self) -> float | None:
        """The share of half in `floats`, 0 to 1; None where there are no floats."""
        return self.half / self.floats if self.floats else None

    def to_json(self) -> dict[str, Any]:
        """Return the amounts and the share as plain data."""
        return {**asdict(self), "share": self.share}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why nothing became half: `why` names the cause that keeps the most arithmetic in float32
    (empty where nothing is float32), `already` says whether the original model has the half type.
    """

    why: str
    already: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a rewrite. Sizes are in bytes, with external data; `seconds` are wall time by stage.

    `changed` says whether the result differs from the original. `prediction` are predicted times, None where
    nothing is half; where the model is `gated`, they are those of the rejected half model.
    `form_changes` are the changes made in float32 before any decision.
    `saturated` and `flushed` count stored values that were clamped to the range of half, and flushed to zero;
    `ranges` counts the half units whose values are proven or were observed to fit into half; None where no
    ranges were declared, and `Analysis.ranges` was not called before the edit. `observed` counts the units
    kept in float32 because of observed values, `sensitive` those whose rounding adds too much to the error of
    the outputs, `earlier` those that an earlier rewrite of the model kept for either, `freed` those that are
    half because bounds prove that they fit into it, against the list, and `denied` those that are float32 for
    their range alone; `imprecise_outputs` are the outputs whose
    last products are float32, each with the error that rounding it alone makes, and `matched` counts the
    nodes that match each pin, and each operator moved to another list.
    `certificate` proves the result, or says why the model is not even proved equal to itself; None where
    nothing changed, or without `certify`. `obstacle` is the reason if nothing became half, else None.
    `rescaled` are the values that are stored times powers of two, if any. `state` are inputs and outputs that
    pair up, which are float32 beside Casts; None without any, or where they become half. `newer_opset` is one
    that is worth asking for, None without any. Where weights alone
    are half (Options.storage_only), `stored_full` counts those that half does not hold; else it is None.
    `broken` are faults of the result (if there is one, the tool has failed), `warnings` those for the user.

    Examples:
        >>> from amp_rewrite import rewrite
        >>> from amp_rewrite.demo import network
        >>> report = rewrite(network()).report
        >>> report.ok, report.nodes.half, report.casts_added, report.certificate.proved
        (True, 44, 4, True)
    """

    half: str
    changed: bool
    nodes: Counts
    casts_added: int
    stored_half: int
    stored_both: int
    saturated: int
    flushed: int
    observed: int = 0
    sensitive: int = 0
    earlier: int = 0
    imprecise_outputs: dict[str, float] = field(default_factory=dict[str, float])
    freed: int = 0
    denied: int = 0
    ranges: RangeCounts | None = None
    certificate: Certificate | None = None
    obstacle: Obstacle | None = None
    prediction: Prediction | None = None
    gated: bool = False
    form_changes: tuple[FormChange, ...] = ()
    casts_removed: int = 0
    rescaled: Rescaled | None = None
    state: FloatState | None = None
    newer_opset: NewerOpset | None = None
    stored_full: int | None = None
    size_before: int = 0
    size_after: int = 0
    matched: tuple[Matched, ...] = ()
    warnings: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether the result is a valid model with the inputs and outputs of the original."""
        return not self.broken

    @property
    def in_short(self) -> str:
        """Return the outcome in a line: nodes, Casts, faults and warnings."""
        counts = f"{self.nodes.half:,} nodes in {self.half}, {self.nodes.full:,} in float32"
        if self.obstacle is not None and self.obstacle.already:
            return "; ".join((f"{self.half} already", *self.warnings))
        casts = f"{counts}, {self.casts_added:,} Cast{'' if self.casts_added == 1 else 's'} added"
        return "; ".join((casts, *(f"not valid: {fault}" for fault in self.broken), *self.warnings))

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain data."""
        own = {
            "certificate": None if self.certificate is None else self.certificate.to_json(),
            "ranges": self.ranges and self.ranges.to_json(),
            "prediction": self.prediction and self.prediction.to_json(),
            "seconds": dict(self.seconds),
            "ok": self.ok,
        }
        return records.plain(self) | own


@dataclass(frozen=True, slots=True, repr=False)
class Result(Generic[M]):
    """A rewritten model, of the same kind as the argument, and the report on it.

    For a path, `model` is the path of the result, as a Path.

    Examples:
        >>> from amp_rewrite import rewrite
        >>> from amp_rewrite.demo import network
        >>> result = rewrite(network())
        >>> type(result.model).__name__, result.report.nodes.half
        ('ModelProto', 44)
    """

    model: M
    report: Report

    def __repr__(self) -> str:
        """Return one line on the kind of `model` and the outcome."""
        model = str(self.model) if isinstance(self.model, Path) else type(self.model).__name__
        return brief(f"Result({model}: {self.report.in_short})")


class Extent(enum.IntEnum):
    """The part of a node's float32 that becomes half."""

    NONE = 0
    SOME = 1
    ALL = 2


def extents(graph: UnitGraph, painting: Painting) -> dict[ir.Node, Extent]:
    """Return the extent to which each node with float32 becomes half."""
    extent_of: dict[ir.Node, Extent] = {}
    for unit in graph.units:
        here = Extent.ALL if painting.is_half(unit.index) else Extent.NONE
        extent_of[unit.node] = here if extent_of.setdefault(unit.node, here) is here else Extent.SOME
    return extent_of


def count_nodes(graph: UnitGraph, painting: Painting) -> Counts:
    """Return the nodes of a model by colour, as `coverage.counts` counts those of the result: without Casts
    and others that do no arithmetic, without empty stored tensors, and without ports that the schema fixes to
    float32 beside others.
    """
    free = {unit.node for unit in graph.units if not unit.var.is_fixed}
    halves: dict[ir.Node, set[bool]] = {}
    for unit in graph.units:
        node = unit.node
        is_extra = unit.var.is_fixed and node in free
        if has_arithmetic(node.domain, node.op_type) and not is_extra and _has_elements(unit):
            halves.setdefault(node, set()).add(painting.is_half(unit.index))
    half, full = (sum(each == {value} for each in halves.values()) for value in (True, False))
    total = sum(map(len, graph.nodes.values()))
    return Counts(half, full, len(halves) - half - full, total - len(halves))


def _has_elements(unit: Unit) -> bool:
    inputs = (use.holder.inputs[use.port] for use in unit.uses if isinstance(use.holder, ir.Node))
    return any(value is not None and constants.has_elements(value) for value in (*unit.defs, *inputs))


def of_plan(plan: Plan, graph: UnitGraph, painting: Painting, before: Held) -> Report:
    """Return the report as far as the plan determines it, without sizes, times and verdicts; `before` is the
    evidence of an earlier rewrite of the same model.
    """
    tensors, earlier = plan.tensors, {id(evidence) for evidence in before.values()}
    now = [entry.evidence for entry in painting.entries if id(entry.evidence) not in earlier]
    reasons = Counter(evidence.reason for evidence in now)
    imprecise = (evidence for evidence in now if evidence.reason is Reason.IMPRECISE_OUTPUT)
    return Report(
        half=plan.half.name,
        changed=bool(plan),
        nodes=count_nodes(graph, painting),
        observed=reasons[Reason.OBSERVED_OVERFLOW],
        sensitive=reasons[Reason.SENSITIVE],
        earlier=len(painting.entries) - len(now),
        imprecise_outputs={evidence.subject: evidence.number or 0.0 for evidence in imprecise},
        casts_added=len(plan.casts),
        stored_half=sum(change.storage is Storage.HALF for change in tensors),
        stored_both=sum(change.storage is Storage.BOTH for change in tensors),
        saturated=sum(change.saturates for change in (*tensors, *plan.attributes)),
        flushed=sum(change.flushes for change in (*tensors, *plan.attributes)),
        rescaled=plan.rescaled,
        stored_full=None if plan.float32_weights is None else len(plan.float32_weights),
    )


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One line of a summary: its label and its text; one that has names to be copied `is_whole`."""

    name: str
    text: str
    is_whole: bool = False


class StepPart(enum.Enum):
    """The part of a train step that a node belongs to.

    BACKWARD is linear in the seed, and multiplied by a loss scale that ENTERS at the seed and LEAVES at the
    gradients. LOSS and OPTIMISER stay float32, and SCALE decides which steps are skipped, and the next scale.
    """

    FORWARD = "forward"
    LOSS = "loss"
    ENTERS = "enters"
    BACKWARD = "backward"
    LEAVES = "leaves"
    OPTIMISER = "optimiser"
    SCALE = "scale"
