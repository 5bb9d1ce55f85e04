"""Emulation of a half model by a float32 model that rounds every half value.

onnxruntime's CPU provider runs most half nodes in float32 and does not round between them: 300 * 300 is 90000
there, and infinite on a GPU. It does keep the Casts of a model, so every half value gets a Cast to half and
back behind its producer. Initializers are rounded; a node accumulates in float32, as tensor cores do.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.analysis.accumulators import accumulates
from amp_rewrite.analysis.units import Use
from amp_rewrite.errors import ModelError
from amp_rewrite.model import inlining, loading, proto_traversal, serialization, writing
from amp_rewrite.model.patterns import effective_op
from amp_rewrite.model.traversal import every_node
from amp_rewrite.numerics.half import BY_NAME, HALF_TYPES, Half
from amp_rewrite.onnx_types import element_types
from amp_rewrite.operators.catalogue import EXACT, SAME_ELEMENTS, having
from amp_rewrite.operators.record import Trait
from amp_rewrite.rewriting import widened_model
from amp_rewrite.rewriting.instrument import Instrument, Switches, instrument
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device, Libraries, Runnable

_COMMUTE = SAME_ELEMENTS | having(Trait.EXACT) - {"Sign"}
"""Operators that commute with rounding: they move values, or are monotonic on them."""


def emulate(source: loading.ModelSource, *, late: bool = False) -> onnx.ModelProto:
    """Return a float32 model that rounds wherever `source` computes in float16 or bfloat16.

    Inputs and outputs keep their types: an initializer that is also an input or output stays half, a sequence
    is cast element by element, and an optional if it is not empty. With `late`, a value whose consumers
    all commute with rounding is rounded behind them: the results are the same, and the runtime can
    fuse a Conv with its Relu. `source` is a path, bytes, a ModelProto, an onnx_ir.Model or an
    onnx_graphsurgeon.Graph with half values, from any tool; it is not modified.

    Raises ModelError, also if an input or output cannot be cast: an optional of half below opset 16, or a
    sequence of half below opset 13. Raises OptionError for a `late` that is not a boolean.

    Examples:
        >>> import onnxruntime
        >>> from amp_rewrite import emulate, rewrite
        >>> from amp_rewrite.demo import feeds, network
        >>> emulated = emulate(rewrite(network()).model)
        >>> session = onnxruntime.InferenceSession(emulated.SerializeToString())
        >>> session.run(None, feeds())[0].dtype
        dtype('float32')
    """
    return serialization.to_proto(emulation(source, late=arguments.flag("late", late)))


def emulation(source: loading.ModelSource, *, late: bool = False) -> loading.Loaded:
    """Return the model of `emulate` for further edits."""
    loaded = loading.load(source)
    inlining.inline(loaded.model)
    _Emulator(loaded.model, late=late, is_switched=False).run()
    return loaded


@dataclass(frozen=True, slots=True)
class SwitchedModel:
    """A float32 model that rounds as its switches say: the name of the additional input, a Boolean for each
    rounding, and the value that each rounds.
    """

    loaded: loading.Loaded
    switches: str
    values: tuple[ir.Value, ...]


def switched_emulation(source: loading.ModelSource) -> SwitchedModel:
    """Return the model of `emulate` with a switch for each value that it rounds."""
    loaded = loading.load(source)
    inlining.inline(loaded.model)
    emulator = _Emulator(loaded.model, late=False, is_switched=True)
    emulator.run()
    return SwitchedModel(loaded, emulator.switches, tuple(emulator.values))


@contextlib.contextmanager
def emulated(model: Runnable, device: Device, *, late: bool = False) -> Generator[Runnable]:
    """Yield the model to run for a half model: its emulation on the CPU, else the model itself."""
    if device is not Device.CPU:
        yield model
        return
    with runnable(emulation(model, late=late)) as substitute:
        yield substitute


@dataclass(slots=True)
class Reference:
    """The float32 model to compare with, its session, and a note for the report, which may be empty.

    The session may be set to None to release it.
    """

    model: sessions.Runnable
    session: Any
    note: str = ""


@contextlib.contextmanager
def reference(original: sessions.Runnable, device: Device, libraries: Libraries = ()) -> Generator[Reference]:
    """Yield the original, or if onnxruntime rejects it, a copy with half values widened to float32, as by
    `restore`, and with unique node names.

    Raises ModelError if the copy is rejected too.
    """
    try:
        baseline = Reference(original, sessions.open_session(original, device, libraries))
    except ModelError as refusal:
        loaded = loading.load(original)
        inlining.inline(loaded.model)
        is_half = widened_model.has_half(loaded.model)
        if not (is_half or loaded.mended):
            raise
        widened_model.widen(loaded.model, kept_io=None)
        with runnable(loaded) as fallback:
            try:
                baseline = Reference(fallback, sessions.open_session(fallback, device, libraries))
            except ModelError:
                raise refusal from None
            mended = "with its half values restored to float32" if is_half else "with node names that differ"
            baseline.note = f"the original runs {mended} only: {refusal}"
            yield baseline
    else:
        yield baseline


@contextlib.contextmanager
def runnable(loaded: loading.Loaded) -> Generator[sessions.Runnable]:
    """Yield a model in a form for onnxruntime: a protobuf, or if too large, a file that exists until the
    context ends.
    """
    if not loaded.external and loaded.size < writing.PROTOBUF_LIMIT // 4:
        yield serialization.to_proto(loaded)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "emulated.onnx"
        writing.save(loaded, path)
        yield path


def rounded_name(name: str) -> str:
    """Return the name of the rounded half value in an emulation, unless another value has that name."""
    return f"{name}__{_HALF}__{_ROUNDED}"


_HALF, _ROUNDED = "half", "rounded"


class _Emulator:
    def __init__(self, model: ir.Model, *, late: bool, is_switched: bool) -> None:
        self._model, self._late, self._is_switched = model, late, is_switched
        self._types = element_types.infer(model)
        self._unrounded: set[ir.Value] = set()
        self.switches, self.values = "", list[ir.Value]()

    def run(self) -> None:
        """Replace every half value by a rounded float32 value, except the model's inputs and outputs."""
        root = self._model.graph
        halves = {v: t.dtype for v, t in self._types.items() if t.dtype in HALF_TYPES}
        scatters = [
            (node, halves[node.outputs[0]])
            for node in filter(accumulates, every_node(root))
            if node.outputs[0] in halves
        ]
        for node in list(every_node(root)):
            widened_model.widen_attributes(node)
        with instrument(self._model, self._types) as points:
            self._points: Instrument = points
            self._switches = Switches(points, root) if self._is_switched else None
            self.switches = self._switches.name if self._switches is not None else ""
            for value, dtype in halves.items():
                if value.name:  # an optional output that is omitted has no name
                    self._emulate(value, dtype)
        _replace_scatters(self._model, scatters)
        self._bypass_casts()

    def _stays_half(self, value: ir.Value) -> bool:
        """Whether it is an input of the model, or an output that nothing computes."""
        is_given = value.producer() is None and bool(self._points.model_outputs(value))
        return is_given or value in self._model.graph.inputs

    def _emulate(self, value: ir.Value, dtype: ir.DataType) -> None:
        node = value.producer()
        if self._stays_half(value) or (node is not None and node.op_type == "Cast"):
            self._widen_uses(value, value)
        elif node is None:
            if value.const_value is not None:
                value.const_value = widened_model.widen_tensor(value.const_value)
            self._widen(value)
        elif isinstance(self._types[value], ir.TensorType):
            self._round(value, dtype, node)
        else:
            self._widen(value)
            if self._points.model_outputs(value):
                self._as_half(value, dtype)

    def _bypass_casts(self) -> None:
        """Have nodes read past Casts from float32 to float32. onnxruntime removes such a Cast, and lacks its
        output where it then makes a division of 1/x * cast(y) (1.32).
        """
        for node in filter(_gives_float32, every_node(self._model.graph)):
            (source,) = node.inputs
            maker = None if source is None else source.producer()
            is_cast = maker is not None and maker.op_type == "Cast" and not maker.domain
            if source is not None and (_gives_float32(maker) if is_cast else self._is_float32(source)):
                for reader, port in tuple(node.outputs[0].uses()):
                    reader.replace_input_with(port, source)

    def _widen(self, value: ir.Value) -> None:
        if value.type is not None:
            value.type = element_types.with_element(self._types[value], ir.DataType.FLOAT)

    def _round(self, value: ir.Value, dtype: ir.DataType, node: ir.Node) -> None:
        """Cast a node's output to half, and back for its consumers."""
        self._widen(value)
        # rounded where its inputs are: no Casts are needed behind it
        keeps = effective_op(node) in EXACT and node.domain == ""
        exact = keeps and self._unrounded.isdisjoint(node.inputs)
        if exact and not self._points.model_outputs(value):
            return
        uses = self._points.uses(value)
        if self._late and uses and all(map(_commutes, uses)):
            self._unrounded.add(value)
            return
        half = self._as_half(value, dtype)
        if not exact:
            self._widen_uses(value, half)

    def _as_half(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Cast a value to half, which outputs of the model read."""
        half = self._points.cast(value, dtype, _HALF)
        self._points.read(self._points.model_outputs(value), value, half)
        return half

    def _widen_uses(self, value: ir.Value, half: ir.Value) -> None:
        """Cast `half` to float32 for the uses of `value` within the model."""
        outputs, ours = self._points.model_outputs(value), half.producer()
        uses = [use for use in self._points.uses(value) if use not in outputs and use.holder is not ours]
        if not uses:
            return
        rounded = self._points.cast(half, ir.DataType.FLOAT, _ROUNDED)
        exact = ours.inputs[0] if ours is not None and ours.op_type == "Cast" and not ours.domain else None
        if self._switches is not None and exact is not None and self._is_float32(exact):
            self.values.append(exact)
            rounded = self._switches.choose(rounded, exact)
        self._points.read(uses, value, rounded)

    def _is_float32(self, value: ir.Value) -> bool:
        """Whether it is a tensor of float32, or was one of half that is now."""
        kind = self._types.get(value)  # none behind an operator without a schema
        was_half = kind is not None and kind.dtype in HALF_TYPES and not self._stays_half(value)
        return isinstance(kind, ir.TensorType) and (was_half or kind.dtype == ir.DataType.FLOAT)


def _gives_float32(node: ir.Node | None) -> bool:
    """Return whether this is a Cast to float32."""
    if node is None or node.op_type != "Cast" or node.domain:
        return False
    return node.attributes["to"].as_int() == ir.DataType.FLOAT


def _commutes(use: Use) -> bool:
    node = use.holder
    return isinstance(node, ir.Node) and node.op_type in _COMMUTE and not node.domain and use.port == 0


# Scatters that add or multiply in half: a function in float32 that rounds after each element.
#
# Runtimes apply the updates of one element one by one: 2048 + 1 is 2048 in float16. Round n applies the n-th
# update of every element, so that there are as many rounds as updates of the element with most.

_DOMAIN = "amp_rewrite.emulation"
_FUNCTION = """<domain: "{domain}", opset_import: ["": {opset}]>
{name} (data, indices, updates) => (result) {{
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    flat = Constant <value = int64[1] {{-1}}> ()
    shape = Shape (data)
    size = Size (data)
    places = Range (zero, size, one)
    shaped_places = Reshape (places, shape)
    updated = {gather} (shaped_places, indices)
    updated_flat = Reshape (updated, flat)
    count = Shape (updated_flat)
    place, order = TopK <largest = 0> (updated_flat, count)
    updates_flat = Reshape (updates, flat)
    terms = Gather (updates_flat, order)
    place_values, place_firsts, place_inverse, place_counts = Unique (place)
    place_stops = CumSum (place_counts, zero)
    place_starts = Sub (place_stops, place_counts)
    start = Gather (place_starts, place_inverse)
    terms_size = Size (terms)
    positions = Range (zero, terms_size, one)
    nth = Sub (positions, start)
    turns, by_turn = TopK <largest = 0> (nth, count)
    turn_places = Gather (place, by_turn)
    turn_terms = Gather (terms, by_turn)
    turn_values, turn_firsts, turn_inverse, turn_counts = Unique (turns)
    turn_stops = CumSum (turn_counts, zero)
    turn_starts = Sub (turn_stops, turn_counts)
    rounds = Size (turn_counts)
    before = Reshape (data, flat)
    after = Loop (rounds, , before) <body = step (int64 turn, bool go, float[] last)
            => (bool[] on, float[] next) {{
        on = Identity (go)
        at = Reshape (turn, flat)
        low = Gather (turn_starts, at)
        high = Gather (turn_stops, at)
        now_places = Slice (turn_places, low, high)
        now_terms = Slice (turn_terms, low, high)
        exact = ScatterElements <axis = 0, reduction = "{reduction}"> (last, now_places, now_terms)
        half = Cast <to = {half}> (exact)
        next = Cast <to = 1> (half)
    }}>
    result = Reshape (after, shape)
}}"""


def _replace_scatters(model: ir.Model, scatters: Iterable[tuple[ir.Node, ir.DataType]]) -> None:
    """Replace these scatters, which add or multiply values of a half type, in an emulation."""
    opset = element_types.default_opset(model.opset_imports)
    for node, half in scatters:
        is_nd = node.op_type == "ScatterND"
        axis, reduction = node.attributes.get_int("axis", 0), node.attributes.get_string("reduction", "")
        name = f"{node.op_type}_{reduction}_{half.name}_{axis}".replace("-", "m")
        text = _FUNCTION.format(
            domain=_DOMAIN,
            opset=opset,
            name=name,
            gather="GatherND" if is_nd else f"GatherElements <axis = {axis}>",
            reduction=reduction,
            half=int(half),
        )
        function = ir.from_proto(onnx.parser.parse_function(text))
        model.functions[function.identifier()] = function
        node.domain, node.op_type = _DOMAIN, name
        node.attributes.clear()
    if model.functions:
        model.opset_imports[_DOMAIN] = 1
        inlining.inline(model)


# The half type of a model.


def half_of(model: Runnable) -> Half | None:
    """Return the first half type in a model; None for a model without half."""
    proto = model if isinstance(model, onnx.ModelProto) else loading.load_graph(Path(model))
    return next((_HALVES[dtype] for dtype in _element_types(proto) if dtype in _HALVES), None)


_HALVES = {int(half.dtype): half for half in BY_NAME.values()}


def _element_types(proto: onnx.ModelProto) -> Iterator[int]:
    for node in proto_traversal.every_node(proto):
        if node.op_type == "Cast":
            yield from (attribute.i for attribute in node.attribute if attribute.name == "to")
    for graph in (*proto_traversal.graphs(proto.graph), *proto_traversal.in_functions(proto)):
        yield from (tensor.data_type for tensor in graph.initializer)
        yield from (declared.type.tensor_type.elem_type for declared in graph.input)
