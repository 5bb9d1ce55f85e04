"""A verdict as text: the cells of its table, and hints for the next step."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

from amp_rewrite.running.comparison import HalvedPort
from amp_rewrite.running.metrics import SMALLEST
from amp_rewrite.running.selections import OtherSelection
from amp_rewrite.running.tolerances import Measured, Tolerances
from amp_rewrite.running.verdict import (
    FailedStress,
    NotJudged,
    Output,
    Tried,
    Verdict,
    distance,
    error_in_words,
    shortest,
)
from amp_rewrite.text import plural, some

COLUMNS = ("output", "error", "rounding", "noise", "relative L2", "max abs", "cosine", "agree", "verdict")


def describe(verdict: Verdict) -> str:
    """Return a description of the inputs and the devices of a comparison."""
    if verdict.signature and not verdict.samples:
        why = "it does not run" if verdict.failed_run else "names, types or shapes differ"
        return f"not compared with the original: {why}"
    source = verdict.inputs
    seed = f" ({plural(verdict.samples, 'sample')}, seed {source.seed})" if source.is_synthetic else ""
    return f"compared with the original on {_inputs(verdict)}{seed}; {verdict.how}"


def _is_too_far(verdict: Verdict) -> bool:
    """Return whether outputs violate bounds on synthetic inputs, which the last of the reasons says."""
    return verdict.is_synthetic and verdict.unproven[-1].startswith("inconclusive ")


SHORT_COLUMNS = ("output", "error", "limit", "verdict")


def short_cells(output: Output) -> tuple[str, ...]:
    """Return the row of an output, one cell for each of SHORT_COLUMNS."""
    name, *_, judged = cells(output)
    return (name, _error(output) if output.is_compared else "", _limit(output), judged)


def _error(output: Output) -> str:
    """Return the error of an output, or the share of values that differ if it is not float, or the number of
    values that are infinite or NaN in one of the two models only.
    """
    if output.metrics.non_finite and output.error is not None:
        return f"{output.metrics.non_finite:,} inf or NaN"
    return _number(output.error) if output.error is not None else f"{distance(output):.1%} differ"


def _limit(output: Output) -> str:
    if output.limit is None:
        return ""
    return shortest(output.limit) if output.error is not None else f"{100 * output.limit:.3g}%"


def worst_first(outputs: Iterable[Output]) -> list[Output]:
    """Return outputs in order of their verdicts, and then of their errors relative to the limits."""
    return sorted(outputs, key=_badness, reverse=True)


def _badness(output: Output) -> tuple[bool, bool, int, float, bool]:
    ratio = distance(output) / (output.limit or 1.0) if output.is_compared else -1.0
    ratio, non_finite = math.inf if math.isnan(ratio) else ratio, output.metrics.non_finite
    return bool(output.broken), output.is_undecided, non_finite, ratio, output.error is not None


def conclusion(verdict: Verdict) -> str:
    """Return PASS, FAIL, or that the comparison is inconclusive."""
    if verdict.ok:
        return "PASS"
    return "FAIL" if verdict.signature or verdict.is_far else "inconclusive"


def largest(verdict: Verdict, *, is_brief: bool = False) -> str:
    """Return the largest error with its limit and, unless brief, the kind of inputs; empty if nothing was
    compared.
    """
    worst = next(iter(worst_first(output for output in verdict.outputs if output.is_compared)), None)
    if worst is None:
        return ""
    limit = f"limit {_limit(worst)}" if worst.limit is not None else "no limit"
    is_error = worst.error is not None and not worst.metrics.non_finite
    error = f"largest error {_error(worst)}" if is_error else f"at worst {_error(worst)}"
    return f"{error} ({limit})" if is_brief else f"{error} ({limit}, {_inputs(verdict)})"


def _inputs(verdict: Verdict) -> str:
    """Return what was compared on, in words."""
    source, steps = verdict.inputs, f" of {verdict.steps:,} steps" if verdict.steps > 1 else ""
    if not source.is_synthetic:
        names = some([PurePath(path).name for path in source.paths], _NAMED)
        return f"{plural(verdict.samples, 'given sample')}{steps}{f' from {names}' if names else ''}"
    inputs = f"synthetic images in {source.images.value}" if source.images else f"synthetic inputs{steps}"
    return f"{inputs}, {source.change}" if source.change else inputs


_NAMED = 3
"""The number of paths that are named."""


def cells(output: Output) -> tuple[str, ...]:
    """Return the row of an output, one cell for each of COLUMNS."""
    m = output.metrics
    if not (output.is_compared or output.broken):
        return (output.name, *[""] * (len(COLUMNS) - 2), "not compared")
    agreement = "" if m.agreement is None else f"{m.agreement:.1%}"
    largest = math.inf if m.non_finite else m.max_abs
    numbers = (output.error, output.floor, output.noise, m.relative_error, largest)
    judged = "inconclusive" if output.is_undecided else "FAIL" if output.broken else "PASS"
    if output.unbounded:
        judged = f"{judged}, no bound on {' and '.join(output.unbounded)}"
    return (output.name, *map(_number, numbers), f"{m.cosine:.6f}", agreement, judged)


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:.1e}"


def notes(verdict: Verdict) -> Iterator[str]:
    """Yield all remarks beside the table: `results`, `warnings` and `details`."""
    yield from results(verdict)
    yield from (f"warning: {text}" for text in warnings(verdict))
    yield from details(verdict)


def results(verdict: Verdict) -> Iterator[str]:
    """Yield selections that were imposed, values before saturated outputs, values that cannot be half,
    user-defined metrics, and the worst of several steps.
    """
    yield from (f"compared with the original's selections: {selection(choice)}" for choice in verdict.choices)
    yield from (
        f"{output.name} is saturated on these inputs: '{output.saturated}' before it is compared"
        for output in verdict.outputs
        if output.saturated
    )
    yield from map(_misfit, verdict.misfits)
    yield from map(_own_metric, verdict.metrics)
    if verdict.steps > 1 and verdict.relative_l2_by_sample:
        yield _worst_step(verdict.steps, verdict.relative_l2_by_sample)


def to_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data, with its warnings in words."""
    return {**verdict.to_json(), "warnings": list(warnings(verdict))}


