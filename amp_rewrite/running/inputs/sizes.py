"""Rules for the sizes of open dimensions: required by weights, suggested by names, usual for the position."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as
from amp_rewrite.model.traversal import every_node
from amp_rewrite.onnx_facts.operators import MOVERS
from amp_rewrite.onnx_types import control_flow, schema
from amp_rewrite.running.inputs.model_inputs import Dim, Input

Shape = tuple[int, ...]

# The batch that a recurrent layer is for, where the model stores its initial state.

LAYERS = ("LSTM", "GRU", "RNN")
_STATES = (5, 6)
"""The inputs that are the initial hidden state, and the cell of an LSTM."""
STATE_INPUTS = frozenset((layer, index) for layer in LAYERS for index in _STATES)
"""These by operator."""


def batch_axis(layer: ir.Node) -> int:
    """The axis of the batch, in data and states: [sequence, batch, features] and [directions, batch, hidden],
    or first, as `layout` says.
    """
    return 0 if layer.attributes.get_int("layout", 0) else 1


def stored_batch(layer: ir.Node) -> int | None:
    """The size of the batch of the state that a layer begins with; None where the model stores none."""
    if layer.op_type not in LAYERS or layer.domain:
        return None
    stored = (stored_as(layer.inputs[index]) for index in _STATES if index < len(layer.inputs))
    shapes = (state.shape.numpy() for state in stored if state is not None)
    return next((int(shape[batch_axis(layer)]) for shape in shapes if len(shape) == _RANK), None)


_RANK = 3


# The node inputs that a value reaches, directly or through operators that only move or cast it.

_ALL_INPUTS = ("Concat", "Max", "Min", "SequenceConstruct")
_INPUTS = {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2), "SequenceInsert": (0, 1)}
_CARRIERS = MOVERS | frozenset("Cast CastLike Clip DequantizeLinear Optional OptionalGetElement".split())
"""Operators whose outputs are the elements of an input, moved or in another type; of the first input unless
the tables above have others.
"""


@dataclass(frozen=True, slots=True)
class NodeInput:
    """An input of a node, by position."""

    node: ir.Node
    index: int

    @property
    def operator(self) -> str:
        """The operator in the form of operator lists: `Add`, or `com.microsoft:BiasGelu`."""
        return schema.written(self.node.domain, self.node.op_type)

    @property
    def key(self) -> tuple[str, int]:
        """Operator and index: the key in tables of node inputs."""
        return self.operator, self.index

    def attribute(self, name: str, default: int = 0) -> int:
        """The node's integer attribute `name`; `default` if it is not set."""
        return self.node.attributes.get_int(name, default)

    def reads(self, value: ir.Value) -> bool:
        """Whether it reads the value itself, or a Cast of it: with the same axes."""
        read = self.input_at(self.index)
        maker = None if read is None else read.producer()
        return read is value or (maker is not None and maker.op_type == "Cast" and maker.inputs[0] is value)

    def input_at(self, index: int) -> ir.Value | None:
        """The node's input at `index`; None if it has none there."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None


class Consumers:
    """The dataflow from values to node inputs in a graph and its subgraphs.

    `batch` is the size that stored states of recurrent layers require of a batch; None without such.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._leaving: dict[ir.Value, list[ir.Value]] = {}
        self.batch: int | None = None
        for node in every_node(graph):
            self._add_bindings(node)
            self.batch = self.batch or stored_batch(node)

    def of(self, value: ir.Value) -> tuple[NodeInput, ...]:
        """The node inputs that the value reaches, directly or moved and cast; nearest first."""
        found: dict[NodeInput, None] = {}
        todo, seen = [value], {value}
        while todo:
            current = todo.pop(0)
            uses = [NodeInput(node, index) for node, index in current.uses()]
            found.update(dict.fromkeys(uses))
            following = (*self._leaving.get(current, ()), *(v for use in uses for v in _carried_to(use)))
            todo += [v for v in dict.fromkeys(following) if v not in seen]
            seen.update(following)
        return tuple(found)

    def _add_bindings(self, node: ir.Node) -> None:
        for binding in control_flow.bindings(node) or ():
            for body, index in binding.leaves:
                outer = (node.outputs[i] for i in binding.outputs)
                self._leaving.setdefault(body.outputs[index], []).extend(outer)


