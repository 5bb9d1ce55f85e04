"""Two models on one sample after another: what is measured on each, and what that proves."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.errors import RunError
from amp_rewrite.running import metrics, sessions
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.running.sessions import Feeds


class FailedError(Exception):
    """A run that the original survives and the rewritten model does not."""


Measured = dict[str, tuple[Metrics, bool]]
"""Metrics by output, and whether the output is of floats."""


@dataclass(frozen=True, slots=True)
class Run:
    """A sample: what it is called, what was measured on it, which inputs hold what is not finite, and which
    outputs of the original have values, none of them finite.
    """

    sample: str
    measured: Measured
    odd: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def is_compared(self) -> bool:
        """Whether the original has a value here that a comparison can go by."""
        return any(found.compared for found, _ in self.measured.values())


def run(before: Any, after: Any, feeds: Feeds, sample: str) -> Run:
    """Runs both sessions on a sample. Raises RunError where the original fails, FailedError where only the
    rewritten model does.
    """
    expected = dict(_arrays(sessions.run_session(before, feeds, where=sample)))
    try:
        actual = dict(_arrays(sessions.run_session(after, feeds)))
    except RunError as error:
        raise FailedError(error.problem) from error
    given = dict.fromkeys(name.partition("[")[0] for name, value in _arrays(feeds) if not _is_finite(value))
    lost = (name for name, value in expected.items() if value.size and not _has_finite(value))
    return Run(sample, _measure(expected, actual), tuple(given), tuple(lost))


def _measure(expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]]) -> Measured:
    found: Measured = {}
    for name in dict.fromkeys((*expected, *actual)):
        wanted = expected.get(name)
        compared = _compare(wanted, actual.get(name))
        found[name] = (compared, wanted is None or metrics.is_float(wanted))
    return found


def _is_finite(array: NDArray[Any]) -> bool:
    return not metrics.is_float(array) or bool(np.isfinite(array).all())


def _has_finite(array: NDArray[Any]) -> bool:
    return not metrics.is_float(array) or bool(np.isfinite(array).any())


def unproven(runs: Sequence[Run]) -> tuple[str, ...]:
    """Why a comparison proves nothing, or less than it seems to: the rules of Verdict."""
    compared = {name for run in runs for name, (found, _) in run.measured.items() if found.compared}
    found = (*_blind_outputs(runs, compared), *_blind_samples(runs, compared))
    if compared or found:
        return found
    lost = any(run.lost for run in runs)
    why = "no value of the original is finite" if lost else "the outputs hold no values"
    return (f"nothing was compared: {why}",)


def _blind_outputs(runs: Sequence[Run], compared: Container[str]) -> Iterator[str]:
    for name in dict.fromkeys(name for run in runs for name in run.lost if name not in compared):
        odd = [run.odd for run in runs if name in run.lost]
        if all(odd):
            yield _proves_nothing(name, odd)


def _blind_samples(runs: Sequence[Run], compared: Set[str]) -> Iterator[str]:
    for run in runs:
        if run.odd and not run.is_compared and not compared.isdisjoint(run.lost):
            yield _proves_nothing(run.sample or "a sample", [run.odd])


def _proves_nothing(what: str, odd: Iterable[tuple[str, ...]]) -> str:
    names = dict.fromkeys(name for names in odd for name in names)
    inputs = "input" if len(names) == 1 else "inputs"
    listed = ", ".join(f"'{name}'" for name in names)
    return f"{what}: proves nothing: of the NaN or infinities in {inputs} {listed} come no finite outputs"


def _compare(wanted: NDArray[Any] | None, got: NDArray[Any] | None) -> Metrics:
    if wanted is None or got is None or got.shape != wanted.shape:
        return _INCOMPARABLE
    return metrics.measure(wanted, got)


_INCOMPARABLE = Metrics(np.inf, np.inf, np.inf, 0.0, 0.0, 0.0, 0, 0)
"""An output that is missing or has another shape."""


def _arrays(outputs: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every output as arrays: sequences element by element, maps as their values in the order of keys."""
    for name, value in outputs.items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, Mapping):
            yield name, np.array([value[key] for key in sorted(value)])
        elif isinstance(value, list):
            yield from _arrays({f"{name}[{i}]": element for i, element in enumerate(value)})


def worst(samples: list[Metrics]) -> Metrics:
    """The metrics of an output on all samples as one: the worst of each, and the counts added up."""
    agreements = [sample.agreement for sample in samples if sample.agreement is not None]
    return replace(
        samples[0],
        max_abs=max(sample.max_abs for sample in samples),
        mean_abs=max(sample.mean_abs for sample in samples),
        relative_l2=max(sample.relative_l2 for sample in samples),
        cosine=min(sample.cosine for sample in samples),
        snr_db=min(sample.snr_db for sample in samples),
        agreement=min(agreements) if agreements else None,
        non_finite=sum(sample.non_finite for sample in samples),
        compared=sum(sample.compared for sample in samples),
    )
