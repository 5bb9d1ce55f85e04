"""Rules for the sizes of open dimensions: required by weights, suggested by names, usual for the position."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from amp_rewrite.running.inputs import size_formulas
from amp_rewrite.running.inputs.consumers import Consumers
from amp_rewrite.running.inputs.model_inputs import Dim, Input
from amp_rewrite.running.inputs.patch_positions import required_side
from amp_rewrite.running.inputs.recurrent_states import STATE_INPUTS
from amp_rewrite.running.inputs.shape_constraints import required_size

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

Shape = tuple[int, ...]
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
    return size_formulas.is_formula(symbol) or "total" in name_words(symbol) or _covers_past(dim)


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
    if size_formulas.is_formula(symbol):
        size = size_formulas.evaluate(
            symbol, {key: size for key, size in found.items() if isinstance(key, str)}
        )
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