def warnings(verdict: Verdict) -> Iterator[str]:
    """Yield inputs on which a comparison that passes would fail: images of another range, and variations."""
    if not verdict.ok:
        return
    yield from (_failed_images(other) for other in verdict.not_judged if not other.ok)
    if warned := [failed for failed in verdict.stressed if failed.warns]:
        yield _stressed(warned)


def details(verdict: Verdict) -> Iterator[str]:
    """Yield outputs that pass for being small, comparisons on images of another range that pass as well, and
    the relative L2 error of each of several samples.
    """
    yield from (_small(output) for output in verdict.outputs if _passes_as_small(output))
    for other in verdict.not_judged:
        if other.ok:
            noise = f", that of float32 itself {other.noise:.1e}" if other.noise is not None else ""
            yield f"on synthetic images in {other.images} the error is {other.error:.1e}{noise}"
    errors = verdict.relative_l2_by_sample
    if verdict.samples < 2 or verdict.steps > 1:
        return
    listing = ", ".join(_number(error) or "none" for error in errors[:_SHOWN_SAMPLES])
    remaining = len(errors) - _SHOWN_SAMPLES
    more = f", and {remaining:,} more, at most {max(e or 0.0 for e in errors):.1e}" if remaining > 0 else ""
    yield f"relative L2 of each sample, worst output: {listing}{more}"


_SHOWN_SAMPLES = 10


def _worst_step(steps: int, errors: Sequence[float | None]) -> str:
    """Return a line on the worst and the last step of all sequences."""
    worst = max(range(len(errors)), key=lambda at: errors[at] or 0.0)
    last = max((error or 0.0 for error in errors[steps - 1 :: steps]), default=0.0)
    where = f"{_number(errors[worst])} in step {worst % steps + 1:,} of {steps:,}"
    return f"relative L2, worst output: {where}, {_number(last)} in the last"


def _passes_as_small(output: Output) -> bool:
    """Return whether an output exceeds the default bound, and passes only by comparison with SMALLEST."""
    is_off = output.metrics.relative_l2 > (Tolerances().error or 0.0)
    passes = not (output.broken or output.is_undecided) and output.error is not None
    return is_off and passes and 0 < output.metrics.scale < SMALLEST


def _small(output: Output) -> str:
    size = f"its values (RMS {output.metrics.scale:.1e}) are smaller than float16's normal numbers"
    strict = f"--tolerance relative_l2={Tolerances().error} judges by the relative L2"
    return f"{output.name} passes because {size}; {strict}"


def selection(choice: OtherSelection) -> str:
    """Return what a node selects otherwise in the result."""
    places = f"at {choice.places:,} of {plural(choice.of, 'place')}"
    return f"{choice.operator} '{choice.node}', {places}, between values at most {choice.gap:.1e} apart"


