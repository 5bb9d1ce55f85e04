"""What a person reads in a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from amp_rewrite.element_types import element_name
from amp_rewrite.plan import Plan
from amp_rewrite.reporting.report import Report
from amp_rewrite.reporting.sentences import plural
from amp_rewrite.reporting.summary import Line, lines
from amp_rewrite.reporting.verdicts import COLUMNS, cells, faults, how
from amp_rewrite.running.blame import Blame, NodeError
from amp_rewrite.running.verification import Verdict


def plain_console(*, quiet: bool = False, stderr: bool = False) -> Console:
    """A console that prints text as it is, and breaks no line: a name may hold brackets, a path be long."""
    return Console(quiet=quiet, stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_summary(console: Console, report: Report, title: str, hints: Iterable[str] = ()) -> None:
    """The few lines that a user reads after a rewrite, and what to do next."""
    console.print(Text(title, style="bold"))
    print_lines(console, (*lines(report), *(Line("next", hint) for hint in hints)))


def print_lines(console: Console, shown: Iterable[Line]) -> None:
    """Lines, with what each is about in a column of its own."""
    for line in shown:
        console.print(Text(f"{line.name:<9}", style="dim").append(line.text, style="not dim"))


def print_plan(console: Console, plan: Plan) -> None:
    """What a plan would change: every Cast, and every stored tensor that is kept in another form."""
    table = Table(
        "change", Column("value", overflow="fold"), "details", box=None, header_style="dim", pad_edge=False
    )
    for cast in plan.casts:
        reads = plural(len(cast.reads), "reader")
        table.add_row("Cast", _name(cast.value.name), f"to {element_name(cast.dtype)} for {reads}")
    for storing in plan.stored:
        notes = [f"{storing.saturates:,} saturate"] if storing.saturates else []
        notes += [f"{storing.flushes:,} become 0"] if storing.flushes else []
        details = ", ".join([storing.form.value, *notes])
        table.add_row("stored", _name(storing.stored.value.name), details)
    console.print(table)


def _name(name: str | None) -> str:
    return name or "(unnamed)"


SHOWN = 5
"""How many of the nodes that add most error are shown."""


def print_verdict(console: Console, verdict: Verdict, *, per_node: bool = False) -> None:
    """The metrics of every output and the verdict; what broke, and the node to look at, where it is known."""
    console.print(how(verdict))
    name, *rest = COLUMNS
    table = Table(Column(name, overflow="fold"), *rest, box=None, header_style="dim", pad_edge=False)
    for output in verdict.outputs:
        *texts, judged = cells(output)
        table.add_row(*map(Text, texts), Text(judged, style="red" if output.broken else "green"))
    if verdict.outputs:
        console.print(table)
    for fault in faults(verdict):
        console.print(Text(f"  {fault}", style="red"))
    if verdict.blame is not None:
        _print_blame(console, verdict.blame, per_node=per_node)


def _print_blame(console: Console, blame: Blame, *, per_node: bool) -> None:
    worst = blame.worst
    if worst is None:
        return
    for error in blame.nodes[: SHOWN if per_node else 1]:
        console.print(f"  {_node(error)}: error {error.error:.1e}, adds {error.added:.1e}")
    if worst.non_finite:
        lost = f"first to make {plural(worst.non_finite, 'value')} infinite or NaN"
        console.print(f"  {lost}: {_node(worst)}{_reads(worst)}")
    flags = " ".join(f"--keep-full {shlex.quote(name)}" for name in worst.keep_full)
    console.print(Text(f"next     {flags}", style="cyan"))


def _reads(error: NodeError) -> str:
    """What the node reads, where something finite that it reads was looked at."""
    if error.low is None or error.high is None:
        return ""
    return f", which reads {error.low:.3g} to {error.high:.3g}"


def _node(error: NodeError) -> str:
    return f"{error.operator} '{error.node}'"