def _carried_to(use: NodeInput) -> Iterable[ir.Value]:
    """The values that have the elements of what this node input reads."""
    bindings = control_flow.bindings(use.node)
    if bindings is not None:
        entered = (binding.enters for binding in bindings if use.index in binding.inputs)
        return [body.inputs[i] for enters in entered for body, i in enters]
    operator = use.operator
    carries = operator in _ALL_INPUTS or use.index in _INPUTS.get(operator, (0,))
    return use.node.outputs if operator in _CARRIERS and carries else ()


# Sizes that operators require of their inputs because of the shapes of their weights and stored states.


def required_size(use: NodeInput, value: ir.Value, axis: int) -> int | None:
    """The size that this use of `value`, itself, cast or transposed, requires for an axis; None if any will
    do, or if the value is moved otherwise before.
    """
    weight = stored_as(use.input_at(1))
    read = axis if use.reads(value) else _transposed(use, value, axis)
    if weight is None or len(weight.shape) < 2 or value.shape is None or read is None:
        return None
    keys = ((*use.key, read), (*use.key, read - len(value.shape)))
    rule = next((_REQUIRED[key] for key in keys if key in _REQUIRED), None)
    return None if rule is None else rule(use, tuple(weight.shape.numpy()))


def _transposed(use: NodeInput, value: ir.Value, axis: int) -> int | None:
    """Where a Transpose of the value, which this use reads, has an axis; None where there is no such node."""
    read = use.input_at(use.index)
    node = None if read is None else read.producer()
    order = node.attributes.get("perm") if node is not None and node.op_type == "Transpose" else None
    if node is None or order is None or node.inputs[0] is not value or axis not in order.as_ints():
        return None
    return list(order.as_ints()).index(axis)


def _features(use: NodeInput, weight: Shape) -> int | None:
    """The columns of a Gemm's first matrix: the rows of its weight."""
    return weight[use.attribute("transB", 0)]


def _batch_of_state(axis: int, use: NodeInput, _weight: Shape) -> int | None:
    return stored_batch(use.node) if axis == batch_axis(use.node) else None


_REQUIRED: Mapping[tuple[str, int, int], Callable[[NodeInput, Shape], int | None]] = {
    ("MatMul", 0, -1): lambda _, weight: weight[-2],
    ("Gemm", 0, 0): lambda use, weight: _features(use, weight) if use.attribute("transA", 0) else None,
    ("Gemm", 0, 1): lambda use, weight: None if use.attribute("transA", 0) else _features(use, weight),
    ("Conv", 0, 1): lambda use, weight: weight[1] * use.attribute("group", 1),
    **{(op, 0, 2): lambda _, weight: weight[2] for op in LAYERS},
    **{(op, 0, axis): partial(_batch_of_state, axis) for op in LAYERS for axis in (0, 1)},
}
"""By operator, input and axis (from the end where it is negative): the size that its weight, of this shape,
or a stored state, requires.
"""


# The side of square images that a network of patches requires: it stores one position for each patch.

_FIRST_SPATIAL = 2
_MOST_EXTRA_TOKENS = 2
"""Positions that belong to no patch: of a class token, and of a distillation token (DeiT)."""


def required_side(use: NodeInput, value: ir.Value, axis: int, consumers: Consumers) -> int | None:
    """The size that stored positions require for a spatial axis of images, where this use of `value` cuts
    them into patches; None if it does not, or if the positions are computed for any size.
    """
    weight = stored_as(use.input_at(1)) if use.key == ("Conv", 0) and use.reads(value) else None
    if weight is None:
        return None
    shape = tuple(weight.shape.numpy())
    if not _FIRST_SPATIAL <= axis < len(shape) or not _cuts(use.node, shape):
        return None
    counts = _position_counts(consumers.of(use.node.outputs[0]), channels=shape[0])
    sides = (_side(count) for count in counts)
    return next((side * shape[axis] for side in sides if side), None)


def _cuts(conv: ir.Node, shape: Sequence[int]) -> bool:
    """Whether the windows of a convolution lie side by side, without padding."""
    strides, pads = (conv.attributes.get_ints(name, ()) for name in ("strides", "pads"))
    return tuple(strides) == tuple(shape[_FIRST_SPATIAL:]) and not any(pads)


def _position_counts(uses: Sequence[NodeInput], channels: int) -> Iterator[int]:
    """The lengths of the tables that are added to the patches: [length, channels], with ones before."""
    for use in uses:
        other = use.input_at(1 - use.index) if use.operator == "Add" else None
        *_, length, width = (0, 0, *_stored_shape(other))
        if width == channels:
            yield length


