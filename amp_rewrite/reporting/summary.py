"""The summary lines of a report, for the terminal and the HTML report."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from importlib import metadata

from amp_rewrite import version
from amp_rewrite.certificate.certificate import Certificate
from amp_rewrite.colouring.match_counts import Matched
from amp_rewrite.costs.model_costs import Prediction
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.explaining import sentences
from amp_rewrite.policy.entries import flag_of
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.plan import FloatState
from amp_rewrite.rewriting.report import Counts, Report, SummaryLine
from amp_rewrite.text import plural, size


def lines(report: Report) -> Iterator[SummaryLine]:
    """Yield the summary of a rewrite; lines without content are omitted."""
    yield _nodes(report.nodes, report.half, "float32")
    removed = f", {report.casts_removed:,} removed" if report.casts_removed else ""
    yield SummaryLine("Casts", f"{report.casts_added:,} added{removed}")
    yield SummaryLine("size", _share(report))
    yield from prediction_lines(report.prediction)
    yield from range_lines(report)
    yield from _weight_lines(report)
    yield from rescaled_lines(report)
    yield from _state_lines(report.state)
    yield from _run_lines(report)
    for text in sentences.summary(report.form_changes if report.changed else ()):
        yield SummaryLine("form", text)
    if report.certificate is not None:
        yield SummaryLine("proof", _proof(report.certificate))
    yield from match_lines(report.matched)
    for warning in report.warnings:
        yield SummaryLine("warning", warning)
    for fault in report.broken:
        yield SummaryLine("BROKEN", fault)


def _nodes(nodes: Counts, half: str, what: str) -> SummaryLine:
    """Return the counts of nodes by precision; `what` is the type that the remaining nodes lack."""
    mixed = f", {nodes.mixed:,} in both" if nodes.mixed else ""
    others = f", {nodes.other:,} without {what}" if nodes.other else ""
    return SummaryLine("nodes", f"{nodes.half:,} in {half}{mixed}, {nodes.full:,} in float32{others}")


def _proof(certificate: Certificate) -> str:
    if certificate.proved:
        return certificate.summary
    return f"none: the model is not even proved equal to itself ({certificate.problem})"


def range_lines(report: Report) -> Iterator[SummaryLine]:
    """Yield the knowledge of values, if requested, and the number of units that are half because of it."""
    if report.ranges is not None and report.ranges.half_units:
        yield SummaryLine("ranges", sentences.counts(report.ranges, report.half))
        yield from (SummaryLine("assumed", text) for text in sentences.assumed(report.ranges))
    if report.freed:
        proven = "which the list denies, and which bounds or the given samples show to fit"
        yield SummaryLine("proven", f"{plural(report.freed, 'part')} in {report.half} {proven}")


def _weight_lines(report: Report) -> Iterator[SummaryLine]:
    """Yield the counts of weights in half, and of stored values that it cannot represent."""
    if report.stored_full is not None:
        full = f"; {report.stored_full:,} in float32, as {report.half} does not hold them"
        count = f"{plural(report.stored_half, 'weight')} in {report.half}, behind Casts to float32"
        yield SummaryLine("storage", count + (full if report.stored_full else ""))
    for count, name, fate in (
        (report.saturated, "masks", f"clamped to {report.half}'s range"),
        (report.flushed, "tiny", f"too small for {report.half} flushed to 0"),
    ):
        if count:
            yield SummaryLine(name, f"{plural(count, 'stored value')} {fate}")


def rescaled_lines(report: Report) -> Iterator[SummaryLine]:
    """Yield what is stored times powers of two, and what that gains."""
    if report.rescaled is not None:
        yield SummaryLine("rescaled", sentences.of_rescaled(report.rescaled, report.half))


def _run_lines(report: Report) -> Iterator[SummaryLine]:
    """Yield the numbers of units that stay float32 because of runs."""
    for count, name, why in (
        (report.observed, "observed", f"because a run showed values too large for {report.half}"),
        (report.sensitive, "tuned", "because rounding there moves the outputs too far"),
        (report.earlier, "earlier", "for what an earlier rewrite of this model saw in runs"),
    ):
        if count:
            yield SummaryLine(name, f"{plural(count, 'part')} in float32 {why}")
    for output, cost in report.imprecise_outputs.items():
        end = f"the last products before '{output}' stay float32"
        rounding = f"rounding that output alone to {report.half} makes a relative error of {cost:.1e}"
        yield SummaryLine("outputs", f"{end}: {rounding}")


def _state_lines(state: FloatState | None) -> Iterator[SummaryLine]:
    """Yield what half inputs and outputs would save where they are state."""
    if state is not None:
        pairs = f"float32 in {plural(len(state.pairs), 'pair')} of inputs and outputs"
        saved = (
            f"{flag_of('io', IOTypes.STATE.value)} makes them half, which saves {plural(state.casts, 'Cast')}"
        )
        yield SummaryLine("state", f"{pairs}, such as {state.pairs[0]}: {saved}")


BRIEF = ("rescaled", "state", "storage", "matched", "warning", "BROKEN")
"""The lines of a summary that a command prints without --verbose."""


def sizes(report: Report) -> str:
    """Return the size before and, unless nothing was written, after, in one unit where they share it."""
    before, after = size(report.size_before), size(report.size_after)
    if not report.size_after:
        return before
    number, unit = before.split(" ")
    return f"{number if after.endswith(f' {unit}') else before} -> {after}"


def prediction_lines(prediction: Prediction | None) -> Iterator[SummaryLine]:
    """Yield the predicted speed, where there is any."""
    if prediction is not None:
        yield SummaryLine("speed", sentences.speeds(prediction))


def observed_lines(observed: Observed | None) -> Iterator[SummaryLine]:
    """Yield the observations before the rewrite, if there are any."""
    if observed is None:
        return
    counts = observed.counts
    runs = f"{plural(counts['values'], 'value')} on {plural(counts['samples'], 'sample')}"
    flushed = f"{counts['flushed']:,} with elements that it flushes to 0"
    yield SummaryLine("seen", f"{runs}: {counts['beyond']:,} beyond float16's range, {flushed}")


def match_lines(matches: Iterable[Matched]) -> Iterator[SummaryLine]:
    """Yield the number of nodes that each pattern or operator flag matched."""
    for matched in matches:
        flag = flag_of(matched.by, matched.pattern)
        near = f"; did you mean {' or '.join(matched.near)}?" if matched.near else ""
        if matched.nodes:
            why = f", none of which is half: {matched.why}" if matched.why else ""
            yield SummaryLine("matched", f"{flag}: {plural(matched.nodes, 'node')}{why}")
        else:
            yield SummaryLine("warning", f"{flag} matches no node{near}", is_whole=True)


def coverage_lines(coverage: Coverage) -> Iterator[SummaryLine]:
    """Yield the summary of a model that was rewritten earlier."""
    yield _nodes(coverage.nodes, "half", "float arithmetic")
    yield SummaryLine("Casts", f"{len(coverage.casts):,} between half and float32")


def _share(report: Report) -> str:
    """Return the sizes, and the second one as a share of the first."""
    has_both = report.size_before and report.size_after
    return f"{sizes(report)} ({report.size_after / report.size_before:.0%})" if has_both else sizes(report)


_PACKAGES = ("onnx", "onnx-ir", "numpy", "onnxruntime", "onnxruntime-gpu")


def versions() -> Iterator[SummaryLine]:
    """Yield the versions of amp-rewrite, Python and the packages that influence a result."""
    packages = (f"{name} {number}" for name in _PACKAGES if (number := _version(name)))
    yield SummaryLine(
        "versions",
        f"amp-rewrite {version.installed()}, Python {platform.python_version()}, {', '.join(packages)}",
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def seconds(report: Report) -> Iterator[SummaryLine]:
    """Yield the wall time of every stage of the last rewrite."""
    stages = ", ".join(f"{stage} {duration:.2f}" for stage, duration in report.seconds)
    yield SummaryLine("seconds", f"{stages}; {sum(duration for _, duration in report.seconds):.2f} in all")