def _misfit(port: HalvedPort) -> str:
    name = f"{'input' if port.is_input else 'output'} '{port.name}'"
    if port.largest is not None:
        return f"{name} has values up to {port.largest:.3g}, and {port.half} ends at {port.limit:.6g}"
    if port.is_input:
        return f"{name} is too coarse in {port.half}: rounding it alone moves the outputs too far"
    return f"{name} is too coarse in {port.half}: rounding it alone is too far off"


def _failed_images(other: NotJudged) -> str:
    verdict = f"the verdict is FAIL ({error_in_words(other.error)})"
    return f"if your images are in {other.images}, {verdict}: compare on yours with --data FILE.npz"


def _stressed(stressed: Iterable[FailedStress]) -> str:
    """Return a line on the variations of synthetic inputs for which the comparison would fail."""
    changes = " or ".join(
        f"{failed.change} ({error_in_words(math.inf if failed.loses_values else failed.error)})"
        for failed in stressed
    )
    return f"if your inputs can be {changes}, the verdict is FAIL: compare on yours with --data FILE.npz"


def faults(verdict: Verdict) -> Iterator[str]:
    """Yield the reasons for a failure that the table does not show."""
    yield from verdict.signature
    for output in verdict.outputs:
        for bound in output.broken:
            if not bound.startswith(("error ", "agreement ", "non_finite ")):
                yield f"{output.name}: {bound}"
    yield from (metric.fault for metric in verdict.metrics if metric.fault)
    yield from verdict.unproven[:-1] if _is_too_far(verdict) else verdict.unproven


def in_vain(verdict: Verdict) -> Iterator[str]:
    """Yield the attempts after a failed verdict that failed too."""
    yield from (of_tried(attempt) for attempt in verdict.tried if not attempt.ok)


def of_tried(attempt: Tried) -> str:
    """Return the flags of an attempt, and its outcome."""
    judged = "PASS" if attempt.ok else "FAIL"
    return f"tried {_flags_of(attempt)}: {error_in_words(attempt.error)}, {judged}{_half(attempt)}"


def _half(attempt: Tried) -> str:
    """Return the share of half in a result that was tried."""
    if attempt.nodes is None:
        return ""
    some = attempt.nodes.half + attempt.nodes.mixed
    return f", {some:,} of {some + attempt.nodes.full:,} nodes in half" if some else ", nothing in half"


def _flags_of(attempt: Tried) -> str:
    level = [f"--level {attempt.level}"] if attempt.level else []
    return " ".join(
        (*level, *_repeated("--keep-io", attempt.keep_io), *_repeated("--keep-full", attempt.keep_full))
    )


def _repeated(flag: str, values: Iterable[str]) -> Iterator[str]:
    return (f"{flag} {shlex.quote(value)}" for value in values)


def _own_metric(metric: Measured) -> str:
    value = metric.problem or f"{metric.value:.6g}"
    bounds = ((metric.least, "at least"), (metric.most, "at most"))
    bounds_text = ", ".join(f"{word} {bound:.6g}" for bound, word in bounds if bound is not None)
    return f"metric {metric.name}: {value} ({bounds_text or 'no bound'})"


def hints(verdict: Verdict) -> Iterator[str]:
    """Yield flags that fix a failed verdict, or flags to try where none were tried."""
    mends = next((attempt for attempt in verdict.tried if attempt.mends), None)
    patterns = verdict.blame.keep_full if verdict.blame is not None else ()
    if mends is None and any(attempt.ok for attempt in verdict.tried):
        yield "leave the model in float32: of what was tried, only that passes"
    elif mends is not None:
        yield f"{_flags_of(mends)}   # tried: PASS, {error_in_words(mends.error)}{_half(mends)}"
    elif verdict.misfits and not verdict.tried:
        yield " ".join(_repeated("--keep-io", (port.name for port in verdict.misfits)))
    elif verdict.is_far and patterns and not verdict.tried:
        yield " ".join(_repeated("--keep-full", patterns))
    doubtful = verdict.is_far or (verdict.unproven and not verdict.changing)
    if verdict.inputs.is_synthetic and doubtful:
        yield "--data FILE.npz   # these inputs were synthetic: compare on real ones"
    elif any(output.is_undecided for output in verdict.outputs):
        yield "--data FILE.npz   # other inputs: these decide nothing"
