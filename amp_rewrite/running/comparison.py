"""Comparison of two models on the same samples: metrics of each sample, and evidence against vacuity."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from amp_rewrite.errors import AmpRewriteError, FeedError
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.running import metrics, sequences, sessions
from amp_rewrite.running.metrics import Channels, Metrics, Moments, is_float
from amp_rewrite.running.sequences import EachStep, Steps, by_step
from amp_rewrite.running.sessions import Feeds, Runnable


class RewrittenRunError(Exception):
    """A run of the rewritten model that fails on a sample on which the original succeeds."""


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """The metrics of an output on one sample, and whether it is floating-point.

    `moments` belong to the original's output, None if it is not float or not comparable, and `off` are the
    RMS differences from it. `rounding` are the RMS differences from rounding it to half: infinite if a finite
    value overflows, None for an output that is not float and for a model without half. `only` is the common
    value of all elements, in the original and in the result; None if they differ.
    """

    metrics: Metrics
    is_float: bool
    moments: Moments | None = None
    off: Channels = field(default_factory=dict[int | None, Any])
    rounding: Channels | None = None
    only: tuple[Any, Any] = (None, None)


Outputs = dict[str, OutputComparison]
"""The comparisons by output name."""


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
        return any(output.metrics.compared for output in self.outputs.values())


@dataclass(frozen=True, slots=True)
class Runs:
    """A sample, and the outputs of both models on it, as the runtime returns them."""

    feeds: Feeds
    original: Mapping[str, Any]
    rewritten: Mapping[str, Any]

    @property
    def steps(self) -> list[Runs]:
        """The runs of each step of a sequence; for other samples, the runs themselves."""
        feeds = itertools.cycle(self.feeds.feeds if isinstance(self.feeds, Steps) else [self.feeds])
        pairs = zip(by_step(self.original), by_step(self.rewritten), strict=True)
        return [Runs(inputs, *outputs) for inputs, outputs in zip(feeds, pairs, strict=False)]


def run(before: Any, after: Any, feeds: Feeds, sample: str) -> Runs:
    """Run both sessions on a sample. Raises RunError if the original fails, RewrittenRunError if only the
    rewritten model does.
    """
    expected = sessions.run_session(before, feeds, where=sample)
    try:
        return Runs(feeds, expected, sessions.run_session(after, feeds))
    except FeedError as error:
        raise RewrittenRunError(error.problem) from error


def compare(runs: Runs, sample: str, half: Half | None = None) -> list[SampleComparison]:
    """Compare the outputs on a sample, in each step; `half` is the half type of the rewritten model."""
    return [_compare(step, sample, half) for step in runs.steps]


def _compare(runs: Runs, sample: str, half: Half | None) -> SampleComparison:
    expected, actual = dict(arrays(runs.original)), dict(arrays(runs.rewritten))
    bad_inputs = dict.fromkeys(n.partition("[")[0] for n, v in arrays(runs.feeds) if not _finite(v).all())
    bad_outputs = (name for name, value in expected.items() if value.size and not _finite(value).any())
    names = dict.fromkeys((*expected, *actual))
    outputs = {name: _measured(expected.get(name), actual.get(name), half) for name in names}
    return SampleComparison(sample, outputs, tuple(bad_inputs), tuple(bad_outputs))


def _measured(
    reference: NDArray[Any] | None, result: NDArray[Any] | None, half: Half | None
) -> OutputComparison:
    """Compare an output of the original with that of the result; either may be missing."""
    is_float = reference is None or metrics.is_float(reference)
    if reference is None or result is None or result.shape != reference.shape:
        return OutputComparison(_INCOMPARABLE, is_float)
    measured = OutputComparison(
        metrics.measure(reference, result),
        is_float,
        only=(metrics.only_value(reference), metrics.only_value(result)),
    )
    if not is_float:
        return measured
    return replace(
        measured,
        moments=metrics.moments(reference),
        off=metrics.differences(reference, result),
        rounding=None if half is None else _rounding(reference, half),
    )


_INCOMPARABLE = Metrics(np.inf, np.inf, np.inf, 0.0, 0.0, 0.0, 0, 0, np.inf, 0.0)
"""The metrics of an output that is missing or has another shape."""


def _rounding(array: NDArray[Any], half: Half) -> Channels:
    finite = np.where(np.isfinite(array), array, 0)
    with np.errstate(over="ignore"):
        rounded = rounding.convert(finite.astype(np.float32), half, nan=False)
    if np.isinf(rounded).any():
        return {}  # counts as infinite
    return metrics.differences(array, rounded.reshape(array.shape))


def _finite(array: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isfinite(array) if metrics.is_float(array) else np.ones(1, bool)


def unproven(runs: Sequence[SampleComparison]) -> tuple[str, ...]:
    """Return the reasons why a comparison is vacuous or weak, by the rules of Verdict."""
    compared = {name for run in runs for name, found in run.outputs.items() if found.metrics.compared}
    reasons: list[str] = []
    for name in dict.fromkeys(n for run in runs for n in run.non_finite_outputs if n not in compared):
        inputs = [run.non_finite_inputs for run in runs if name in run.non_finite_outputs]
        if all(inputs):
            reasons.append(_proves_nothing(name, inputs))
    for run in runs:
        finite_elsewhere = not compared.isdisjoint(run.non_finite_outputs)
        if run.non_finite_inputs and not run.is_compared and finite_elsewhere:
            reasons.append(_proves_nothing(run.sample or "a sample", [run.non_finite_inputs]))
    names = dict.fromkeys(name for run in runs for name in run.outputs)
    missing = [name for name in names if name not in compared]
    if compared and 2 * len(missing) >= len(names):
        reasons.append(f"{len(missing)} of {len(names)} outputs were not compared: {', '.join(missing)}")
    if not (compared or reasons):
        non_finite = any(run.non_finite_outputs for run in runs)
        why = "no value of the original is finite" if non_finite else "the outputs have no values"
        reasons.append(f"nothing was compared: {why}")
    return tuple(reasons)


def silent(runs: Sequence[SampleComparison]) -> dict[str, str]:
    """Return the vacuous outputs with reasons; empty unless all compared outputs are vacuous."""
    compared = dict.fromkeys(n for run in runs for n, found in run.outputs.items() if found.metrics.compared)
    reasons = {name: _why_silent(name, runs) for name in compared}
    return reasons if all(reasons.values()) else {}


def _why_silent(name: str, runs: Sequence[SampleComparison]) -> str:
    """Return why equality of an output is vacuous; empty if it is not. A single number is no constant."""
    comparisons = [run.outputs[name] for run in runs if name in run.outputs]
    if sum(each.metrics.compared for each in comparisons) < 2:
        return ""
    for side, where in enumerate(("", " in the result")):
        values = {each.only[side] for each in comparisons}
        if len(values) == 1 and None not in values:
            return f"it is {'all zero' if values == {0} else 'constant'}{where}"
    return ""


def _proves_nothing(what: str, non_finite: Iterable[tuple[str, ...]]) -> str:
    names = dict.fromkeys(name for inputs in non_finite for name in inputs)
    inputs = "input" if len(names) == 1 else "inputs"
    names_text = ", ".join(f"'{name}'" for name in names)
    return f"{what}: proves nothing: NaN or infinities in {inputs} {names_text} give no finite outputs"


def arrays(outputs: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield every output as arrays: sequences element by element, maps as their values in key order."""
    for name, value in outputs.items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, Mapping):
            yield name, np.array([value[key] for key in sorted(value)])
        elif isinstance(value, list):
            yield from arrays({f"{name}[{i}]": element for i, element in enumerate(value)})


