"""Sentences that explain the colour of a unit, and the numbers of a report in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from amp_rewrite.bounds.given import InputRange, Source
from amp_rewrite.bounds.unit_ranges import Knowledge, RangeCounts, UnitRange
from amp_rewrite.colouring.painting import Colour, Rule
from amp_rewrite.costs.model_costs import Prediction
from amp_rewrite.explaining.causes import RootCause, Suggestion
from amp_rewrite.policy import devices
from amp_rewrite.policy.entries import authority_in_words
from amp_rewrite.policy.evidence import OF_FINDINGS, Authority, in_words
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.rewriting.decisions import CastSite, Decision, Decisions, Origin
from amp_rewrite.rewriting.plan import Rescaled
from amp_rewrite.text import plural, share


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One link in a chain of causes: a unit, its colour, and the reason."""

    unit: str
    colour: Colour
    rule: Rule
    kind: Kind
    reason: str


def chain(decisions: Decisions, unit: int) -> tuple[ChainLink, ...]:
    """Return the chain of steps that explains a unit's colour, down to its root."""
    return tuple(first_step(decisions, link) for link in decisions.why(unit))


def first_step(decisions: Decisions, index: int) -> ChainLink:
    """Return the first step of a unit's chain of causes: its reason, and the unit that caused it."""
    decision = decisions.all[index]
    cause = decisions.label(decision.cause) if decision.cause is not None else ""
    return ChainLink(
        unit=decisions.label(index),
        colour=decision.precision,
        rule=decision.rule,
        kind=decision.kind,
        reason=_BY_HAND if decision.by_hand else _because(decision, cause),
    )


_BY_HAND = "changed by hand in the saved plan"
_GONE = "a node that is no longer in the model"
_NO_LONGER_HALF = "a node that is no longer half, or no longer in the model"


def _because(decision: Decision, cause: str) -> str:
    rule, kind = decision.rule, decision.kind
    own = f"{in_words(decision.evidence)} ({authority_in_words(decision.evidence, kind)})"
    if rule is Rule.SETTLE:
        relation = "tied to" if decision.precision is Colour.FULL else "a Cast has the type of its neighbour"
        return f"{relation} {cause or _GONE}"
    if rule is Rule.DENY and kind is not Kind.DENY:
        downstream = f"downstream of {cause or _GONE}, which is denied or suspect itself"
        return f"stays float32: {own}, and {downstream}" if kind is Kind.FIXED else downstream
    if rule in (Rule.PRUNE, Rule.GATE):
        return f"stays float32: {in_words(decision.evidence)}"
    if rule is Rule.LEFT:
        return _LEFT.get(kind, f"stays float32: {own}")
    if rule in _ON_THE_WAY:
        proof = f"{own}; " if decision.evidence.authority is Authority.PROOF else ""
        return f"{proof}{_ON_THE_WAY[rule]} {cause or _NO_LONGER_HALF}"
    return f"{_OWN.get(rule, 'denied')}: {own}"


_OWN = {Rule.ALLOW: "allowed", Rule.UNPINNED: "half without the pins as well"}


