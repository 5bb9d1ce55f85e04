"""What a result declares of its loss scale, in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.numbered import Numbered

_PREFIX = "amp_rewrite.train."
_KEY = f"{_PREFIX}loss_scale"


@dataclass(frozen=True, slots=True)
class Declared:
    """What a result says of its loss scale: its numbers, the inputs and outputs that hold its state, the
    output that says whether gradients were finite, the stored `powers` of a fixed scale, and the inputs and
    outputs of the state of the model.
    """

    scale: Mapping[str, float]
    state: Mapping[str, Sequence[str]]
    finite: str | None
    powers: Mapping[str, int]
    pairs: Sequence[Sequence[str]]

    @property
    def outputs(self) -> set[str]:
        """The outputs that the scale adds."""
        return {pair[1] for pair in self.state.values()} | ({self.finite} if self.finite else set[str]())


def of(original: Numbered, rewritten: Numbered) -> Declared | None:
    """What the result alone declares; None where it declares nothing, DifferentError for what is no scale."""
    told = _metadata(rewritten)
    if _KEY not in told or _KEY in _metadata(original):
        return None
    try:
        return _read(json.loads(told[_KEY]), json.loads(told.get(f"{_PREFIX}state", "[]")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DifferentError("what it declares of its loss scale cannot be read") from error


def _metadata(model: Numbered) -> dict[str, str]:
    return {prop.key: prop.value for prop in model.proto.metadata_props}


def _read(told: Any, pairs: Any) -> Declared:
    held, scale = told["state"], told["scale"]
    names = [name for name in ("scale", "good_steps") if name in held]
    if len(names) == 1:
        raise ValueError(names)
    numbers = {name: _positive(scale[name]) for name in (("multiplier",) if names else ("value",))}
    if names:
        numbers["increment_period"] = _whole(scale["increment_period"], range(1, 1 << 63))
    finite = None if held["finite"] is None else _text(held["finite"])
    powers = {_text(name): _whole(degree, range(-4, 5)) for name, degree in told["powers"].items()}
    return Declared(
        numbers, {name: _pair(held[name]) for name in names}, finite, powers, [*map(_pair, pairs)]
    )


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(value)
    return value


def _pair(value: Any) -> tuple[str, str]:
    before, after = value
    return _text(before), _text(after)


def _whole(value: Any, allowed: range) -> int:
    if type(value) is not int or value not in allowed:
        raise ValueError(value)
    return value


def _positive(value: Any) -> float:
    """A number that float32 holds, and its reciprocal: what is multiplied by it can be divided again."""
    if type(value) not in (int, float) or not _TINY <= value <= 1 / _TINY:
        raise ValueError(value)
    return float(value)


_TINY = float(np.finfo(np.float32).tiny)
