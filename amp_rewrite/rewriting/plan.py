"""Painting -> Plan: all changes to a model, as data. This module changes no model."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.analysis import states
from amp_rewrite.analysis.facts import Facts
from amp_rewrite.analysis.observed import Seen
from amp_rewrite.analysis.ranges import Ranges
from amp_rewrite.analysis.states import Pair
from amp_rewrite.analysis.units import UnitGraph, Use
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.colouring.pruning import Priced
from amp_rewrite.errors import OptionError
from amp_rewrite.model import traversal
from amp_rewrite.model.constants import StoredTensor, dims
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Fit, Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import IOTypes, Options


@dataclass(frozen=True, slots=True)
class PlannedCast:
    """A Cast of `value` to `dtype`, directly after its producer, for all these uses."""

    value: ir.Value
    dtype: ir.DataType
    uses: tuple[Use, ...]


class Storage(enum.Enum):
    """The form of a stored tensor in the result.

    HALF: converted in place. BOTH: unchanged, with a half copy for some of its uses.
    SATURATED: in float32, with its values clamped to the range of half.
    """

    HALF = "half"
    BOTH = "both"
    SATURATED = "saturated"


@dataclass(frozen=True, slots=True)
class TensorChange:
    """The change to a stored tensor; `uses` are those of the half copy (BOTH).

    `saturates` and `flushes` count the values that are clamped and flushed to zero; `nan` says whether a
    value may be NaN; values that would be flushed are half's least number where it `lifts`.
    """

    stored: StoredTensor
    storage: Storage
    uses: tuple[Use, ...] = ()
    saturates: int = 0
    flushes: int = 0
    nan: bool = True
    lifts: bool = False


@dataclass(frozen=True, slots=True)
class Retyped:
    """A node whose type attribute is set to `dtype`, or removed (None), so that the input's type counts.

    The fill value of a ConstantOfShape changes with it: `saturates` and `flushes` are 1 if it is clamped, or
    flushed to zero.
    """

    node: ir.Node
    dtype: ir.DataType | None
    saturates: int = 0
    flushes: int = 0


@dataclass(frozen=True, slots=True)
class Scaled:
    """A value that is stored as v * 2**-exponent; of a stored one, a use of it: by the input `port` of the
    node that computes `reader`.
    """

    value: str
    reader: str | None
    port: int
    exponent: int


@dataclass(frozen=True, slots=True)
class Rescaled:
    """The values that are stored times powers of two, and the effects: the numbers of `weights` and
    `epsilons` that were scaled, of Muls by powers of two, and of the nodes that are half instead of float32.

    `most` and `largest` are the largest magnitude that was observed, and its value. `regions` are the values
    that half cannot hold, those together whose exponents depend on each other. `products` are what the Muls
    make, and `norms` the outputs of the norms with a scaled epsilon, each with the exponent of its data.
    """

    values: tuple[Scaled, ...]
    weights: int = 0
    epsilons: int = 0
    muls: int = 0
    freed: int = 0
    largest: str = ""
    most: float = 0.0
    regions: tuple[tuple[str, ...], ...] = ()
    products: tuple[str, ...] = ()
    norms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A priced painting, with the observations, facts and bounds behind it, and what was rescaled for it."""

    observed: Seen
    facts: Facts
    proven: Proven | None
    priced: Priced
    rescaled: Rescaled | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes of a rewrite: values that become half, attributes that set the type of an output, Casts,
    and stored tensors. What is `rescaled` was so before the others were planned. With
    `Options.storage_only`, `float32_weights` are those that stay float32, as half does not hold them.
    """

    half: Half
    values: tuple[ir.Value, ...] = ()
    attributes: tuple[Retyped, ...] = ()
    casts: tuple[PlannedCast, ...] = ()
    tensors: tuple[TensorChange, ...] = ()
    rescaled: Rescaled | None = None
    float32_weights: tuple[ir.Value, ...] | None = None

    def __bool__(self) -> bool:
        """Return whether anything changes."""
        return bool(self.values or self.attributes or self.casts or self.tensors)


def _check_names(graph: UnitGraph, options: Options) -> None:
    """Raise OptionError for a pattern that matches no float32 input or output, for patterns and options that
    have no effect or contradict each other, and where there is no state.
    """
    keep_io, io = options.keep_io, options.io
    for one, other, is_contradiction in (
        ("`Options.storage_only`", "`Pins.force_half`", options.storage_only and options.pins.force_half),
        ("`Options.storage_only`", "`Pins.only`", options.storage_only and options.pins.restriction),
        ("`Options.opset`", "`Options.keep_opset`", options.opset is not None and options.keep_opset),
    ):
        if is_contradiction:
            raise OptionError(f"{one} and {other} contradict each other", remedy="leave out one")
    if io is IOTypes.STATE and not states.float_pairs(states.borders(graph.root, graph.types)):
        raise OptionError(
            "`Options.io=STATE` finds no state: no input and output pair up by their names and types",
            remedy="use `Options.io=HALF` with `Options.keep_io`",
        )
    if keep_io and io is IOTypes.KEEP:
        raise OptionError(
            "`Options.keep_io` has no effect where all inputs and outputs keep their types",
            remedy="ask for `Options.io=HALF`",
        )
    float32 = ir.DataType.FLOAT
    values = (*graph.root.inputs, *graph.root.outputs)
    kinds = ((value.name, graph.types.get(value)) for value in values)
    float_names = {name or "" for name, kind in kinds if kind is not None and kind.dtype == float32}
    for name in keep_io:
        if not states.matching(name, float_names):
            raise OptionError(
                f"no float32 input or output is called '{name}'",
                remedy=f"there are {', '.join(sorted(filter(None, float_names)))}",
            )


def make(facts: Facts, priced: Priced, options: Options, rescaled: Rescaled | None = None) -> Plan:
    """Return the plan for a painting: one Cast for each value and type that a unit of the other colour reads;
    nothing where the gate has closed, inputs and outputs included. What is `rescaled` is so already.

    Raises OptionError for names in `keep_io` that have no effect.
    """
    _check_names(facts.graph, options)
    graph, half, ranges, painting = facts.graph, options.half, facts.ranges, priced.painting
    if priced.gated:
        return Plan(half, rescaled=rescaled)
    planner = _Planner(facts, painting, options)
    planner.plan_all()
    return Plan(
        half=half,
        values=tuple(planner.values),
        attributes=tuple(_attributes(graph, painting, half, ranges, planner.masks)),
        casts=tuple(planner.casts),
        tensors=tuple(planner.tensors),
        rescaled=rescaled,
        float32_weights=tuple(planner.float32_weights) if options.storage_only else None,
    )


@dataclass(frozen=True, slots=True)
class FloatState:
    """The pairs of inputs and outputs that are float32 state, and the Casts beside them that a state in half
    saves.
    """

    pairs: tuple[Pair, ...]
    casts: int


def float_state(plan: Plan, graph: UnitGraph) -> FloatState | None:
    """Return the state of a model that keeps its type; None where no Cast is beside it."""
    root = graph.root
    pairs = states.float_pairs(states.borders(root, graph.types))
    inputs, outputs = ({getattr(pair, side) for pair in pairs} for side in ("input", "output"))
    casts = 0
    for cast in plan.casts if pairs else ():
        enters = cast.value in root.inputs and cast.value.name in inputs
        leaves = all(use.holder is root and root.outputs[use.port].name in outputs for use in cast.uses)
        casts += leaves or (enters and len(cast.uses) == len(graph.uses[cast.value]))
    return FloatState(pairs, casts) if casts else None


class _Planner:
    def __init__(
        self,
        facts: Facts,
        painting: Painting,
        options: Options,
    ) -> None:
        graph, ranges = facts.graph, facts.ranges
        self._graph, self._half = graph, options.half
        self._is_half, self._entries = painting.halves, painting.entries
        self._stores_weights = options.storage_only and facts.old_opset is None
        self._stored, self._ranges = facts.constants, ranges
        halved = states.half_names(states.borders(graph.root, graph.types), options)
        self._halved = halved if facts.old_opset is None else frozenset[str]()
        self._entering = frozenset(graph.root.inputs)
        self.masks = ranges.masks.reaching(painting.is_half)
        self._outputs = self._output_uses()
        self._needed = traversal.needed_nodes(graph.nodes)
        self.values: list[ir.Value] = []
        self.casts: list[PlannedCast] = []
        self.tensors: list[TensorChange] = []
        self.float32_weights: list[ir.Value] = []

    def plan_all(self) -> None:
        """Plan every float32 value with a producer or a use, produced values first, in node order."""
        float32 = ir.DataType.FLOAT
        types = self._graph.types
        at_io = [v for v in (*self._graph.root.inputs, *self._outputs) if v in types]
        entering = [v for v in at_io if types[v].dtype == float32]
        for value in dict.fromkeys((*entering, *self._graph.producer, *self._graph.uses)):
            self._plan(value)

    def _plan(self, value: ir.Value) -> None:
        halves, fulls = self._uses(value)
        constant = self._stored.get(value)
        if constant is not None:
            self._plan_stored(constant, halves, fulls)
        elif self._is_produced_half(value):
            self.values.append(value)
            self._cast(value, ir.DataType.FLOAT, fulls)
        else:
            self._cast(value, self._half.dtype, halves)

    def _cast(self, value: ir.Value, dtype: ir.DataType, uses: list[Use]) -> None:
        if uses:
            self.casts.append(PlannedCast(value, dtype, tuple(uses)))

    def _plan_stored(self, constant: StoredTensor, halves: list[Use], fulls: list[Use]) -> None:
        value = constant.value
        fit = self._ranges.fits.get(value)
        saturates = fit.overflowing if fit is not None and value in self.masks else 0
        lifts = value in self._ranges.floors
        flushes = fit.flushed if fit is not None and not lifts else 0
        nan = fit is None or fit.nan
        is_empty = 0 in dims(constant.tensor)  # says that an input is left out, which a Cast of it does not
        serves_both = fit is not None and fit.exact and not is_empty
        if not any(map(self._is_needed, halves)):
            self._cast(value, self._half.dtype, halves)
            halves = []
        if not halves and self._is_weight(constant, fulls):
            if self._holds(value, fit):
                self.tensors.append(TensorChange(constant, Storage.HALF, flushes=flushes, nan=nan))
                self._cast(value, ir.DataType.FLOAT, fulls)
            else:
                self.float32_weights.append(value)
        elif not halves:
            if saturates:
                self.tensors.append(TensorChange(constant, Storage.SATURATED, saturates=saturates))
        elif any(map(self._is_needed, fulls)) and not serves_both:
            self.tensors.append(
                TensorChange(constant, Storage.BOTH, tuple(halves), saturates, flushes, nan, lifts)
            )
        else:
            self.tensors.append(TensorChange(constant, Storage.HALF, (), saturates, flushes, nan, lifts))
            self._cast(value, ir.DataType.FLOAT, fulls)

    def _is_needed(self, use: Use) -> bool:
        """Return whether an output depends on a use: for others, no tensor is stored twice."""
        return use.holder in self._needed or isinstance(use.holder, ir.Graph)

    def _is_weight(self, constant: StoredTensor, uses: Collection[Use]) -> bool:
        """Return whether a stored tensor is to be stored in half for float32 uses, which saves bytes."""
        is_large = math.prod(dims(constant.tensor)) >= _LEAST_STORED
        return self._stores_weights and is_large and all(use.holder is not self._graph.root for use in uses)

    def _holds(self, value: ir.Value, fit: Fit | None) -> bool:
        """Return whether half holds the numbers of a stored tensor, also for those who read it."""
        if fit is None or fit.overflowing or (not fit.exact and fit.magnitude < self._half.least_normal):
            return False
        return not any(self._entries[unit].authority in _OF_NUMBERS for unit, _ in self._graph.uses[value])

    def _is_produced_half(self, value: ir.Value) -> bool:
        producer = self._graph.producer.get(value)
        if producer is not None:
            return self._is_half[producer]
        return self._is_half_io(value) and value in self._entering

    def _is_half_io(self, value: ir.Value) -> bool:
        dense = type(self._graph.types.get(value)) is ir.TensorType
        return dense and value.name in self._halved and not value.is_initializer()

    def _uses(self, value: ir.Value) -> tuple[list[Use], list[Use]]:
        """Return the uses of a value in half, and those in float32."""
        halves: list[Use] = []
        fulls: list[Use] = []
        for unit, use in self._graph.uses.get(value, ()):
            (halves if self._is_half[unit] else fulls).append(use)
        if value in self._outputs:
            leaves_half = self._is_half_output(value)
            (halves if leaves_half else fulls).extend(self._outputs[value])
        return halves, fulls

    def _is_half_output(self, value: ir.Value) -> bool:
        """Return whether an output becomes half; inputs and non-tensors keep the producer's type."""
        if value.is_graph_input() or type(self._graph.types.get(value)) is not ir.TensorType:
            return self._is_produced_half(value)
        return self._is_half_io(value)

    def _output_uses(self) -> dict[ir.Value, list[Use]]:
        uses: dict[ir.Value, list[Use]] = {}
        for port, value in enumerate(self._graph.root.outputs):
            kind = self._graph.types.get(value)
            if kind is not None and kind.dtype == ir.DataType.FLOAT:
                uses.setdefault(value, []).append(Use(self._graph.root, port))
        return uses