_ON_THE_WAY = {
    Rule.BETWEEN: "safe, and between allowed nodes; on the way to",
    Rule.LEAD: "safe, made of stored values, and on the way to",
    Rule.FOLLOW: "safe, and continues in half after",
    Rule.SPREAD: "no arithmetic; goes with its neighbour",
}
_LEFT = {
    Kind.INFER: "safe in half, but no neighbour benefits: it would only add Casts",
    Kind.CLEAR: "no arithmetic, and no neighbour in half",
}


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A cause of float32 as text: its extent and its roots, the reason, the remedy."""

    weight: str
    origin: str
    reason: str
    suggestion: str


def of_cause(cause: RootCause) -> Paragraph:
    """Return a cause of float32 in words."""
    weight = plural(len(cause.affected), "node")
    if cause.partly:
        weight += " in part" if cause.partly == len(cause.affected) else f" ({cause.partly:,} in part)"
    if cause.flop_share is not None:
        weight += f", {share(cause.flop_share)} of {_flops(cause)}"
    roots = cause.root_places
    more = len(roots) - 1
    others = f" and {more:,} more" if more else ""
    downstream = "" if len(roots) == len(cause.affected) else "downstream of "
    reason = first_step(cause.decisions, cause.roots[0]).reason
    return Paragraph(weight, f"{downstream}{roots[0]}{others}", reason, remedy(cause))


def remedy(cause: RootCause) -> str:
    """Return the flags that free nodes of a cause, or why none does; empty where none was tried."""
    advice = cause.suggestion
    flags, drops = " ".join(advice.flags), " ".join(advice.dropped_flags)
    if not flags and not drops:
        return advice.why
    forced = cause.first.evidence.authority in OF_FINDINGS | {Authority.TARGET}
    change = f"leave out {drops}" if not flags else f"{flags} in place of {drops}" if drops else flags
    return (
        f"to {'force' if forced else 'allow'}: {change} (frees {_gain(advice, _flops(cause))}; not compared)"
    )


def _flops(cause: RootCause) -> str:
    return "FLOPs" if cause.all_known else "the FLOPs that are known"


def _gain(suggestion: Suggestion, flops: str) -> str:
    """Return the gain of a remedy in words, without a share that losses at other nodes outweigh."""
    nodes, part = plural(suggestion.frees, "node"), suggestion.flop_share
    return nodes if part is None or part < 0 else f"{nodes}, {share(part)} of {flops}"


# Predicted times.


def speed(times: Prediction, *, gated: bool = False) -> str:
    """Return the predicted speed relative to float32; if half does not pay, with the reason and the remedy,
    or that the gate leaves such a model as it is.
    """
    is_even, device = _rounded(times) == "1.0", times.device
    speed = "about as fast as float32" if is_even else f"about {_rounded(times)} times as fast as float32"
    if times.speedup <= 1 and not is_even:
        speed = f"{times.half} does not pay: {speed}"
    if device in devices.BY_NAME:
        device = f"{'a' if device == devices.T4.name else 'an'} {device.upper()}"
    at = f"predicted at {times.sizes}" if times.sizes else "predicted"
    speed = f"{speed} on {device} ({', '.join((at, *_size_notes(times)))})"
    if not (gated or does_not_pay(times)):
        return speed
    return f"{speed}{_why_slower(times)}; {_GATED if gated else _REMEDY}"


def speeds(times: Prediction) -> str:
    """Return the predicted speedups over float32 and over all half, with the launches and Casts."""
    factors = f"{times.speedup:.2f}x float32 and {times.of_everything:.2f}x everything in {times.half}"
    notes = ", ".join(_size_notes(times))
    sizes = f" at {times.sizes}{f' ({notes})' if notes else ''}" if times.sizes else ""
    launches, casts = times.result.launches, times.result.casts
    of_casts = f"{plural(launches, 'launch')}, {casts:,} of them {'a Cast' if casts == 1 else 'Casts'}"
    return f"{factors} on {times.device}{sizes}, {of_casts} (predicted, not measured)"


def slowness(times: Prediction | None, *, gated: bool) -> tuple[str, ...]:
    """Return the warning that half is predicted not to pay, if it is: none for less than the speed shows."""
    if times is None or not (does_not_pay(times) or (gated and times.is_slower)):
        return ()
    return (speed(times, gated=gated),)


def does_not_pay(times: Prediction) -> bool:
    """Return whether half gains nothing, by more than the speed shows to one decimal place."""
    return times.is_slower and (_rounded(times) != "1.0" or not times.fast_half)


_GATED = "nothing becomes half (`Options.gate`)"
_REMEDY = "`Options.gate` leaves such a model as it is"


def _rounded(times: Prediction) -> str:
    return f"{times.speedup:.1f}"


def _size_notes(times: Prediction) -> Iterator[str]:
    """Yield the origins of the sizes of a prediction."""
    if times.sizes_from:
        yield f"sizes {times.sizes_from}"
    if times.open_size:
        yield f"{'other' if times.sizes_from else 'open'} sizes count as {times.open_size}"


def _why_slower(times: Prediction) -> str:
    """Return why half gains nothing, behind a colon: a device without fast half, or Casts and copies; empty
    without any.
    """
    if not times.fast_half:
        return f": it computes {times.half} no faster than float32"
    run = times.result
    parts = [plural(run.casts, "Cast")] if run.casts else []
    parts += [plural(run.copies, "copy")] if run.copies else []
    verb = "costs" if run.casts + run.copies == 1 else "cost"
    return f": {' and '.join(parts)} {verb} more time than half saves" if parts else ""


# Changes to a model's form before any decision, in sentences.


def summary(changes: Iterable[FormChange]) -> Iterator[str]:
    """Yield a sentence for each kind of change, with the number of nodes; opsets with their versions."""
    counts = Counter(change.kind for change in changes)
    yield from (of(change) for change in changes if change.kind not in _SUMMARIES)
    for kind, (noun, fate) in _SUMMARIES.items():
        if counts[kind]:
            yield f"{plural(counts[kind], noun)} {fate}"


def of(change: FormChange) -> str:
    """Describe a change to a part of the model."""
    return _SENTENCES[change.kind].format(change=change)


_SUMMARIES = {
    FormChangeKind.FOLDED: ("node", "of stored values alone computed"),
    FormChangeKind.MERGED: ("BatchNormalization", "merged into the weights before"),
    FormChangeKind.MAX_AND_MIN: ("Clip", "written as Max and Min"),
    FormChangeKind.RECIPROCAL: ("Reciprocal", "written as Div"),
    FormChangeKind.SQUARE: ("square", "written as Pow"),
    FormChangeKind.RANK: ("weight", "given the rank of the data"),
}
_SENTENCES = {
    FormChangeKind.OPSET_RAISED: "opset raised from {change.before} to {change.after} for its half kernels",
    FormChangeKind.OPSET_SET: "opset set from {change.before} to {change.after}, as asked",
    FormChangeKind.FOLDED: "computed beforehand in float32: it depends on stored values alone",
    FormChangeKind.MERGED: "merged into the weights of '{change.into}', in float32",
    FormChangeKind.MAX_AND_MIN: "written as '{change.into}' and a Max, which have half kernels at this opset",
    FormChangeKind.RECIPROCAL: "written as a division, which runtimes fuse into the norm",
    FormChangeKind.SQUARE: "written as a power of 2, which runtimes fuse into the norm",
    FormChangeKind.RANK: "its stored weight has rank {change.after} in place of {change.before}, as the data",
}


# Knowledge of values, in sentences.


def of_rescaled(rescaled: Rescaled, half: str) -> str:
    """Return the effect of powers of two, with the largest value that they made fit."""
    e, parts = exponents(rescaled).get(rescaled.largest, 0), len(rescaled.regions)
    others = "others" if parts <= 1 else f"others in {parts} parts of the model"
    values = f"'{rescaled.largest}', of which {rescaled.most:.2e} was seen, and {others}, {stored_as(e)}"
    changes = ((rescaled.weights, "weight"), (rescaled.epsilons, "epsilon"), (rescaled.muls, "Mul"))
    counts = (plural(count, noun) for count, noun in changes if count)
    return f"{values}: {', '.join(counts)}; {plural(rescaled.freed, 'node')} {half} instead of float32"


def exponents(rescaled: Rescaled | None) -> Mapping[str, int]:
    """Return the exponents of computed values by their names."""
    values = () if rescaled is None else rescaled.values
    return {each.value: each.exponent for each in values if each.reader is None}


def stored_as(e: int, rescaled: Rescaled | None = None) -> str:
    """Return the power of two by which a value is stored, and the reason where one is known."""
    has_reason = rescaled is not None and len(rescaled.regions) == 1
    why = f", since {rescaled.most:.2e} was seen in '{rescaled.largest}'" if rescaled and has_reason else ""
    return f"stored as 2^{-e} of what the original has{why}"


def counts(range_counts: RangeCounts, half: str) -> str:
    """Return the numbers of half units that are proven, observed and not known to fit."""
    parts = (
        (range_counts.proven, "proven"),
        (range_counts.observed, "observed"),
        (range_counts.unknown, "unknown"),
    )
    clauses = ", ".join(f"{number:,} {word}" for number, word in parts)
    return f"{plural(range_counts.half_units, 'half part')}: {clauses} to stay inside the range of {half}"


def inputs(range_counts: RangeCounts) -> Iterator[str]:
    """Return the input ranges from which all bounds are propagated, a line each."""
    return (_input(each) for each in range_counts.inputs)


def assumed(range_counts: RangeCounts) -> Iterator[str]:
    """Return the same for the ranges that are assumed, not declared, and need not hold."""
    return (_input(each) for each in range_counts.inputs if each.source is not Source.DECLARED)


def _input(bounds: InputRange) -> str:
    return f"input '{bounds.name}' is between {bounds.low:g} and {bounds.high:g} ({_SOURCES[bounds.source]})"


_SOURCES = {
    Source.DECLARED: "declared",
    Source.IMAGE: "assumed for images",
    Source.MASK: "assumed for masks",
}


def of_unit(unit_range: UnitRange) -> str:
    """Describe the bound on the least known value of a unit."""
    value = f"'{unit_range.value}'" if unit_range.value else "every value"
    if unit_range.knowledge is Knowledge.OBSERVED:
        return f"{value} was at most {unit_range.bound:.3g}"
    if math.isinf(unit_range.bound):
        return f"nothing bounds {value}"
    return f"{value} is at most {unit_range.bound:.3g}"


# Explanations of Casts: the producer of the value, and its consumers in the other type.


@dataclass(frozen=True, slots=True)
class CastExplanation:
    """A Cast of `value` to `dtype`; `added` says that the model did not have it.

    `origin` describes the producer, `maker` explains its colour (empty when no unit produces the value), and
    each of `readers` that of a consumer of the result. `leaves` is True when the result is an output of the
    model; `again` is the name of the result where it is cast once more, else empty.
    """

    value: str
    dtype: str
    added: bool
    origin: Origin
    producer: tuple[ChainLink, ...]
    consumers: tuple[tuple[ChainLink, ...], ...]
    is_output: bool
    again: str


def about(decisions: Decisions, name: str) -> tuple[CastExplanation, ...]:
    """Return the Casts whose input, node or output has this name; empty without any."""
    sites = [crossing for crossing in decisions.cast_sites if name in crossing.names]
    cast = {next(iter(crossing.names), "") for crossing in decisions.cast_sites} if sites else set[str]()
    return tuple(_story(decisions, crossing, cast) for crossing in sites)


def _story(decisions: Decisions, crossing: CastSite, cast: Container[str]) -> CastExplanation:
    """Return the explanation of one Cast; `cast` are the names of all values that are cast."""
    _, *others = crossing.names or ("",)
    again = others[-1] if others and not crossing.added and others[-1] in cast else ""
    return CastExplanation(
        value=next(iter(crossing.names), ""),
        dtype=crossing.dtype,
        added=crossing.added,
        origin=crossing.origin,
        producer=chain(decisions, crossing.producer) if crossing.producer is not None else (),
        consumers=tuple(chain(decisions, reader) for reader in crossing.consumers),
        is_output=crossing.is_output,
        again=again,
    )
