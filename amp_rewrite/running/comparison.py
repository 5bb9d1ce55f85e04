"""Two models on the same samples: the metrics of each sample, and whether they prove anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.errors import FeedError
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import Half
from amp_rewrite.running import metrics, sessions, witness_sessions
from amp_rewrite.running.metrics import Channels, Metrics, Moments
from amp_rewrite.running.sessions import Feeds


class RewrittenRunError(Exception):
    """The rewritten model fails on a sample that the original runs."""


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """The metrics of an output on one sample, and whether it is floating-point.

    `moments` are those of the original's output, None where it is not float or not comparable, and `off` the
    RMS differences from it. `rounding` are those that rounding it to half makes: infinite if a finite value
    becomes infinite, None for an output that is not float and for a model without half. `only` is the value
    that all elements have, in the original and in the result; None where they differ.
    """

    metrics: Metrics
    is_float: bool
    moments: Moments | None = None
    off: Channels = field(default_factory=dict[int | None, Any])
    rounding: Channels | None = None
    only: tuple[Any, Any] = (None, None)


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
        is_float = wanted is None or metrics.is_float(wanted)
        found[name] = OutputComparison(_INCOMPARABLE, is_float)
        if wanted is not None and got is not None and got.shape == wanted.shape:
            only = metrics.only_value(wanted), metrics.only_value(got)
            found[name] = replace(found[name], metrics=metrics.measure(wanted, got), only=only)
            if is_float:
                found[name] = replace(
                    found[name],
                    moments=metrics.moments(wanted),
                    off=metrics.differences(wanted, got),
                    rounding=None if half is None else _rounding(wanted, half),
                )
    return found


_INCOMPARABLE = Metrics(np.inf, np.inf, np.inf, 0.0, 0.0, 0.0, 0, 0, np.inf, 0.0)
"""For an output that is missing or has a different shape."""


def _rounding(array: NDArray[Any], half: Half) -> Channels:
    finite = np.where(np.isfinite(array), array, 0)
    with np.errstate(over="ignore"):
        rounded = rounding.convert(finite.astype(np.float32), half, nan=False)
    if np.isinf(rounded).any():
        return {}  # which counts as infinite
    return metrics.differences(array, rounded.reshape(array.shape))


def _finite(array: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isfinite(array) if metrics.is_float(array) else np.ones(1, bool)


def unproven(runs: Sequence[SampleComparison]) -> tuple[str, ...]:
    """Why a comparison proves nothing, or less than it seems to: the rules of Verdict."""
    compared = {name for run in runs for name, found in run.outputs.items() if found.metrics.compared}
    found = (
        *_unproven_outputs(runs, compared),
        *_unproven_samples(runs, compared),
        *_missing(runs, compared),
    )
    if compared or found:
        return found
    non_finite = any(run.non_finite_outputs for run in runs)
    why = "no value of the original is finite" if non_finite else "the outputs have no values"
    return (f"nothing was compared: {why}",)


def _missing(runs: Sequence[SampleComparison], compared: set[str]) -> Iterator[str]:
    """The outputs that were not compared, where these are half of all or more."""
    names = dict.fromkeys(name for run in runs for name in run.outputs)
    missing = [name for name in names if name not in compared]
    if compared and 2 * len(missing) >= len(names):
        yield f"{len(missing)} of {len(names)} outputs were not compared: {', '.join(missing)}"


def silent(runs: Sequence[SampleComparison]) -> dict[str, str]:
    """The outputs that were compared and show nothing, and why; none where any other one shows something."""
    compared = dict.fromkeys(n for run in runs for n, found in run.outputs.items() if found.metrics.compared)
    told = {name: _why_silent(name, runs) for name in compared}
    return told if all(told.values()) else {}


def _why_silent(name: str, runs: Sequence[SampleComparison]) -> str:
    """Why equal values of an output show nothing; empty if they do. A single number is no constant."""
    found = [run.outputs[name] for run in runs if name in run.outputs]
    if sum(each.metrics.compared for each in found) < 2:
        return ""
    for side, where in enumerate(("", " in the result")):
        values = {each.only[side] for each in found}
        if len(values) == 1 and None not in values:
            return f"it is {'all zero' if values == {0} else 'constant'}{where}"
    return ""


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