def _stored_shape(value: ir.Value | None) -> tuple[int, ...]:
    """The shape of what is stored, or looked up with stored indices in a stored table; else ()."""
    tensor = stored_as(value)
    if tensor is not None:
        return tuple(tensor.shape.numpy())
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Gather" or node.attributes.get_int("axis", 0):
        return ()
    table, indices = (stored_as(operand) for operand in (*node.inputs, None, None)[:2])
    if table is None or indices is None:
        return ()
    return (*indices.shape.numpy(), *table.shape.numpy()[1:])


def _side(length: int) -> int:
    """The side of a square of patches with this many positions; 0 if there is none."""
    roots = (math.isqrt(length - extra) for extra in range(min(length, _MOST_EXTRA_TOKENS) + 1))
    return next((root for extra, root in enumerate(roots) if root * root == length - extra), 0)


# Symbols that are formulas of other symbols, as PyTorch's exporter writes them.


def is_formula(symbol: str) -> bool:
    """Whether a symbol is a formula of others, such as `past + seq` or `2*s0`; `batch-size` is a name."""
    return bool(re.search(r"[+*]|//|\s[-/]\s", symbol))


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}


def evaluate(formula: str, sizes: Mapping[str, int]) -> int | None:
    """The value of a formula, at least 0; None if it is malformed or has a symbol without a size."""
    try:
        return max(0, _term(ast.parse(formula.strip(), mode="eval").body, sizes))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
        return None


