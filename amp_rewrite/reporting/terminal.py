"""The output of `rewrite`, `verify`, `explain` and `bench` in a terminal."""

from __future__ import annotations

import itertools
import math
import shlex
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from amp_rewrite.bounds.unit_ranges import HalfRanges, Knowledge
from amp_rewrite.colouring.painting import Colour
from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage.advice import Advice
from amp_rewrite.explaining import sentences
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.explaining.sentences import CastExplanation, ChainLink, first_step, of_cause
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types.element_types import element_type_name
from amp_rewrite.policy import devices
from amp_rewrite.reporting.summary import lines
from amp_rewrite.rewriting.decisions import Decisions, Origin
from amp_rewrite.rewriting.plan import Plan
from amp_rewrite.rewriting.report import Report, SummaryLine
from amp_rewrite.running import verdict_text
from amp_rewrite.running.blame import Blame, NodeError
from amp_rewrite.running.latency import Bench
from amp_rewrite.running.sessions import Device
from amp_rewrite.running.verdict import Output, Verdict
from amp_rewrite.text import plural

# A rewrite, and a comparison.


def print_summary(console: Console, report: Report, title: str) -> None:
    """Print the summary of a rewrite."""
    console.print(Styled(title, "bold"))
    print_lines(console, lines(report))


def print_lines(console: Console, lines: Iterable[SummaryLine]) -> None:
    """Print summary lines, the labels in a column of their own."""
    for line in lines:
        if line.is_whole:
            console.whole(Styled(f"{line.name:<9}{line.text}", _LABELS.get(line.name, "")))
        else:
            console.labelled(Styled(f"{line.name:<9}", _LABELS.get(line.name, "dim")), line.text)


_LABELS = {"warning": "bold yellow", "BROKEN": "bold red"}


def print_device_check(console: Console, half: Half | None, device: devices.Device) -> None:
    """Print whether a device is faster in half; nothing without a half type."""
    if half is not None and not console.quiet:
        for line in Advice(half.name, device.name, device.is_fast(half.name)).lines():
            console.labelled(Styled("device   ", "dim"), line)


def print_hints(console: Console, hints: Iterable[str]) -> None:
    """Print hints for the next step, one per line; called last. Bare flags are to be added to the command
    that ran.
    """
    for name, hint in zip(itertools.chain(["next"], itertools.repeat("")), hints, strict=False):
        verb = "add " if hint.startswith("--") else ""
        console.whole(Styled(f"{name:<6}{verb}{hint}", "cyan"))


def print_plan(console: Console, plan: Plan) -> None:
    """Print the changes of a plan: every Cast, and every stored tensor with another storage."""
    if changes := list(_changes(plan)):
        console.table(("change", "value", "details"), changes, names=1)


