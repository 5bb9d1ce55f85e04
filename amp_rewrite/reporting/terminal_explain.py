"""The output of `explain` in a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from amp_rewrite.bounds.unit_ranges import HalfRanges, Knowledge
from amp_rewrite.colouring.painting import Colour
from amp_rewrite.console import Console, Part, Styled
from amp_rewrite.explaining import sentences
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.explaining.sentences import CastExplanation, Step, first_step, of_cause, plural
from amp_rewrite.rewriting.cast_sites import Origin
from amp_rewrite.rewriting.decisions import Decisions


def print_units(console: Console, decisions: Decisions) -> None:
    """Prints every unit with its colour and reason, float32 first, in the order of the nodes."""
    for index in sorted(range(len(decisions.all)), key=lambda index: decisions.all[index].is_half):
        step = first_step(decisions, index)
        console.print(_coloured(step), f"  {step.unit}: {step.reason}")


def print_ranges(console: Console, decisions: Decisions, known: HalfRanges, half: str) -> None:
    """Prints what is known of the values of half units: first what it rests on, then unit by unit, those of
    which least is known first.
    """
    for line in (*sentences.inputs(known.counts), sentences.counts(known.counts, half)):
        console.print(line)
    order = list(reversed(Knowledge))
    for unit, found in sorted(known.units.items(), key=lambda item: order.index(item[1].knowledge)):
        word = Styled(found.knowledge.value, _KNOWN_IN[found.knowledge])
        console.print("  ", word, f"  {decisions.all[unit]}: {sentences.of_unit(found)}")


_KNOWN_IN = {Knowledge.PROVEN: "green", Knowledge.OBSERVED: "cyan", Knowledge.UNKNOWN: "yellow"}


def print_causes(console: Console, causes: Sequence[RootCause]) -> None:
    """Prints the causes of float32, most FLOPs first."""
    for cause in causes:
        words = of_cause(cause)
        console.print(Styled(words.weight, "bold"), f": {words.origin}")
        console.print(f"  {words.reason}")
        if words.suggestion:
            console.print(Styled(f"  {words.suggestion}", "cyan"))
    if not causes:
        console.print("no node stays float32")


def print_chain(console: Console, steps: Sequence[Step]) -> None:
    """Prints a unit and its chain of causes, one step per line, each the cause of the one above.

    Of a long chain, the first LINKS steps and the last are shown.
    """
    console.print(Styled(steps[0].unit, "bold"))
    shown = steps if len(steps) <= LINKS + 1 else steps[:LINKS]
    for depth, step in enumerate(shown, 1):
        console.print(*_line(step, depth))
    if len(shown) < len(steps):
        console.print(f"{'  ' * LINKS}  and {len(steps) - LINKS - 1:,} more, down to")
        console.print(*_line(steps[-1], LINKS + 1))


LINKS = 20
"""How many steps of a chain are shown before the last one."""


def _print_ends(console: Console, steps: Sequence[Step]) -> None:
    """Prints a unit and the last step of its chain of causes."""
    for step in steps[:1]:
        console.print(*_line(step, depth=2))
    if len(steps) > 2:
        console.print(f"      and {len(steps) - 2} more, down to")
    for step in steps[1:][-1:]:
        console.print(*_line(step, depth=3))


def _line(step: Step, depth: int) -> tuple[Part, ...]:
    return "  " * depth, _coloured(step), f" by rule {step.rule.value}: {step.unit}: {step.reason}"


def _coloured(step: Step) -> Styled:
    return Styled(step.colour.value, "green" if step.colour is Colour.HALF else "yellow")


READERS = 5
"""How many of the consumers of a Cast are shown."""


def print_cast(console: Console, story: CastExplanation) -> None:
    """Prints why a Cast is necessary: the producer of its input, the consumers of its output, and reasons."""
    whose = "added by the rewrite" if story.added else "from the original model"
    console.print(Styled(f"Cast of '{story.value}' to {story.dtype}, {whose}", "bold"))
    shared = ", once for consumers of both types" if story.added else ""
    console.print(f"  {_ORIGINS[story.origin]}{shared if story.origin is Origin.STORED else ''}")
    _print_ends(console, story.producer)
    if story.is_output:
        console.print("  the result is an output of the model, whose type is fixed by the options")
    if story.consumers:
        console.print(f"  the result is used by {plural(len(story.consumers), 'unit')}")
    for steps in story.consumers[:READERS]:
        _print_ends(console, steps)
    if len(story.consumers) > READERS:
        console.print(f"    and {len(story.consumers) - READERS:,} more")
    if story.again:
        console.print(f"  the result is cast again: see --why-cast {shlex.quote(story.again)}")
    if not story.consumers and not story.is_output and not story.again:
        console.print("  no float32 or half unit uses the result")


_ORIGINS = {
    Origin.UNIT: "the value is produced by",
    Origin.INPUT: "the value is an input of the model, whose type is fixed by the options",
    Origin.STORED: "the value is a constant",
    Origin.ANOTHER: "the value has another element type, about which nothing is decided",
}
