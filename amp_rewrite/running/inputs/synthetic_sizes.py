"""Sizes for the dimensions that a model leaves open: asked for, demanded by its weights, or sensible."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from amp_rewrite.errors import FeedError
from amp_rewrite.flops.opened import refuse_wrong_sizes
from amp_rewrite.running.inputs import formulas
from amp_rewrite.running.inputs.destinations import Destinations
from amp_rewrite.running.inputs.model_inputs import Dim, Input
from amp_rewrite.running.inputs.shape_constraints import demanded

BATCH = 1
SEQUENCE = 16
PAST = 8
CHANNELS = 3
SIDE = 64
"""Images: every usual stride divides it."""
SAMPLES = 16_000
"""One second of sound at the usual rate of speech models."""
WINDOW = 512
"""Sound that comes in pieces: 32 ms at that rate, a usual window."""

Shape = tuple[int, ...]
Key = str | tuple[str, int]
"""A symbol, or an input's name and an axis where the model has none: these keep to themselves."""


@dataclass(frozen=True, slots=True)
class Place:
    """An open dimension: where it stands, and among which inputs."""

    given: Input
    axis: int
    symbol: str | None
    inputs: Sequence[Input]
    destinations: Destinations

    @property
    def key(self) -> Key:
        """What has one size wherever it stands."""
        return _key(self.given, self.axis)

    @property
    def spot(self) -> str:
        """The place as `--dim` takes it, name or none."""
        return f"{self.given.name}:{self.axis}"

    @property
    def dims(self) -> tuple[Dim, ...]:
        """All dimensions of the input."""
        return self.given.dims or ()

    @property
    def is_float(self) -> bool:
        """Whether the input holds floats."""
        return self.given.dtype is not None and self.given.dtype.is_floating_point()

    @property
    def alone(self) -> bool:
        """Whether no other input has this symbol."""
        others = (given for given in self.inputs if given is not self.given)
        return self.symbol is None or all(self.symbol not in (given.dims or ()) for given in others)


def _key(given: Input, axis: int) -> Key:
    dim = (given.dims or ())[axis]
    return dim if isinstance(dim, str) else (given.name, axis)


def shapes(inputs: Sequence[Input], dims: Mapping[str, int], destinations: Destinations) -> dict[str, Shape]:
    """The shape of every input whose rank is known, by name; a symbol has one size everywhere.

    `dims` gives sizes by symbol or as `input:axis`. Raises FeedError when it names what is not open, or gives
    one axis two sizes.
    """
    places = list(_places(inputs, destinations))
    refuse_wrong_sizes(dims, {p.spot: p.symbol for p in places}, FeedError)
    spots = {(p.given.name, p.axis): dims[p.spot] for p in places if p.spot in dims}
    found: dict[Key, int] = {p.key: dims[p.spot] for p in places if p.spot in dims}
    found |= {symbol: dims[symbol] for p in places if (symbol := p.symbol) and symbol in dims}
    for rule in _RULES:
        for place in places:
            size = None if place.key in found else rule(place, found)
            if size is not None:
                found[place.key] = size
    return {
        given.name: tuple(
            spots.get((given.name, i), _size(given, i, found, 1)) for i in range(len(given.dims))
        )
        for given in inputs
        if given.dims is not None
    }


def open_sizes(
    inputs: Sequence[Input], dims: Mapping[str, int], destinations: Destinations
) -> dict[str, int]:
    """The size of every open dimension in `shapes`, by its name in `dims`."""
    made = shapes(inputs, dims, destinations)
    return {p.symbol or p.spot: made[p.given.name][p.axis] for p in _places(inputs, destinations)}


def _places(inputs: Sequence[Input], destinations: Destinations) -> Iterator[Place]:
    for given in inputs:
        for axis, dim in enumerate(given.dims or ()):
            if not isinstance(dim, int):
                yield Place(given, axis, dim, inputs, destinations)


Found = Mapping[Key, int]
_Rule = Callable[[Place, Found], int | None]


def _demanded(place: Place, _found: Found) -> int | None:
    """The size that the operators which read the input leave no choice about."""
    ports = place.destinations.of(place.given.value)
    made = (demanded(port, place.given.value, place.axis) for port in ports)
    return next((size for size in made if size is not None), None)


