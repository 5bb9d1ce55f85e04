"""Inputs and outputs of a model that half cannot hold: rounding one alone moves the outputs too far.

What is computed between them does not matter then: no plan brings the outputs nearer, and only float32 for
these inputs and outputs does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import Half
from amp_rewrite.running import sessions
from amp_rewrite.running.comparison import Runs
from amp_rewrite.running.metrics import is_float


@dataclass(frozen=True, slots=True)
class HalvedPort:
    """An input, or an output, that is half in the result alone and cannot be, and what half that is.

    `largest` is the largest magnitude in it where that is beyond `limit`, the largest number of half; None
    where it fits, and half is too coarse for it.
    """

    name: str
    is_input: bool
    half: str
    limit: float
    largest: float | None = None


IsFar = Callable[[Runs], bool]
"""Whether what stands for the rewritten model's outputs is too far from the original's."""


def misfits(before: Any, after: Any, runs: Runs, half: Half | None, is_far: IsFar) -> tuple[HalvedPort, ...]:
    """The inputs and outputs of a sample which rounding alone makes too far; none where that cannot be said.

    `before` and `after` are the sessions of the two models, `runs` a sample on which they are too far apart.
    """
    if half is None:
        return ()
    outputs = [name for name in _halved(before, after, "outputs") if name in runs.original]
    rounded = {name: _rounded(runs.original[name], half) for name in outputs}
    far = [name for name in outputs if is_far(_replaced(runs, {**runs.original, name: rounded[name]}))]
    found = [_port(name, runs.original[name], half, is_input=False) for name in far]
    names = [name for name in _halved(before, after, "inputs") if name in runs.feeds]
    try:
        found += [
            _port(name, runs.feeds[name], half, is_input=True)
            for name in _far_inputs(before, runs, names, half, is_far)
        ]
    except AmpRewriteError:  # no time may be left
        return tuple(found)
    return tuple(found)


def _halved(before: Any, after: Any, side: str) -> Iterator[str]:
    """The names of the inputs or outputs that are float32 in the first session, and half in the second."""
    pairs = zip(*(getattr(session, f"get_{side}")() for session in (before, after)), strict=True)
    return (was.name for was, now in pairs if was.type == _FLOAT and now.type in _HALF)


_FLOAT = "tensor(float)"
_HALF = frozenset(("tensor(float16)", "tensor(bfloat16)"))


def _far_inputs(before: Any, runs: Runs, names: list[str], half: Half, is_far: IsFar) -> Iterable[str]:
    """The inputs that are too coarse in half: those beyond its range, if that is all, or else each that is
    too far alone; all where none is.
    """

    def moves(rounded: Iterable[str]) -> bool:
        feeds = {**runs.feeds, **{name: _rounded(runs.feeds[name], half) for name in rounded}}
        return is_far(_replaced(runs, sessions.run_session(before, feeds)))

    if not names or not moves(names):
        return ()
    beyond = [name for name in names if _largest(runs.feeds[name], half) is not None]
    others = [name for name in names if name not in beyond]
    if not others or (beyond and not moves(others)):
        return beyond
    alone = [name for name in others[:_MOST] if moves((name,))]
    return [*beyond, *(alone or others)]


_MOST = 16
"""The most inputs that are rounded one by one, a run for each."""


def _replaced(runs: Runs, outputs: Any) -> Runs:
    return Runs(runs.feeds, runs.original, outputs)


def _rounded(array: Any, half: Half) -> Any:
    if not (isinstance(array, np.ndarray) and is_float(array)):
        return array
    return rounding.convert(array.astype(np.float32), half).astype(array.dtype)


def _largest(array: Any, half: Half) -> float | None:
    """The largest finite magnitude in an array, where rounding makes that infinite."""
    finite = array[np.isfinite(array)]
    largest = float(np.abs(finite).max(initial=0.0))
    return largest if np.isinf(_rounded(np.array([largest], np.float32), half)).any() else None


def _port(name: str, array: Any, half: Half, *, is_input: bool) -> HalvedPort:
    return HalvedPort(name, is_input, half.name, half.largest, _largest(array, half))
