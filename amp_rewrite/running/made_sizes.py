"""Sizes for the dimensions that a model leaves open: asked for, demanded by its weights, or sensible."""

from __future__ import annotations

import ast
import difflib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.errors import FeedError
from amp_rewrite.running.demands import BATCH, demanded
from amp_rewrite.running.destinations import Destinations
from amp_rewrite.running.model_inputs import Input

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
    """An open dimension: where it stands."""

    given: Input
    axis: int
    symbol: str | None
    destinations: Destinations

    @property
    def key(self) -> Key:
        """What has one size wherever it stands."""
        return self.symbol if self.symbol is not None else (self.given.name, self.axis)

    @property
    def spot(self) -> str:
        """The place as `--dim` takes it, name or none."""
        return f"{self.given.name}:{self.axis}"

    @property
    def dims(self) -> Sequence[object]:
        """All dimensions of the input."""
        return self.given.dims or ()

    def is_(self, dtype: str) -> bool:
        """Whether the input holds numbers of that kind: f, i, or others of NumPy's."""
        return self.given.dtype is not None and _KINDS[dtype](self.given.dtype)


_KINDS: dict[str, Callable[[ir.DataType], bool]] = {
    "f": lambda dtype: dtype.is_floating_point(),
    "i": lambda dtype: dtype.is_integer(),
}


def shapes(inputs: Sequence[Input], dims: Mapping[str, int], destinations: Destinations) -> dict[str, Shape]:
    """The shape of every input whose rank is known, by name; a symbol has one size everywhere.

    `dims` gives sizes by symbol or as `input:axis`. Raises FeedError when it names what is not open.
    """
    places = list(_places(inputs, destinations))
    _refuse_unknown(dims, places)
    asked = {p.key: size for p in places if p.symbol and (size := dims.get(p.symbol)) is not None}
    spots = {(p.given.name, p.axis): dims[p.spot] for p in places if p.spot in dims}
    found = {**asked, **{p.key: spots[p.given.name, p.axis] for p in places if p.spot in dims}}
    for rule in _RULES:
        for place in places:
            size = None if place.key in found else rule(place, found)
            if size is not None:
                found[place.key] = size
    return {
        given.name: tuple(
            dim if isinstance(dim, int) else spots.get((given.name, i), found[dim or (given.name, i)])
            for i, dim in enumerate(given.dims)
        )
        for given in inputs
        if given.dims is not None
    }


def _places(inputs: Sequence[Input], destinations: Destinations) -> Iterator[Place]:
    for given in inputs:
        for axis, dim in enumerate(given.dims or ()):
            if not isinstance(dim, int):
                yield Place(given, axis, dim, destinations)


def _refuse_unknown(dims: Mapping[str, int], places: Sequence[Place]) -> None:
    known = dict.fromkeys(p.symbol for p in places if p.symbol)
    known |= dict.fromkeys(p.spot for p in places)
    for name in dims:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            offer = f"did you mean {near[0]}?" if near else f"it leaves open {', '.join(known) or 'nothing'}"
            raise FeedError(f"the model has no open dimension '{name}'", remedy=offer)


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
    ("sample samples audio wave waveform signal", SAMPLES),
    ("frame frames time t", SIDE),
    ("seq sequence len length tokens text src tgt source target s l", SEQUENCE),
)
"""Words of a symbol, and the size that they suggest; the first line that knows one counts."""


def _named(place: Place, _found: Found) -> int | None:
    said = words(place.symbol or "")
    if _is_derived(place) or (_is_sound(place) and said & {"seq", "sequence", "len", "length"}):
        return None
    return next((size for known, size in _NAMED if said & set(known.split())), None)


def _is_derived(place: Place) -> bool:
    """Whether other sizes give this one: a sum of symbols, or all tokens, old and new."""
    symbol = place.symbol or ""
    return bool(_FORMULA.search(symbol)) or "total" in words(symbol) or _covers_past(place)


_FORMULA = re.compile(r"[+*]|//|\s[-/]\s")
"""What only a formula has: `batch-size` is a name."""


def _covers_past(place: Place) -> bool:
    """A mask covers the past too; where nothing has a name, its last axis is as long as both."""
    last = place.axis == 1 and len(place.dims) == 2
    return place.symbol is None and last and "mask" in words(place.given.name)


def _positioned(place: Place, _found: Found) -> int | None:
    if _is_derived(place):
        return None
    return next(size for fits, size in _POSITIONS if fits(place))


def _is_past(place: Place) -> bool:
    return bool(words(place.given.name) & {"past", "cache"}) and place.axis == 2


def _is_side(place: Place) -> bool:
    rank = len(place.dims)
    last = rank - 1 if rank and place.dims[-1] in (1, 3) else rank
    return rank >= 4 and place.is_("f") and last - 2 <= place.axis < last


def _is_sound(place: Place) -> bool:
    """A waveform is [batch, sample] or [batch, 1, sample]."""
    return place.is_("f") and place.axis == len(place.dims) - 1 and place.dims[1:-1] in ((), (1,), (2,))


_POSITIONS: tuple[tuple[Callable[[Place], bool], int], ...] = (
    (lambda place: place.axis == 0, BATCH),
    (_is_past, PAST),
    (_is_side, SIDE),
    (lambda place: len(place.dims) >= 4 and place.axis == 1, CHANNELS),
    (_is_sound, WINDOW),
    (lambda _: True, SEQUENCE),
)


def _derived(place: Place, found: Found) -> int | None:
    symbol = place.symbol or ""
    if _FORMULA.search(symbol):
        return _calculated(symbol, found)
    past = next((size for key, size in found.items() if _is_of_past(key)), 0)
    return past + _new_tokens(found)


def _is_of_past(key: Key) -> bool:
    name, axis = (key, 2) if isinstance(key, str) else key
    return bool(words(name) & {"past", "cache"}) and axis == 2


def _new_tokens(found: Found) -> int:
    known = (size for key, size in found.items() if isinstance(key, str) and words(key) & _OF_SEQUENCE)
    ids = (size for key, size in found.items() if not isinstance(key, str) and key[1] == 1)
    return next(known, next(ids, SEQUENCE))


_OF_SEQUENCE = {"seq", "sequence", "tokens", "len", "length"}


def _calculated(text: str, found: Found) -> int:
    """The value of `past + seq`, `2*s0` and the like; SEQUENCE for what is no such thing."""
    try:
        return max(1, _term(ast.parse(text.strip(), mode="eval").body, found))
    except (SyntaxError, KeyError, ZeroDivisionError, AttributeError):
        return SEQUENCE


def _term(term: ast.expr, found: Found) -> int:
    if isinstance(term, ast.BinOp):
        return _OPERATIONS[type(term.op)](_term(term.left, found), _term(term.right, found))
    if isinstance(term, ast.Constant):
        return int(str(term.value))
    return found[ast.unparse(term)]


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}

_RULES: tuple[_Rule, ...] = (_demanded, _named, _positioned, _derived)
"""From what is certain to what is a guess; each sees all dimensions before the next one starts."""