def _changes(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for cast in plan.casts:
        uses = plural(len(cast.uses), "use")
        yield "Cast", cast.value.name or "(unnamed)", f"to {element_type_name(cast.dtype)} for {uses}"
    for storing in plan.tensors:
        notes = [f"{storing.saturates:,} saturate"] if storing.saturates else []
        notes += [f"{storing.flushes:,} flushed to 0"] if storing.flushes else []
        details = ", ".join([storing.storage.value, *notes])
        yield "stored", storing.stored.value.name or "(unnamed)", details


SHOWN = 5
"""The number of outputs, faults and nodes that are listed, the worst first."""


@dataclass(frozen=True, slots=True)
class NamedOutcome:
    """The model that a conclusion is about: its file, clauses on it, and sentences that follow."""

    name: str
    clauses: Sequence[str] = ()
    notes: Sequence[str] = ()


def print_verdict(
    console: Console,
    verdict: Verdict,
    subject: NamedOutcome,
    *,
    is_valid: bool = True,
    is_verbose: bool = False,
    per_node: bool = False,
) -> None:
    """Print the outputs, worst first, warnings, faults that the table does not show, and the conclusion.

    `is_verbose` adds all outputs, metrics and details; `per_node` the nodes that add most error.
    """
    outputs = verdict_text.worst_first(verdict.outputs)
    if is_verbose or not outputs:
        console.print(verdict_text.describe(verdict))
    if is_verbose:
        _print_outputs(console, verdict_text.COLUMNS, verdict_text.cells, outputs)
    else:
        _print_outputs(console, verdict_text.SHORT_COLUMNS, verdict_text.short_cells, outputs[:SHOWN])
        if len(outputs) > SHOWN:
            console.print(f"and {plural(len(outputs) - SHOWN, 'more output')}, none of them worse (-v)")
    for note in (*verdict_text.results(verdict), *(verdict_text.details(verdict) if is_verbose else ())):
        console.print(f"  {note}")
    print_lines(
        console,
        (SummaryLine("warning", text) for text in (*verdict.warnings, *verdict_text.warnings(verdict))),
    )
    for fault in verdict.faults if is_verbose else tuple(verdict_text.faults(verdict))[:SHOWN]:
        console.print(Styled(f"  {fault}", "red"))
    blame = verdict.blame
    for error in blame.nodes[:SHOWN] if blame is not None and per_node else ():
        console.print(f"  {_node(error)}: {_errors(error)}")
    for text in verdict_text.in_vain(verdict) if is_verbose else ():
        console.whole(f"  {text}")
    label = verdict_text.conclusion(verdict) if is_valid else "FAIL"
    clauses = (*subject.clauses, *filter(None, [verdict_text.largest(verdict)]))
    suspects = tuple(_suspects(blame)) if blame is not None and not verdict.ok else ()
    print_conclusion(console, label, NamedOutcome(subject.name, clauses, suspects or subject.notes))


def _print_outputs(
    console: Console,
    columns: Sequence[str],
    row: Callable[[Output], Sequence[str]],
    outputs: Sequence[Output],
) -> None:
    if outputs:
        styled = ((*row(output)[:-1], Styled(row(output)[-1], _style(output))) for output in outputs)
        console.table(columns, styled, names=0)


def print_conclusion(console: Console, label: str, subject: NamedOutcome) -> None:
    """Print the last lines of a command: its verdict, the file, the numbers, and what follows from them."""
    text = "  ".join(filter(None, (subject.name, ", ".join(subject.clauses))))
    console.labelled(Styled(f"{label:<4}  ", _CONCLUSIONS.get(label, "bold")), text)
    for note in subject.notes:
        console.labelled(Styled(" " * (max(len(label), 4) + 2)), note)


_CONCLUSIONS = {"PASS": "bold green", "FAIL": "bold red", "inconclusive": "bold yellow"}


def _style(output: Output) -> str:
    if output.broken:
        return "red"
    if output.is_undecided:
        return "yellow"
    return "green" if output.is_compared else ""


def _suspects(blame: Blame) -> Iterator[str]:
    """Yield the node to look at: the first that loses values, else the one that adds most error; and the
    first that selects otherwise.
    """
    if (worst := blame.worst) is not None and worst.non_finite:
        yield f"first non-finite values: {_node(worst)} ({worst.non_finite:,}{_input_range(worst)})"
    elif worst is not None:
        yield f"look at {_node(worst)}: {_errors(worst)}"
    if blame.choice is not None:
        yield f"first to select otherwise: {verdict_text.selection(blame.choice)}"


def _errors(error: NodeError) -> str:
    """Return the error that a node adds to the outputs, if that was measured; else to its own values."""
    if error.non_finite:
        return plural(error.non_finite, "infinite or NaN value")
    if not math.isfinite(error.error):
        return "infinities or NaN of its inputs"
    if error.effect is None:
        return f"off by {error.error:.1e}, {error.added:.1e} more than its inputs"
    return f"adds {error.effect:.1e} to the outputs; its own error {error.error:.1e}"


def _input_range(error: NodeError) -> str:
    """Return the range of the node's finite inputs, where it was recorded."""
    if error.low is None or error.high is None:
        return ""
    return f"; its inputs are in {error.low:.3g}..{error.high:.3g}"


def _node(error: NodeError) -> str:
    return f"{error.operator} '{error.node}'"


# Explanations.


def print_units(console: Console, decisions: Decisions) -> None:
    """Print every unit with its colour and reason, float32 first, in the order of the nodes."""
    for index in sorted(range(len(decisions.all)), key=lambda index: decisions.all[index].is_half):
        step = first_step(decisions, index)
        console.print(_coloured(step), f"  {step.unit}: {step.reason}")


def print_ranges(console: Console, decisions: Decisions, half_ranges: HalfRanges, half: str) -> None:
    """Print the knowledge of half units' values: first the input ranges behind it, then unit by unit, the
    least known first.
    """
    for line in (*sentences.inputs(half_ranges.counts), sentences.counts(half_ranges.counts, half)):
        console.print(line)
    order = list(reversed(Knowledge))
    for unit, values in sorted(half_ranges.units.items(), key=lambda item: order.index(item[1].knowledge)):
        word = Styled(values.knowledge.value, _KNOWN_IN[values.knowledge])
        console.print("  ", word, f"  {decisions.label(unit)}: {sentences.of_unit(values)}")


_KNOWN_IN = {Knowledge.PROVEN: "green", Knowledge.OBSERVED: "cyan", Knowledge.UNKNOWN: "yellow"}


def print_causes(console: Console, causes: Sequence[RootCause]) -> None:
    """Print the causes of float32, most FLOPs first."""
    for cause in causes:
        words = of_cause(cause)
        console.print(Styled(words.weight, "bold"), f": {words.origin}")
        console.print(f"  {words.reason}")
        if words.suggestion:
            console.print(Styled(f"  {words.suggestion}", "cyan"))
    if not causes:
        console.print("no node stays float32")


def print_chain(console: Console, steps: Sequence[ChainLink]) -> None:
    """Print a unit and its chain of causes, one step per line, each the cause of the one above.

    Of a long chain, the first LINKS steps and the last are shown.
    """
    console.print(Styled(steps[0].unit, "bold"))
    _print_steps(console, steps, LINKS, depth=1)


LINKS = 20
"""The number of steps of a chain that are shown before the last one."""


def _print_steps(console: Console, steps: Sequence[ChainLink], most: int, depth: int) -> None:
    """Print the first `most` steps and the last, each deeper than the one before."""
    hidden = len(steps) - most - 1
    shown = steps if hidden < 1 else (*steps[:most], steps[-1])
    for number, step in enumerate(shown):
        if number == most and hidden > 0:
            console.print(f"{'  ' * (depth + most)}and {hidden:,} more, down to")
        console.print("  " * (depth + number), _coloured(step), f": {step.unit}: {step.reason}")


def _coloured(step: ChainLink) -> Styled:
    return Styled("half", "green") if step.colour is Colour.HALF else Styled("float32", "yellow")


READERS = 5
"""The number of consumers of a Cast that are shown."""


def print_cast(console: Console, story: CastExplanation) -> None:
    """Print the explanation of a Cast: producer of the input, consumers of the output, reasons."""
    whose = "added by the rewrite" if story.added else "from the original model"
    console.print(Styled(f"Cast of '{story.value}' to {story.dtype}, {whose}", "bold"))
    shared = ", once for consumers of both types" if story.added else ""
    console.print(f"  {_ORIGINS[story.origin]}{shared if story.origin is Origin.STORED else ''}")
    _print_steps(console, story.producer, most=1, depth=2)
    if story.is_output:
        console.print("  the result is an output of the model, whose type is fixed by the options")
    if story.consumers:
        console.print(f"  the result is used by {plural(len(story.consumers), 'part')}")
    for steps in story.consumers[:READERS]:
        _print_steps(console, steps, most=1, depth=2)
    if len(story.consumers) > READERS:
        console.print(f"    and {len(story.consumers) - READERS:,} more")
    if story.again:
        console.print(f"  the result is cast again: explain {shlex.quote(story.again)}")
    if not story.consumers and not story.is_output and not story.again:
        console.print("  no float32 or half part of a node uses the result")


_ORIGINS = {
    Origin.UNIT: "the value is produced by",
    Origin.INPUT: "the value is an input of the model, whose type is fixed by the options",
    Origin.STORED: "the value is a constant",
    Origin.ANOTHER: "the value has another element type, about which nothing is decided",
}


# A bench: a column for each model, a row for each metric.


def print_bench(console: Console, bench: Bench) -> None:
    """Print the device, the models, and the table."""
    rounds = plural(len(bench.rounds), "round")
    in_float32 = ", half computed in float32: no measure of a GPU" if bench.device is Device.CPU else ""
    console.print(f"on {bench.device.value}, onnxruntime {bench.onnxruntime}, {rounds}{in_float32}")
    labels = letters(len(bench.models))
    for letter, model in zip(labels, bench.models, strict=True):
        console.print(f"  {letter}  {bench.title(model)}")
    _, medians, speedups = zip(*bench.figures(), strict=True)
    rows = (
        ("p50 ms", *(f"{median:.3f}" for median in medians)),
        ("speed against A", *(f"{each.median:.2f}x" for each in speedups)),
        ("  with 90 % between", "", *(f"{each.low:.2f} to {each.high:.2f}" for each in speedups[1:])),
    )
    console.numbers(("", *labels), rows)


def letters(count: int) -> list[str]:
    """Return the labels A, B, ..., Z, AA, AB, ..."""
    alphabets = (itertools.product(string.ascii_uppercase, repeat=size) for size in itertools.count(1))
    return ["".join(each) for each in itertools.islice(itertools.chain.from_iterable(alphabets), count)]