_LEAST_STORED = 128
"""The values from which a half tensor and its Cast are smaller than a float32 tensor: a Cast and its two
names take some 200 bytes.
"""

_OF_NUMBERS = frozenset((Authority.PIN, Authority.RANGE, Authority.QUANTISED, Authority.OBSERVATION))
"""The authorities by which a unit is float32 for its numbers, or asked to be, whatever computes it."""


def _attributes(
    graph: UnitGraph, painting: Painting, half: Half, ranges: Ranges, masks: Container[ir.Value]
) -> Iterator[Retyped]:
    """Yield the nodes whose type attribute changes or must become explicit, and those that fill a mask in
    float32 with a value outside the range of half.
    """
    of_these = (graph.by_operator.get(operator, ()) for operator in schema.OPERATORS)
    units = [graph.units[unit] for unit in sorted(itertools.chain.from_iterable(of_these))]
    halved = {(unit.node, unit.var.name) for unit in units if painting.is_half(unit.index)}
    for unit in units:
        typed = schema.of(unit.node)
        if typed is None or not typed.settable or unit.node.outputs[0] not in unit.defs:
            continue  # the target joined its variable with another, and the unit has that one's name
        fit = ranges.fits.get(unit.defs[0], halves.PERFECT)
        saturates = fit.overflowing if unit.defs[0] in masks else 0
        is_declared = schema.declared(unit.node, typed) is not None
        like = "" if typed.like is None else f"T{typed.like + 1}"  # the type variable of that input
        half_by_input = (unit.node, like) in halved
        if not painting.is_half(unit.index):
            if saturates or (half_by_input and not is_declared):
                yield Retyped(unit.node, ir.DataType.FLOAT, saturates)
        elif not half_by_input:
            yield Retyped(unit.node, half.dtype, saturates, fit.flushed)
        elif is_declared:
            yield Retyped(unit.node, None)