def _term(term: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(term, ast.BinOp):
        return _OPERATIONS[type(term.op)](_term(term.left, sizes), _term(term.right, sizes))
    if isinstance(term, ast.Constant):
        return int(str(term.value))
    return sizes[ast.unparse(term)]


BATCH = 1
SEQUENCE = 16
PAST = 8
CHANNELS = 3
SIDE = 64
"""Height and width of images: divisible by all usual strides."""
IMAGE_RANK = 4
SAMPLES = 16_000
"""One second of audio at the usual sampling rate of speech models."""
WINDOW = 512
"""Audio in windows: 32 ms at that rate, a usual size."""

Key = str | tuple[str, int]
"""A symbol, or an input's name and an axis without a symbol, whose size is independent of all others."""


@dataclass(frozen=True, slots=True)
class OpenDim:
    """A dimension without a fixed size: an axis of an input, among all inputs of a model."""

    input: Input
    axis: int
    symbol: str | None
    inputs: Sequence[Input]
    consumers: Consumers

    @property
    def key(self) -> Key:
        """The key that is the same for all dimensions of one size."""
        return _key(self.input, self.axis)

    @property
    def label(self) -> str:
        """The dimension in the form `input:axis`."""
        return f"{self.input.name}:{self.axis}"

    @property
    def dims(self) -> tuple[Dim, ...]:
        """All dimensions of the input."""
        return self.input.dims or ()

    @property
    def is_float(self) -> bool:
        """Whether the input is floating-point."""
        return self.input.dtype is not None and self.input.dtype.is_floating_point()

    @property
    def is_unique(self) -> bool:
        """Whether no other input has this symbol."""
        others = (other for other in self.inputs if other is not self.input)
        return self.symbol is None or all(self.symbol not in (other.dims or ()) for other in others)


def _key(declared: Input, axis: int) -> Key:
    dim = (declared.dims or ())[axis]
    return dim if isinstance(dim, str) else (declared.name, axis)


Found = Mapping[Key, int]


def size_of(declared: Input, axis: int, found: Found, default: int) -> int:
    """The size of an axis: the declared one, or the one in `found`, or the default."""
    dim = (declared.dims or ())[axis]
    return dim if isinstance(dim, int) else found.get(_key(declared, axis), default)


def name_words(text: str) -> frozenset[str]:
    """The words of a name: `past_seqLen.1` has past, seq and len; single letters count only on their own."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)
    return frozenset(part.lower() for part in parts if len(part) > 1 or part == text)


def _required(dim: OpenDim, _found: Found) -> int | None:
    """The size that weights of the consumers require."""
    uses = dim.consumers.of(dim.input.value)
    sizes = (required_size(use, dim.input.value, dim.axis) for use in uses)
    return next((size for size in sizes if size is not None), None)


def _patched(dim: OpenDim, _found: Found) -> int | None:
    """The side of images whose patches have stored positions."""
    uses = dim.consumers.of(dim.input.value) if len(dim.dims) >= IMAGE_RANK else ()
    sides = (required_side(use, dim.input.value, dim.axis, dim.consumers) for use in uses)
    return next((side for side in sides if side is not None), None)


_NAMED = (
    ("past cache", PAST),
    ("batch bs n b", BATCH),
    ("channel channels c", CHANNELS),
    ("height width h w", SIDE),
    ("frame frames time t", SIDE),
    ("seq sequence len length tokens text src tgt source target s l", SEQUENCE),
)
"""Words of a symbol, and the size that they suggest; the first match counts."""


def _named(dim: OpenDim, _found: Found) -> int | None:
    words = name_words(dim.symbol or "")
    if _is_derived(dim) or (_is_audio(dim) and words & {"seq", "sequence", "len", "length"}):
        return None
    if dim.is_float and dim.axis > 0 and words & _AUDIO:
        return SAMPLES
    size = next((size for known, size in _NAMED if words & set(known.split())), None)
    return dim.consumers.batch or size if size == BATCH else size


_AUDIO = {"sample", "samples", "audio", "wave", "waveform", "signal"}


def _is_derived(dim: OpenDim) -> bool:
    """Whether it follows from other sizes: a formula, or the length of past and new tokens together."""
    symbol = dim.symbol or ""
    return is_formula(symbol) or "total" in name_words(symbol) or _covers_past(dim)


def _covers_past(dim: OpenDim) -> bool:
    """A mask over tokens covers those of the past too, unless another input has the same symbol."""
    over_tokens = dim.axis == 1 and len(dim.dims) == 2
    return over_tokens and dim.is_unique and "mask" in name_words(dim.input.name)


def _batch(dim: OpenDim, found: Found) -> int | None:
    """An unnamed batch dimension has the size of another one, named or not."""
    if dim.axis != 0 and not _is_state_batch(dim):
        return None
    sizes = (size for key, size in found.items() if _is_batch(key))
    return next(sizes, dim.consumers.batch or BATCH)


def _is_state_batch(dim: OpenDim) -> bool:
    """The state of a recurrent layer is [directions, batch, hidden]."""
    if len(dim.dims) != 3 or dim.axis != 1:
        return False
    return any(use.key in STATE_INPUTS for use in dim.consumers.of(dim.input.value))


def _is_batch(key: Key) -> bool:
    return "batch" in name_words(key) if isinstance(key, str) else key[1] == 0


def _positional(dim: OpenDim, _found: Found) -> int | None:
    """The usual size for the position of the axis and the rank of the input."""
    if _is_derived(dim):
        return None
    if _is_past_input(dim.input) and dim.axis == 2:
        return PAST
    if _is_side(dim):
        return SIDE
    if len(dim.dims) >= 4 and dim.axis == 1:
        return CHANNELS
    return WINDOW if _is_audio(dim) else SEQUENCE


def _is_side(dim: OpenDim) -> bool:
    rank = len(dim.dims)
    last = rank - 1 if rank and dim.dims[-1] in (1, 3) else rank
    return rank >= 4 and dim.is_float and last - 2 <= dim.axis < last


def _is_audio(dim: OpenDim) -> bool:
    """A waveform is [batch, sample] or [batch, 1, sample]."""
    return dim.is_float and dim.axis == len(dim.dims) - 1 and dim.dims[1:-1] in ((), (1,), (2,))


def _derived(dim: OpenDim, found: Found) -> int | None:
    symbol = dim.symbol or ""
    if is_formula(symbol):
        size = evaluate(symbol, {key: size for key, size in found.items() if isinstance(key, str)})
        return SEQUENCE if size is None else size
    pasts = (size_of(other, 2, found, PAST) for other in dim.inputs if _is_past_input(other))
    tokens = (size_of(other, 1, found, SEQUENCE) for other in dim.inputs if _is_tokens(other))
    return next(pasts, 0) + next(tokens, SEQUENCE)


def _is_past_input(declared: Input) -> bool:
    return bool(name_words(declared.name) & {"past", "cache"}) and len(declared.dims or ()) == 4


def _is_tokens(declared: Input) -> bool:
    """Ids or their embeddings: [batch, token] or [batch, token, embedding]."""
    words = name_words(declared.name)
    ids = words & {"ids", "tokens", "embeds"} and not words & {"type", "position", "encoder"}
    return bool(ids) and len(declared.dims or ()) in (2, 3)


RULES: tuple[Callable[[OpenDim, Found], int | None], ...] = (
    _required,
    _patched,
    _named,
    _batch,
    _positional,
    _derived,
)
"""From certain to likely; each rule is applied to all dimensions before the next one."""
