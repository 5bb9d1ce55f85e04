"""Sizes of open dimensions: required by weights, suggested by names, usual for the position."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import FeedError
from amp_rewrite.operators.record import Role, Trait
from amp_rewrite.policy.open_sizes import refuse_wrong_sizes
from amp_rewrite.running.inputs.consumers import Consumers, NodeInput, Shape
from amp_rewrite.running.inputs.declared_inputs import Dim, Input

# Sizes that operators require of their inputs by the shapes of their weights, states and positions.

_SPATIAL = 2
"""The first spatial axis of an image."""
_MOST_EXTRA_TOKENS = 2
"""Positions that belong to no patch: of a class token, and of a distillation token (DeiT)."""


def _required(use: NodeInput, axis: int, rank: int, consumers: Consumers) -> int | None:
    """Return the size that the weight of a node, or a stored table of positions, requires of an axis of its
    first input, which has this rank; None where nothing does.
    """
    weight = use.stored_shape(1)
    if use.index or len(weight) < 2:
        return None
    if use.operator == "Conv" and axis:
        is_channel = axis == 1
        return weight[1] * use.attribute("group", 1) if is_channel else _side(axis, use, weight, consumers)
    if use.record.traits & Trait.RECURRENT:
        return weight[2] if axis == 2 else None
    transposed = {"MatMul": (0, 0), "Gemm": (use.attribute("transA"), use.attribute("transB"))}
    if use.operator not in transposed:
        return None
    first, second = transposed[use.operator]
    return weight[-1 if second else -2] if axis == rank - 1 - first else None


def _side(axis: int, use: NodeInput, weight: Shape, consumers: Consumers) -> int | None:
    """Return the side of square images for a convolution of patches with a stored table of positions."""
    strides, pads = (use.node.attributes.get_ints(name, ()) for name in ("strides", "pads"))
    if len(weight) < IMAGE_RANK or tuple(strides) != weight[_SPATIAL:] or any(pads):
        return None
    for after in consumers.of(use.node.outputs[0]):
        table = after.stored_shape(1 - after.index) if after.operator == "Add" else ()
        if len(table) > 1 and table[-1] == weight[0]:
            counts = range(table[-2], table[-2] - _MOST_EXTRA_TOKENS - 1, -1)
            roots = (math.isqrt(count) for count in counts if count > 0 and math.isqrt(count) ** 2 == count)
            return next((root * weight[axis] for root in roots), None)
    return None


# Sizes suggested by the words of a name and by the position of an axis.

BATCH, CHANNELS, SEQUENCE, PAST = 1, 3, 16, 8
SIDE = 64
"""Height and width of images: divisible by all usual strides."""
IMAGE_RANK = 4
SAMPLES, WINDOW = 16_000, 512
"""One second of audio at the usual sampling rate of speech models, and a usual window of it (32 ms)."""

_NAMED = (
    ("past cache", PAST),
    ("batch bs n b", BATCH),
    ("channel channels c", CHANNELS),
    ("height width h w", SIDE),
    ("frame frames time t", SIDE),
    ("seq sequence len length tokens text src tgt source target s l", SEQUENCE),
)
"""Words of a symbol, and the size that they suggest; the first match counts."""
AUDIO = {"sample", "samples", "audio", "wave", "waveform", "signal"}


def name_words(text: str) -> frozenset[str]:
    """Split a name: `past_seqLen.1` has past, seq and len; a single letter counts only on its own."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)
    return frozenset(part.lower() for part in parts if len(part) > 1 or part == text)


def _is_formula(symbol: str) -> bool:
    """True if a symbol is a formula of others, such as `past + seq` or `2*s0`; `batch-size` is a name."""
    return bool(re.search(r"[+*]|//|\s[-/]\s", symbol))


def _evaluate(formula: str, sizes: Mapping[str, int]) -> int:
    """Evaluate a formula to at least 0; SEQUENCE if it is malformed or has a symbol without a size."""
    if "**" in formula:  # a name may ask for 9**9**9
        return SEQUENCE
    try:
        size = ir.SymbolicDim(re.sub(r"(?<!/)/(?!/)", "//", formula)).evaluate(sizes)
    except ValueError:
        return SEQUENCE
    return max(0, size) if isinstance(size, int) else SEQUENCE


@dataclass(frozen=True, slots=True)
class _OpenDim:
    """An axis of an input without a fixed size, and its symbol if it has one."""

    input: Input
    axis: int
    symbol: str

    @property
    def label(self) -> str:
        """The dimension in the form `input:axis`."""
        return f"{self.input.name}:{self.axis}"

    @property
    def key(self) -> str:
        """The key that is the same for all dimensions of one size."""
        return self.symbol or self.label

    @property
    def dims(self) -> tuple[Dim, ...]:
        """All dimensions of the input."""
        return self.input.dims or ()

    @property
    def is_float(self) -> bool:
        """True if the input is floating-point."""
        return self.input.dtype is not None and self.input.dtype.is_floating_point()

    @property
    def is_batch(self) -> bool:
        """True if it is a batch by its name, or if unnamed by its position."""
        return "batch" in name_words(self.symbol) if self.symbol else self.axis == 0

    @property
    def is_side(self) -> bool:
        """True if it is the height or width of an image, with its channels first or last."""
        rank = len(self.dims)
        last = rank - 1 if rank and self.dims[-1] in (1, 3) else rank
        return rank >= IMAGE_RANK and self.is_float and last - 2 <= self.axis < last

    @property
    def is_audio(self) -> bool:
        """True if it is the last axis of a waveform: [batch, sample] or [batch, 1, sample]."""
        is_last = self.axis == len(self.dims) - 1
        return self.is_float and is_last and self.dims[1:-1] in ((), (1,), (2,))