def words(text: str) -> frozenset[str]:
    """The words of a name: `past_seqLen.1` has past, seq and len; one letter is a word only on its own."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)
    return frozenset(part.lower() for part in parts if len(part) > 1 or part == text)


_NAMED = (
    ("past cache", PAST),
    ("batch bs n b", BATCH),
    ("channel channels c", CHANNELS),
    ("height width h w", SIDE),
    ("frame frames time t", SIDE),
    ("seq sequence len length tokens text src tgt source target s l", SEQUENCE),
)
"""Words of a symbol, and the size that they suggest; the first line that knows one counts."""


def _named(place: Place, _found: Found) -> int | None:
    said = words(place.symbol or "")
    if _is_derived(place) or (_is_sound(place) and said & {"seq", "sequence", "len", "length"}):
        return None
    if place.is_float and place.axis > 0 and said & _SOUND:
        return SAMPLES
    return next((size for known, size in _NAMED if said & set(known.split())), None)


_SOUND = {"sample", "samples", "audio", "wave", "waveform", "signal"}


def _is_derived(place: Place) -> bool:
    """Whether other sizes give this one: a sum of symbols, or all tokens, old and new."""
    symbol = place.symbol or ""
    return formulas.is_one(symbol) or "total" in words(symbol) or _covers_past(place)


def _covers_past(place: Place) -> bool:
    """A mask over tokens covers those of the past too, unless it is said to be as long as the ids."""
    over_tokens = place.axis == 1 and len(place.dims) == 2
    return over_tokens and place.alone and "mask" in words(place.given.name)


def _batched(place: Place, found: Found) -> int | None:
    """A batch that has no name is as large as another, or as one that has."""
    if place.axis != 0 and not _is_state(place):
        return None
    known = (size for key, size in found.items() if _is_batch(key))
    return next(known, BATCH)


def _is_state(place: Place) -> bool:
    """The state of a recurrent layer is [directions, batch, hidden]."""
    if len(place.dims) != 3 or place.axis != 1:
        return False
    return any(port.place in _STATES for port in place.destinations.of(place.given.value))


_STATES = frozenset((layer, port) for layer in ("LSTM", "GRU", "RNN") for port in (5, 6))


def _is_batch(key: Key) -> bool:
    return "batch" in words(key) if isinstance(key, str) else key[1] == 0


def _positioned(place: Place, _found: Found) -> int | None:
    if _is_derived(place):
        return None
    return next(size for fits, size in _POSITIONS if fits(place))


def _is_past(place: Place) -> bool:
    return _is_past_input(place.given) and place.axis == 2


def _is_side(place: Place) -> bool:
    rank = len(place.dims)
    last = rank - 1 if rank and place.dims[-1] in (1, 3) else rank
    return rank >= 4 and place.is_float and last - 2 <= place.axis < last


def _is_sound(place: Place) -> bool:
    """A waveform is [batch, sample] or [batch, 1, sample]."""
    return place.is_float and place.axis == len(place.dims) - 1 and place.dims[1:-1] in ((), (1,), (2,))


_POSITIONS: tuple[tuple[Callable[[Place], bool], int], ...] = (
    (_is_past, PAST),
    (_is_side, SIDE),
    (lambda place: len(place.dims) >= 4 and place.axis == 1, CHANNELS),
    (_is_sound, WINDOW),
    (lambda _: True, SEQUENCE),
)


def _derived(place: Place, found: Found) -> int | None:
    symbol = place.symbol or ""
    if formulas.is_one(symbol):
        size = formulas.value(symbol, {key: size for key, size in found.items() if isinstance(key, str)})
        return SEQUENCE if size is None else size
    pasts = (_size(given, 2, found, PAST) for given in place.inputs if _is_past_input(given))
    tokens = (_size(given, 1, found, SEQUENCE) for given in place.inputs if _is_tokens(given))
    return next(pasts, 0) + next(tokens, SEQUENCE)


def _size(given: Input, axis: int, found: Found, guess: int) -> int:
    """The size of an axis: the model's, or the one found, or else the guess."""
    dim = (given.dims or ())[axis]
    return dim if isinstance(dim, int) else found.get(_key(given, axis), guess)


def _is_past_input(given: Input) -> bool:
    return bool(words(given.name) & {"past", "cache"}) and len(given.dims or ()) == 4


def _is_tokens(given: Input) -> bool:
    """Ids or their embeddings: [batch, token] or [batch, token, number]."""
    said = words(given.name)
    ids = said & {"ids", "tokens", "embeds"} and not said & {"type", "position", "encoder"}
    return bool(ids) and len(given.dims or ()) in (2, 3)


_RULES: tuple[_Rule, ...] = (_demanded, _named, _batched, _positioned, _derived)
"""From what is certain to what is a guess; each sees all dimensions before the next one starts."""