def worst(samples: list[Metrics]) -> Metrics:
    """Combine the metrics of an output over all samples: the worst of each, and sums of the counts."""
    columns = {each.name: [getattr(sample, each.name) for sample in samples] for each in fields(Metrics)}
    agreements = [agreement for agreement in columns.pop("agreement") if agreement is not None]
    return Metrics(
        agreement=min(agreements, default=None),
        **{name: _WORST.get(name, max)(values) for name, values in columns.items()},
    )


_WORST: Mapping[str, Callable[[list[Any]], Any]] = {
    "cosine": min,
    "snr_db": min,
    "non_finite": sum,
    "compared": sum,
}


# The names, types and shapes of the inputs and outputs of two models, and their differences.


def borders(
    models: tuple[Runnable, Runnable], before: Any, after: Any, io: IOTypes
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return how the inputs and outputs of two models differ by their sessions, a sentence each, and warnings
    about outputs whose inferred shape differs from the declared one in both.

    onnxruntime reports an inferred or a declared shape, and infers more for a result, whose values declare
    shapes: an output for which both models declare the same one, or the original none, may have any.
    """
    found: list[str] = []
    warnings: list[str] = []
    shapes = functools.cache(lambda: [_declared(model) for model in models])
    for side in ("inputs", "outputs"):
        old, new = (getattr(session, f"get_{side}")() for session in (before, after))
        if [entry.name for entry in old] != [entry.name for entry in new]:
            found.append(f"the {side} are {_names(new)}, and were {_names(old)}")
            continue
        for was, now in zip(old, new, strict=True):
            halved = io is not IOTypes.KEEP and {was.type, now.type} <= _HALF_OR_FLOAT
            if was.type != now.type and not halved:
                found.append(f"'{was.name}' is {now.type}, and was {was.type}")
            if was.shape == now.shape:
                continue
            declared = [each.get(was.name) for each in shapes()] if side == "outputs" else [[], None]
            if declared[0] == declared[1]:
                inferred = now.shape if was.shape == declared[0] else was.shape
                said = (
                    f"output '{was.name}' declares the shape {declared[0]}, and onnxruntime finds {inferred}"
                )
                warnings += [said] if declared[0] is not None else []
            elif declared[0] is not None:
                found.append(f"'{was.name}' has the shape {now.shape}, and had {was.shape}")
    return tuple(found), tuple(warnings)


def _declared(model: Runnable) -> dict[str, list[int | str | None]]:
    """Return the shapes that a model declares of its outputs, in onnxruntime's form."""
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
    return {
        info.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape.dim
        ]
        for info in proto.graph.output
        if info.type.tensor_type.HasField("shape")
        for shape in (info.type.tensor_type.shape,)
    }