class Sizing:
    """The sizes of the open dimensions of inputs, by symbol or `input:axis`; a symbol has one everywhere.

    `lengths` are those that the user and the weights leave open, without those of batches, channels and the
    sides of images, and without those that follow from others.
    `dims` gives sizes by symbol or as `input:axis`. Raises FeedError if it has a name that is not open, or
    two sizes for one axis.
    """

    def __init__(self, inputs: Sequence[Input], dims: Mapping[str, int], consumers: Consumers) -> None:
        self._inputs = inputs
        self._consumers = consumers
        self._open = [
            _OpenDim(declared, axis, dim or "")
            for declared in inputs
            for axis, dim in enumerate(declared.dims or ())
            if not isinstance(dim, int)
        ]
        refuse_wrong_sizes(dims, {d.label: d.symbol or None for d in self._open}, FeedError)
        self.lengths: dict[str, int] = {}
        self._sizes = {d.key: dims[d.label] for d in self._open if d.label in dims} | dict(dims)
        # from certain to likely; each rule is applied to all dimensions before the next one
        for rule in (self._required, self._named, self._batch, self._positional, self._derived):
            for dim in self._open:
                size = None if dim.key in self._sizes else rule(dim)
                if size is not None:
                    self._sizes[dim.key] = size
                    if rule in (self._named, self._positional) and not dim.is_side and size > CHANNELS:
                        self.lengths[dim.key] = size

    def shape(self, declared: Input) -> Shape:
        """Return the shape of an input of known rank."""
        return tuple(self._size(declared, axis) for axis in range(len(declared.dims or ())))

    def open_sizes(self) -> dict[str, int]:
        """Return the size of each open dimension, by its name in `dims`."""
        return {dim.key: self._size(dim.input, dim.axis) for dim in self._open}

    def _size(self, declared: Input, axis: int, default: int = 1) -> int:
        dim = (declared.dims or ())[axis]
        if isinstance(dim, int):
            return dim
        return self._sizes.get(f"{declared.name}:{axis}", self._sizes.get(dim or "", default))

    def _required(self, dim: _OpenDim) -> int | None:
        """Return the size that weights, states and positions of the consumers require."""
        value = dim.input.value
        uses = ((use, use.axis_of(value, dim.axis)) for use in self._consumers.of(value))
        sizes = (
            _required(use, axis, len(dim.dims), self._consumers) for use, axis in uses if axis is not None
        )
        return next((size for size in sizes if size is not None), None)

    def _named(self, dim: _OpenDim) -> int | None:
        """Return the size that the words of its symbol suggest."""
        words = name_words(dim.symbol)
        if self._is_derived(dim) or (dim.is_audio and words & {"seq", "sequence", "len", "length"}):
            return None
        if dim.is_float and dim.axis > 0 and words & AUDIO:
            return SAMPLES
        return next((size for vocabulary, size in _NAMED if words & set(vocabulary.split())), None)

    def _is_derived(self, dim: _OpenDim) -> bool:
        """True if it follows from other sizes: a formula, or the length of past and new tokens together,
        which a mask over tokens covers too, unless another input has the same symbol.
        """
        others = (other for other in self._inputs if other is not dim.input)
        is_unique = not dim.symbol or all(dim.symbol not in (other.dims or ()) for other in others)
        is_mask = "mask" in name_words(dim.input.name) and dim.axis == 1 and len(dim.dims) == 2
        return _is_formula(dim.symbol) or "total" in name_words(dim.symbol) or (is_mask and is_unique)

    def _batch(self, dim: _OpenDim) -> int | None:
        """Return the batch size of another input for an unnamed second axis of a recurrent state."""
        uses = self._consumers.of(dim.input.value) if len(dim.dims) == 3 and dim.axis == 1 else ()
        if dim.axis and not any(use.role is Role.STATE for use in uses):
            return None
        batches = (self._sizes[d.key] for d in self._open if d.is_batch and d.key in self._sizes)
        return next(batches, BATCH)

    def _positional(self, dim: _OpenDim) -> int | None:
        """Return the usual size for the position of the axis and the rank of the input."""
        if self._is_derived(dim):
            return None
        if _is_past(dim.input) and dim.axis == 2:
            return PAST
        if dim.is_side:
            return SIDE
        if len(dim.dims) >= IMAGE_RANK and dim.axis == 1:
            return CHANNELS
        return WINDOW if dim.is_audio else SEQUENCE

    def _derived(self, dim: _OpenDim) -> int:
        """Return the value of a formula, else the sum of past and new tokens."""
        if _is_formula(dim.symbol):
            return _evaluate(dim.symbol, self._sizes)
        pasts = (self._size(other, 2, PAST) for other in self._inputs if _is_past(other))
        tokens = (self._size(other, 1, SEQUENCE) for other in self._inputs if _is_tokens(other))
        return next(pasts, 0) + next(tokens, SEQUENCE)


def _is_past(declared: Input) -> bool:
    return bool(name_words(declared.name) & {"past", "cache"}) and len(declared.dims or ()) == 4


def _is_tokens(declared: Input) -> bool:
    """True if an input holds ids or their embeddings: [batch, token] or [batch, token, embedding]."""
    words = name_words(declared.name)
    ids = words & {"ids", "tokens", "embeds"} and not words & {"type", "position", "encoder"}
    return bool(ids) and len(declared.dims or ()) in (2, 3)
