"""Two models on the same samples: the metrics of each sample, and whether they prove anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.errors import FeedError
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import Half
from amp_rewrite.running import metrics, sessions, witness_sessions
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.running.sessions import Feeds


class RewrittenRunError(Exception):
    """The rewritten model fails on a sample that the original runs."""


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """The metrics of an output on one sample, and whether it is floating-point.

    `rounding` is the root mean square of the error that rounding the original output to half makes: infinite
    if a finite value becomes infinite, None for an output that is not float and for a model without half.
    """

    metrics: Metrics
    is_float: bool
    rounding: float | None = None


Outputs = dict[str, OutputComparison]
"""What was compared, by output."""


@dataclass(frozen=True, slots=True)
class SampleComparison:
    """The comparison on one sample.

    `sample` is its display name. `non_finite_inputs` are the inputs with NaN or infinite values,
    `non_finite_outputs` the non-empty outputs of the original without any finite value.
    """

    sample: str
    outputs: Outputs
    non_finite_inputs: tuple[str, ...]
    non_finite_outputs: tuple[str, ...]

    @property
    def is_compared(self) -> bool:
        """Whether the original has at least one comparable value."""
        return any(found.metrics.compared for found in self.outputs.values())


@dataclass(frozen=True, slots=True)
class Runs:
    """A sample, and the outputs of both models on it, as the runtime returns them."""

    feeds: Feeds
    original: Mapping[str, Any]
    rewritten: Mapping[str, Any]


def run(before: Any, after: Any, feeds: Feeds, sample: str) -> Runs:
    """Runs both sessions on a sample. Raises RunError if the original fails, RewrittenRunError if only the
    rewritten model does.
    """
    expected = sessions.run_session(before, feeds, where=sample)
    try:
        return Runs(feeds, expected, witness_sessions.run_session(after, feeds))
    except FeedError as error:
        raise RewrittenRunError(error.problem) from error


def compare(runs: Runs, sample: str, half: Half | None = None) -> SampleComparison:
    """The comparison of the outputs on a sample; `half` is the half type of the rewritten model."""
    expected, actual = dict(arrays(runs.original)), dict(arrays(runs.rewritten))
    bad_inputs = dict.fromkeys(n.partition("[")[0] for n, v in arrays(runs.feeds) if not _finite(v).all())
    bad_outputs = (name for name, value in expected.items() if value.size and not _finite(value).any())
    return SampleComparison(sample, _measure(expected, actual, half), tuple(bad_inputs), tuple(bad_outputs))


def _measure(
    expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]], half: Half | None
) -> Outputs:
    found: Outputs = {}
    for name in dict.fromkeys((*expected, *actual)):
        wanted, got = expected.get(name), actual.get(name)
        measured, rounded = _INCOMPARABLE, None
        if wanted is not None and got is not None and got.shape == wanted.shape:
            measured = metrics.measure(wanted, got)
            rounded = _rounding(wanted, half) if half is not None and metrics.is_float(wanted) else None
        found[name] = OutputComparison(measured, wanted is None or metrics.is_float(wanted), rounded)
    return found


_INCOMPARABLE = Metrics(np.inf, np.inf, np.inf, 0.0, 0.0, 0.0, 0, 0, np.inf, 0.0)
"""For an output that is missing or has a different shape."""


def _rounding(array: NDArray[Any], half: Half) -> float:
    finite = array[np.isfinite(array)]
    with np.errstate(over="ignore"):
        rounded = rounding.convert(finite.astype(np.float32), half, nan=False)
    return metrics.rms(rounded.astype(np.float64) - finite.astype(np.float64))


def _finite(array: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isfinite(array) if metrics.is_float(array) else np.ones(1, bool)


def unproven(runs: Sequence[SampleComparison]) -> tuple[str, ...]:
    """Why a comparison proves nothing, or less than it seems to: the rules of Verdict."""
    compared = {name for run in runs for name, found in run.outputs.items() if found.metrics.compared}
    found = (*_unproven_outputs(runs, compared), *_unproven_samples(runs, compared))
    if compared or found:
        return found
    non_finite = any(run.non_finite_outputs for run in runs)
    why = "no value of the original is finite" if non_finite else "the outputs have no values"
    return (f"nothing was compared: {why}",)


def _unproven_outputs(runs: Sequence[SampleComparison], compared: set[str]) -> Iterator[str]:
    for name in dict.fromkeys(n for run in runs for n in run.non_finite_outputs if n not in compared):
        inputs = [run.non_finite_inputs for run in runs if name in run.non_finite_outputs]
        if all(inputs):
            yield _proves_nothing(name, inputs)


def _unproven_samples(runs: Sequence[SampleComparison], compared: set[str]) -> Iterator[str]:
    for run in runs:
        finite_elsewhere = not compared.isdisjoint(run.non_finite_outputs)
        if run.non_finite_inputs and not run.is_compared and finite_elsewhere:
            yield _proves_nothing(run.sample or "a sample", [run.non_finite_inputs])


def _proves_nothing(what: str, non_finite: Iterable[tuple[str, ...]]) -> str:
    names = dict.fromkeys(name for inputs in non_finite for name in inputs)
    inputs = "input" if len(names) == 1 else "inputs"
    listed = ", ".join(f"'{name}'" for name in names)
    return f"{what}: proves nothing: NaN or infinities in {inputs} {listed} give no finite outputs"


def arrays(outputs: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every output as arrays: sequences element by element, maps as their values in the order of the keys."""
    for name, value in outputs.items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, Mapping):
            yield name, np.array([value[key] for key in sorted(value)])
        elif isinstance(value, list):
            yield from arrays({f"{name}[{i}]": element for i, element in enumerate(value)})


def worst(samples: list[Metrics]) -> Metrics:
    """The metrics of an output over all samples: the worst of each, and the sums of the counts."""
    agreements = [sample.agreement for sample in samples if sample.agreement is not None]
    return replace(
        samples[0],
        max_abs=max(sample.max_abs for sample in samples),
        mean_abs=max(sample.mean_abs for sample in samples),
        relative_l2=max(sample.relative_l2 for sample in samples),
        cosine=min(sample.cosine for sample in samples),
        snr_db=min(sample.snr_db for sample in samples),
        agreement=min(agreements, default=None),
        non_finite=sum(sample.non_finite for sample in samples),
        compared=sum(sample.compared for sample in samples),
        rms=max(sample.rms for sample in samples),
        scale=max(sample.scale for sample in samples),
    )
