"""The output of a rewrite and of a comparison in a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from rich.table import Column

from amp_rewrite.advice import Advice
from amp_rewrite.console import Console, Part, Styled
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.onnx_types.element_types import element_type_name
from amp_rewrite.policy.named_policies import Policy
from amp_rewrite.reporting.summary import SummaryLine, lines
from amp_rewrite.reporting.verdict_text import COLUMNS, cells, describe, hints, in_vain, notes
from amp_rewrite.rewriting.plan import Plan
from amp_rewrite.rewriting.report import Report
from amp_rewrite.running.blame import Blame, Choice, NodeError
from amp_rewrite.running.verdict import Output, Verdict


def print_summary(console: Console, report: Report, title: str) -> None:
    """Prints the summary of a rewrite."""
    console.print(Styled(title, "bold"))
    print_lines(console, lines(report))


def print_lines(console: Console, shown: Iterable[SummaryLine]) -> None:
    """Prints summary lines, the labels in a column of their own."""
    for line in shown:
        if line.is_whole:
            console.whole(f"{line.name:<9}{line.text}")
        else:
            console.print(Styled(f"{line.name:<9}", "dim"), line.text)


def print_device_check(console: Console, policy: Policy | None, advise: Callable[[], Advice]) -> None:
    """Prints the compatibility check of a precision policy; nothing without one, or where it is float32."""
    if policy is not None and policy.compute is not None and not console.quiet:
        print_lines(console, (SummaryLine("device", hint) for hint in advise().hints()))


def print_hints(console: Console, found: Iterable[str]) -> None:
    """Prints what to do next, one hint per line, if there is any; called last. Flags alone are to be added
    to the command that ran.
    """
    for name, hint in zip(itertools.chain(["next"], itertools.repeat("")), found, strict=False):
        added = "add " if hint.startswith("--") else ""
        console.whole(Styled(f"{name:<9}{added}{hint}", "cyan"))


def print_plan(console: Console, plan: Plan) -> None:
    """Prints what a plan would change: every Cast, and every stored tensor that is stored differently."""
    if changes := list(_changes(plan)):
        console.table(("change", Column("value", overflow="fold"), "details"), changes)


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
"""How many of the nodes that add most error are listed."""


def print_verdict(console: Console, verdict: Verdict, *, per_node: bool = False, hinted: bool = True) -> None:
    """Prints the metrics and the verdict of every output, the faults, the node to look at, what was
    tried in vain, and if `hinted` hints."""
    console.print(describe(verdict))
    name, *rest = COLUMNS
    if verdict.outputs:
        console.table((Column(name, overflow="fold"), *rest), map(_row, verdict.outputs))
    for note in notes(verdict):
        console.print(f"  {note}")
    for warning in verdict.warnings:
        console.print(f"warning  {warning}")
    for fault in verdict.faults:
        console.print(Styled(f"  {fault}", "red"))
    if verdict.blame is not None:
        _print_blame(console, verdict.blame, per_node=per_node)
        if verdict.blame.choice is not None:
            console.print(f"  {_choice(verdict.blame.choice)}")
    for text in in_vain(verdict):
        console.whole(f"  {text}")
    print_hints(console, hints(verdict) if hinted else ())


def _style(output: Output) -> str:
    if output.broken:
        return "red"
    if output.is_undecided:
        return "yellow"
    return "green" if output.is_compared else ""


def _row(output: Output) -> tuple[Part, ...]:
    *texts, judged = cells(output)
    return (*texts, Styled(judged, _style(output)))


def _print_blame(console: Console, blame: Blame, *, per_node: bool) -> None:
    worst = blame.worst
    if worst is None:
        return
    for error in blame.nodes[: SHOWN if per_node else 1]:
        console.print(f"  {_node(error)}: {_errors(error)}")
    if worst.non_finite:
        lost = f"first to produce {plural(worst.non_finite, 'infinite or NaN value')}"
        console.print(f"  {lost}: {_node(worst)}{_input_range(worst)}")


def _choice(choice: Choice) -> str:
    rows = f"in {choice.rows:,} of {plural(choice.of, 'row')}"
    return f"first to choose otherwise: {choice.operator} '{choice.node}', {rows}, between close values"


def _errors(error: NodeError) -> str:
    """What rounding there adds to the outputs, where that was measured; else what the node adds itself."""
    if error.effect is None:
        return f"error {error.error:.1e}, adds {error.added:.1e}"
    return f"adds {error.effect:.1e} to the outputs; its own error {error.error:.1e}"


def _input_range(error: NodeError) -> str:
    """The range of the node's finite inputs, where it was recorded."""
    if error.low is None or error.high is None:
        return ""
    return f", whose inputs range from {error.low:.3g} to {error.high:.3g}"


def _node(error: NodeError) -> str:
    return f"{error.operator} '{error.node}'"
