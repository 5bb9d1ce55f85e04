"""Runs of a model with switches: the error of the outputs with any sites rounded."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from amp_rewrite.running import emulation, sessions
from amp_rewrite.running.sessions import Device, Feeds, Runnable
from amp_rewrite.tuning.errors import Target
from amp_rewrite.tuning.switched_model import SwitchedModel


class SwitchedSession:
    """A session, its samples, and the target; `runs` counts what was measured, of all samples each."""

    def __init__(self, session: Any, model: SwitchedModel, samples: Sequence[Feeds], target: Target) -> None:
        self._session, self._model, self._samples, self._target = session, model, samples, target
        self.runs = 0
        self._known: dict[tuple[int, ...], float] = {}

    def squared(self, sites: Iterable[int]) -> float:
        """The squared error with these sites on, in the worst sample, over the square of the target."""
        known = tuple(sorted(sites))
        if known not in self._known:
            self.runs += 1
            self._known[known] = self._measured(known)
        return self._known[known]

    def _measured(self, sites: Sequence[int]) -> float:
        switches = np.zeros(self._model.count, bool)
        switches[list(sites)] = True
        worst = 0.0
        for at, feeds in enumerate(self._samples):
            outputs = sessions.run_session(self._session, {**feeds, self._model.switches: switches})
            worst = max(worst, self._target.squared(at, outputs))
        return worst


@contextlib.contextmanager
def opened(
    original: Runnable, model: SwitchedModel, samples: Sequence[Feeds], bound: float
) -> Generator[SwitchedSession]:
    """A session on the CPU, and the outputs of the original there; closed with the context.

    Raises ModelError and RunError if the original does not run.
    """
    before = sessions.open_session(original, Device.CPU)
    wanted = [sessions.run_session(before, feeds, where=f"sample {i}") for i, feeds in enumerate(samples)]
    with emulation.runnable(model.loaded) as made:
        session = sessions.open_session(made, Device.CPU)
        yield SwitchedSession(session, model, samples, Target(wanted, bound))
