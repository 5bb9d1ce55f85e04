"""Values of synthetic inputs, by rules on their names and on the node inputs that they reach; the first
applicable rule decides.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.bounds import given
from amp_rewrite.model.constants import stored_as
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.operators.record import Role, Trait
from amp_rewrite.running.inputs.consumers import Consumers, NodeInput, Shape, kept
from amp_rewrite.running.inputs.declared_inputs import Input, Structure
from amp_rewrite.running.inputs.sizes import AUDIO, CHANNELS, name_words


class ImageRange(enum.Enum):
    """The range of an image's values."""

    UNIT = "0..1"
    BYTES = "0..255"

    @property
    def most(self) -> float:
        """The largest value; the smallest is 0."""
        return 1.0 if self is ImageRange.UNIT else 255.0


BRANCHES = 2
"""The branches of an If."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input to synthesise: its shape, the node inputs that it reaches, and its random number generator.

    `all_shapes` has the shapes of all inputs of the model, `default_images` is the range of images if the
    graph implies none, `declared` the range that the user declared, `sample` the index of the sample.
    """

    input: Input
    shape: Shape
    uses: tuple[NodeInput, ...]
    all_shapes: Mapping[ir.Value, Shape]
    consumers: Consumers
    random: np.random.Generator = field(default_factory=np.random.default_rng)
    default_images: ImageRange = ImageRange.UNIT
    declared: tuple[float, float] | None = None
    sample: int = 0

    @property
    def dtype(self) -> ir.DataType:
        """The element type."""
        return self.input.dtype or ir.DataType.UNDEFINED

    @property
    def words(self) -> frozenset[str]:
        """The words of the input's name."""
        return name_words(self.input.name)

    @property
    def length(self) -> int:
        """The size of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def is_single(self) -> bool:
        """True if it has exactly one element."""
        return all(size == 1 for size in self.shape)

    @property
    def others(self) -> list[Shape]:
        """The shapes of the other inputs."""
        return [shape for value, shape in self.all_shapes.items() if value is not self.input.value]

    @property
    def chooses(self) -> bool:
        """True if it is the condition of an If."""
        return self.dtype == ir.DataType.BOOL and any(use.key == ("If", 0) for use in self.uses)

    def keeping(self) -> int:
        """Return the value of a mask that keeps everything."""
        return kept(self.input.value, self.consumers)

    def uniform(self, low: float, high: float) -> NDArray[Any]:
        """Return uniformly distributed random numbers."""
        return self.random.uniform(low, high, self.shape)

    def reaches(self, *roles: Role) -> bool:
        """Return whether it reaches a node input with one of these roles, directly or moved and cast."""
        return any(use.role in roles for use in self.uses)

    def shape_of(self, value: ir.Value | None) -> Shape:
        """Return the shape of another value, also through Cast and DequantizeLinear; empty if unknown."""
        if value is None or value in self.all_shapes:
            return () if value is None else self.all_shapes[value]
        constant = stored_as(value)
        if constant is not None:
            return tuple(constant.shape.numpy())
        if value.shape is not None and value.shape.is_static():
            return tuple(value.shape.numpy())
        node = value.producer()
        passes = node is not None and node.op_type in ("Cast", "DequantizeLinear", "Identity")
        return self.shape_of(node.inputs[0]) if node is not None and passes else ()


Values = NDArray[Any] | float | str
"""Values of an input, or the one of all its elements."""


def is_supported(dtype: ir.DataType) -> bool:
    """Return whether values of an element type can be synthesised."""
    is_number = dtype.is_integer() or dtype.is_floating_point()
    return is_number or dtype in (ir.DataType.BOOL, ir.DataType.STRING)


def tensor(spec: InputSpec) -> NDArray[Any]:
    """Return the values of an input, or of one element of a sequence, in its type."""
    return np.full(spec.shape, _values(spec)).astype(spec.dtype.numpy())


def _values(spec: InputSpec) -> Values:
    if spec.dtype == ir.DataType.STRING:
        return "hello world"
    if spec.dtype == ir.DataType.BOOL:
        return spec.sample % BRANCHES == 0 if spec.chooses else spec.keeping()
    if not spec.dtype.is_integer():
        return _floats(spec)
    values = next((found for rule in _INTEGERS if (found := rule(spec)) is not None), None)
    return _small(spec) if values is None else values


def _is_past(name: str, shape: Shape) -> bool:
    """True if it is state from previous steps, by its name; caches of cosine tables have fewer axes."""
    return bool(name_words(name) & {"past", "cache"}) and len(shape) >= 3


def _stored_number(value: ir.Value | None) -> int | None:
    """Return the only element of a constant; None for other values."""
    constant = stored_as(value)
    return None if constant is None or constant.size != 1 else int(np.ravel(constant.numpy())[0])


# Integers: ids within their tables, positions, masks, lengths and operands that determine shapes.

SIDE = 4
"""The height and width in a synthetic shape: small, but enough to compute with."""
TRIP_COUNT = 3
"""The number of iterations of a loop whose trip count is an input."""


def _by_name(spec: InputSpec) -> Values | None:
    """Return ascending positions that continue the past, modulo the size of their table; 0 for token types
    and the past, and what keeps everything for a mask.
    """
    if spec.words & {"position", "positions", "pos"}:
        pasts = (s[2] for v, s in spec.all_shapes.items() if len(s) == 4 and _is_past(v.name or "", s))
        past, last = max(pasts, default=0), spec.shape[-1] if spec.shape else 1
        ascending = np.arange(past, past + last) % (_bound(spec) or past + last or 1)
        return ascending if spec.shape else ascending[0]
    if spec.words >= {"token", "type"} or "segment" in spec.words or _is_past(spec.input.name, spec.shape):
        return 0
    return spec.keeping() if "mask" in spec.words else None


def _index(spec: InputSpec) -> Values | None:
    bound = _bound(spec)
    return None if bound is None else spec.random.integers(0, max(bound, 1), spec.shape)


def _bound(spec: InputSpec) -> int | None:
    """Return the number of entries of the smallest table that the input indexes; None if it indexes none."""
    bounds = (_entries(spec, use) for use in spec.uses)
    return min((size for size in bounds if size is not None), default=None)


def _entries(spec: InputSpec, use: NodeInput) -> int | None:
    """Return the number of entries that this use indexes, 1 if it is unknown; an index tuple must be valid in
    every axis.
    """
    if use.key == ("OneHot", 0):
        return _stored_number(use.input_at(1))
    if use.role is not Role.INDEX:
        return None
    shape = spec.shape_of(use.input_at(use.record.tables.get(use.index, 0)))
    if use.operator in ("GatherND", "ScatterND"):
        return min(shape, default=1)
    axis = use.attribute("axis", use.attribute("gather_axis"))
    return shape[axis] if -len(shape) <= axis < len(shape) else 1


def _compared(spec: InputSpec) -> Values | None:
    """Return the constant that the input is compared with, such as a sampling rate; 0 and 1 are Booleans. A
    mask of several axes keeps everything.
    """
    others = (use.input_at(1 - use.index) for use in spec.uses if use.operator == "Equal")
    numbers = (number for other in others if (number := _stored_number(other)) not in (None, 0, 1))
    masks = len(spec.shape) > 1 and any(use.key in _MASKING for use in spec.uses)
    return next(numbers, spec.keeping() if masks else None)


_MASKING = frozenset((("Sub", 1), ("Equal", 0), ("Equal", 1), ("Where", 0), ("Not", 0)))
"""The node inputs that masks of several axes have."""


def _by_role(spec: InputSpec) -> Values | None:
    """Return the numbers for the first operator to which the input is a length, a count or a shape.

    A single number may be moved on its way; of several, only a part may arrive. If the length of the input
    differs from that of the numbers, all elements are their minimum.
    """
    for use in spec.uses:
        role = Role.COUNT if use.record.traits & Trait.ORDERS else use.role
        data = spec.shape_of(use.input_at(0))
        numbers = _NUMBERS[role](spec, use, data) if role in _NUMBERS else ()
        is_whole = spec.is_single or use.input_at(use.index) is spec.input.value
        if numbers and (is_whole or len(numbers) == 1):
            return np.array(numbers) if spec.shape == (len(numbers),) else min(numbers)
    others = [shape for shape in spec.others if len(shape) > 1]
    is_length = spec.words & {"len", "lens", "length", "lengths"}
    return others[0][1] if is_length and others else None


_NUMBERS: Mapping[Role | None, Callable[[InputSpec, NodeInput, Shape], Sequence[int]]] = {
    Role.LENGTH: lambda _spec, use, data: data[use.attribute("time_axis") :][:1],
    Role.COUNT: lambda spec, _use, _data: [TRIP_COUNT] * spec.is_single,
    Role.SIZES: lambda _spec, _use, data: [*data[:2], *(2 * size for size in data[2:])],
    Role.SHAPE: lambda spec, _use, _data: [-1, *[1] * (spec.length - 1)],
    Role.ORIGIN: lambda spec, _use, _data: [0] * spec.length,
    Role.END: lambda spec, _use, data: [max(data)] * spec.length if data else (),
    Role.AXES: lambda spec, _use, _data: range(spec.length),
}
"""Valid integers by the role of what reads them, and the shape of its data; empty if that is unknown. An end
lies behind all elements, so that nothing is cut off.
"""


def _small(spec: InputSpec) -> Values:
    """Return a shape, by the name; 1 for a divisor; random bytes; and 0 and 1 for all others."""
    if spec.words & {"size", "sizes", "shape"} and len(spec.shape) == 1:
        batch = next((shape[0] for shape in spec.others if shape), 1)
        return np.array([batch, CHANNELS, *[SIDE] * spec.length][: spec.length])
    if spec.reaches(Role.DIVISOR) or len(spec.shape) <= 1:
        return 1
    if spec.dtype in (ir.DataType.UINT8, ir.DataType.INT8):
        limits = np.iinfo(spec.dtype.numpy())
        return spec.random.integers(limits.min, limits.max + 1, spec.shape)
    return spec.random.integers(0, 2, spec.shape)


_INTEGERS = (_by_name, _index, _compared, _by_role)


# Floats: normally distributed, except for masks, images, positive operands and declared ranges.

_POSITIVE = (0.1, 1.0)
_DOMAINS = (
    ((Role.ABOVE_ONE,), (1.1, 2.0)),
    ((Role.SHARE,), (0.1, 0.9)),
    ((Role.RADICAND, Role.LOGARITHM, Role.DIVISOR), _POSITIVE),
)
"""Bounds within restricted domains, the narrowest first."""


def _floats(spec: InputSpec) -> Values:
    values = _constrained(spec)
    if values is not None:
        return values
    if given.is_image(spec.input.value, spec.shape):
        return spec.uniform(0.0, (stated_range(spec) or spec.default_images).most)
    return _voice(spec.shape, spec.random) if _is_audio(spec) else spec.random.standard_normal(spec.shape)


def _constrained(spec: InputSpec) -> Values | None:
    """Return the values of a mask or of scales, numbers in the domain of the functions that they or their
    sums reach, or in the declared range; None if nothing constrains them.

    A declared range that exceeds that of half counts for nothing, as such values stay float32.
    """
    mask = _mask(spec)
    if mask is not None:
        return mask
    if spec.reaches(Role.SCALE) and len(spec.shape) == 1:
        return np.where(np.arange(spec.length) < 2, 1.0, 2.0)  # not of batch and channels
    bounds = next((bounds for roles, bounds in _DOMAINS if spec.reaches(*roles)), None)
    if bounds is None and any(_needs_positive(spec.consumers, use, _MOST_SUMS) for use in spec.uses):
        bounds = _POSITIVE
    if bounds is None and spec.declared and max(map(abs, spec.declared)) <= FLOAT16.largest:
        bounds = spec.declared
    return None if bounds is None else spec.uniform(*bounds)


def _mask(spec: InputSpec) -> int | None:
    """Return 0 for the past and for an additive softmax mask, and what keeps everything for other masks."""
    attended = (use for use in spec.uses if use.record.traits & Trait.MULTIPLIES)
    if _is_past(spec.input.name, spec.shape) or any(use.role is Role.SCORES for use in attended):
        return 0
    if "mask" not in spec.words:
        return None
    sums = (use.node.outputs[0] for use in spec.uses if use.operator == "Add")
    behind = (use for total in sums for use in spec.consumers.of(total))
    return 0 if any(use.operator == "Softmax" for use in behind) else spec.keeping()


_MOST_SUMS = 4
"""The most chained sums: the degrees of an adjacency matrix are one or two."""
_FEW = 1 << 16
"""The most weights of a product that counts as a sum; a layer has more."""


def _needs_positive(consumers: Consumers, use: NodeInput, depth: int) -> bool:
    """Return whether the operand of this use, or a sum of it, is a radicand or a divisor."""
    if use.role in (Role.RADICAND, Role.LOGARITHM):
        return True
    if use.role is Role.BASE:
        exponent = stored_as(use.input_at(1))
        return exponent is None or bool(np.any(exponent.numpy() % 1) or np.any(exponent.numpy() < 0))
    if not depth or not _is_added_up(use):
        return False
    sums = consumers.of(use.node.outputs[0])
    is_reduced = use.operator != "Add"
    divides = is_reduced and any(after.role is Role.DIVISOR for after in sums)
    return divides or any(_needs_positive(consumers, after, depth - 1) for after in sums)


def _is_added_up(use: NodeInput) -> bool:
    """Return whether a node sums this operand, alone or with others, without negative weights."""
    if use.operator == "MatMul":
        weights = stored_as(use.input_at(1 - use.index))
        return weights is not None and weights.size <= _FEW and bool(np.all(weights.numpy() >= 0))
    if use.operator == "Einsum":
        return len(use.node.inputs) == 1
    is_reduced = use.record.traits & Trait.AVERAGES and not use.record.traits & Trait.KEEPS_RANK
    return use.operator == "Add" or (bool(is_reduced) and use.index == 0)


def _is_audio(spec: InputSpec) -> bool:
    """Return whether it is a waveform: by its name or size, or read by an STFT or a filter of one channel."""
    sizes = sorted(spec.shape)
    if not sizes or len(sizes) > _AUDIO_RANK or math.prod(sizes[:-1]) > _MOST_WAVES or sizes[-1] < _SHORTEST:
        return False
    filters = (use.stored_shape(1) for use in spec.uses if use.key == ("Conv", 0))
    is_read = any(len(shape) == _AUDIO_RANK and shape[1] == 1 for shape in filters)
    is_long = len(sizes) == _AUDIO_RANK and sizes[-1] >= _LONG
    return is_read or is_long or bool(spec.words & _WAVES) or any(use.key == ("STFT", 0) for use in spec.uses)


_AUDIO_RANK, _MOST_WAVES, _SHORTEST, _LONG = 3, 8, 256, 4096
"""[batch, channel, sample]: a few recordings of at least 16 ms; from a quarter of a second on nothing else is
as long in one channel.
"""
_WAVES = AUDIO | {"pcm", "speech", "wav"}

# A voice, as noise hides what recordings show: silence, harmonics, onsets.

_RATE = 16_000
"""The usual sampling rate of speech models."""
_PITCH, _MELODY, _SYLLABLES = 120.0, 2.0, 3.0
"""In Hz: the fundamental of a low voice, how often it moves by a quarter, and syllables."""
_HARMONICS = 20
_LOUD, _NOISE = 0.2, 1e-3
"""Amplitudes: of the fundamental, and of noise, which silence has too (-60 dB)."""


def _voice(shape: Shape, random: np.random.Generator) -> NDArray[Any]:
    """Return harmonics under an envelope, with noise and silence, along the longest axis."""
    axis = int(np.argmax(shape))
    seconds = np.arange(shape[axis]) / _RATE
    pitch = _PITCH * (1 + np.sin(2 * np.pi * _MELODY * seconds + random.uniform(0, 2 * np.pi)) / 4)
    phase = 2 * np.pi * np.cumsum(pitch) / _RATE
    tone = sum(np.sin(number * phase) / number for number in range(1, _HARMONICS + 1))
    envelope = np.maximum(np.cos(2 * np.pi * _SYLLABLES * seconds), 0)
    along = np.reshape(_LOUD * envelope * tone, [size if at == axis else 1 for at, size in enumerate(shape)])
    return along + _NOISE * random.standard_normal(shape)


def is_image(spec: InputSpec) -> bool:
    """Return whether an input is synthesised as an image."""
    is_float = spec.dtype.is_floating_point()
    return is_float and given.is_image(spec.input.value, spec.shape) and _constrained(spec) is None


def is_free(spec: InputSpec) -> bool:
    """Return whether a float tensor of several elements has unknown magnitude: audio, or one that is
    normally distributed; its name suggests no normalised data; and it is no recurrent state.
    """
    is_array = spec.dtype.is_floating_point() and spec.input.structure is Structure.TENSOR
    if not is_array or spec.is_single or spec.words & _NORMALISED or spec.reaches(Role.STATE):
        return False
    return not given.is_image(spec.input.value, spec.shape) and _constrained(spec) is None


_NORMALISED = frozenset(("pixel", "latent", "latents", "noise"))


def stated_range(spec: InputSpec) -> ImageRange | None:
    """Return the range of an image implied by the first constant that the graph subtracts or scales by; None
    if there is none.

    A mean, a divisor or a bound of more than two is for 0..255, and so is a factor of less than 0.1:
    1/255, 1/127.5 and the inverse of its usual standard deviations (57 to 59) are.
    """
    for use in spec.uses:
        constant = _beside_image(use)
        size = (
            0.0 if constant is None else float(np.abs(constant.numpy().astype(np.float64)).max(initial=0.0))
        )
        if size and np.isfinite(size):
            is_bytes = size < 0.1 if use.operator == "Mul" else size > 2.0
            return ImageRange.BYTES if is_bytes else ImageRange.UNIT
    return None


def _beside_image(use: NodeInput) -> ir.TensorProtocol | None:
    """Return the constant that a node subtracts from an image, scales it by or bounds it with."""
    at: int | None = None
    is_binary = len(use.node.inputs) == 2 and (
        use.record.traits & (Trait.ADDS | Trait.SCALES) or use.operator == "Min"
    )
    if is_binary:
        at = None if use.role is Role.DIVISOR else 1 - use.index
    elif use.index == 0:
        at = {"BatchNormalization": 3, "Clip": 2}.get(use.operator)
    return None if at is None else stored_as(use.input_at(at))