_HALF_OR_FLOAT = {"tensor(float)", "tensor(float16)", "tensor(bfloat16)"}


def _names(entries: Iterable[Any]) -> str:
    return ", ".join(f"'{entry.name}'" for entry in entries)


# Inputs and outputs that half cannot represent well enough: rounding one of them alone violates a bound.
#
# No plan can mend this, whatever precision the nodes between have; these inputs and outputs must be float32.


@dataclass(frozen=True, slots=True)
class HalvedPort:
    """An input or output that must not be half but is so in the result, with the name of that half type.

    `largest` is its largest magnitude if it overflows `limit`, the largest finite half; None if it is in
    range but half is too coarse.
    """

    name: str
    is_input: bool
    half: str
    limit: float
    largest: float | None = None


IsFar = Callable[[Runs], bool]
"""A predicate: true if the rewritten model's outputs in these runs violate a bound."""


def misfits(before: Any, after: Any, runs: Runs, half: Half | None, is_far: IsFar) -> tuple[HalvedPort, ...]:
    """Return the inputs and outputs whose rounding alone violates a bound; empty if that cannot be decided.

    `before` and `after` are the sessions of the two models, `runs` those on a sample that violates a bound.
    """
    if half is None:
        return ()
    outputs = [name for name in _halved(before, after, "outputs") if name in runs.original]
    rounded = {name: _rounded(runs.original[name], half) for name in outputs}
    far = [
        name for name in outputs if is_far(replace(runs, rewritten={**runs.original, name: rounded[name]}))
    ]
    ports = [_port(name, runs.original[name], half, is_input=False) for name in far]
    names = [name for name in _halved(before, after, "inputs") if name in runs.feeds]
    try:
        inputs = list(_far_inputs(before, runs, names, half, is_far))
        ports += [_port(name, runs.feeds[name], half, is_input=True) for name in inputs]
        states = runs.feeds.states if isinstance(runs.feeds, Steps) else ()
        partners = (pair.output for pair in states if pair.input in inputs and pair.output not in far)
        ports += [
            _port(name, runs.original[name], half, is_input=False) for name in partners if name in outputs
        ]
    except AmpRewriteError:  # the time limit may be reached
        return tuple(ports)
    return tuple(ports)


def _halved(before: Any, after: Any, side: str) -> Iterator[str]:
    """Yield the names of inputs or outputs that are float32 in the first session and half in the second."""
    pairs = zip(*(getattr(session, f"get_{side}")() for session in (before, after)), strict=True)
    return (was.name for was, now in pairs if was.type == _FLOAT and now.type in _HALF)


_FLOAT = "tensor(float)"
_HALF = frozenset(("tensor(float16)", "tensor(bfloat16)"))


def _far_inputs(before: Any, runs: Runs, names: list[str], half: Half, is_far: IsFar) -> Iterable[str]:
    """Return the inputs for which half is too coarse: those out of range, if they suffice, else also each
    that violates a bound on its own, or all if none does.
    """

    def moves(rounded: Iterable[str]) -> bool:
        names = frozenset(rounded)
        feeds = sequences.changed(
            runs.feeds, lambda step: {n: _rounded(v, half) if n in names else v for n, v in step.items()}
        )
        return is_far(replace(runs, rewritten=sessions.run_session(before, feeds)))

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


def _rounded(array: Any, half: Half) -> Any:
    if isinstance(array, EachStep):
        return EachStep(_rounded(value, half) for value in array)
    if not (isinstance(array, np.ndarray) and is_float(array)):
        return array
    return rounding.convert(array.astype(np.float32), half).astype(array.dtype)


def _largest(array: Any, half: Half) -> float | None:
    """Return the largest finite magnitude in an array if rounding overflows it, else None."""
    if isinstance(array, EachStep):
        return max(filter(None, (_largest(value, half) for value in array)), default=None)
    finite = array[np.isfinite(array)]
    largest = float(np.abs(finite).max(initial=0.0))
    return largest if np.isinf(_rounded(np.array([largest], np.float32), half)).any() else None


def _port(name: str, array: Any, half: Half, *, is_input: bool) -> HalvedPort:
    return HalvedPort(name, is_input, half.name, half.largest, _largest(array, half))
