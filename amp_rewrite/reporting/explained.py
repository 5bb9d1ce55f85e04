"""What a person reads in a terminal of why a model is half where it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from amp_rewrite.colouring.painting import Colour
from amp_rewrite.console import Console, Part, Styled
from amp_rewrite.explaining.cast_explanations import CastExplanation
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.explaining.sentences import Step, first_step, of_cause, plural
from amp_rewrite.rewriting.cast_sites import Origin
from amp_rewrite.rewriting.decisions import Decisions


def print_units(console: Console, decisions: Decisions) -> None:
    """Every unit with its colour and why, a line each; those in float32 first, in the order of the nodes."""
    for index in sorted(range(len(decisions.all)), key=lambda index: decisions.all[index].is_half):
        step = first_step(decisions, index)
        console.print(_coloured(step), f"  {step.unit}: {step.reason}")


def print_causes(console: Console, causes: Sequence[RootCause]) -> None:
    """What holds nodes back in float32, the most arithmetic first."""
    for cause in causes:
        words = of_cause(cause)
        console.print(Styled(words.weight, "bold"), f": {words.origin}")
        console.print(f"  {words.reason}")
        if words.suggestion:
            console.print(Styled(f"  {words.suggestion}", "cyan"))
    if not causes:
        console.print("no node stays float32")


def print_chain(console: Console, steps: Sequence[Step]) -> None:
    """A chain of causes under the unit that it is about, one step a line, each the cause of the one above.

    Of a long one, LINKS at the beginning and the last are shown.
    """
    console.print(Styled(steps[0].unit, "bold"))
    shown = steps if len(steps) <= LINKS + 1 else steps[:LINKS]
    for depth, step in enumerate(shown, 1):
        console.print(*_line(step, depth))
    if len(shown) < len(steps):
        console.print(f"{'  ' * LINKS}  and {len(steps) - LINKS - 1:,} more between that and")
        console.print(*_line(steps[-1], LINKS + 1))


LINKS = 20
"""How many steps of a chain are shown, besides its end."""


def _print_ends(console: Console, steps: Sequence[Step]) -> None:
    """A unit, and where its chain of causes ends."""
    for step in steps[:1]:
        console.print(*_line(step, depth=2))
    if len(steps) > 2:
        console.print(f"      and {len(steps) - 2} more between that and")
    for step in steps[1:][-1:]:
        console.print(*_line(step, depth=3))


def _line(step: Step, depth: int) -> tuple[Part, ...]:
    return "  " * depth, _coloured(step), f" by rule {step.rule.value}: {step.unit}: {step.reason}"


def _coloured(step: Step) -> Styled:
    return Styled(step.colour.value, "green" if step.colour is Colour.HALF else "yellow")


READERS = 5
"""How many of the units that read what a Cast makes are shown."""


def print_story(console: Console, story: CastExplanation) -> None:
    """Why a Cast stands: what makes its value and why that is so, and the same of what reads the result."""
    whose = "which the rewrite adds" if story.added else "which the model had"
    console.print(Styled(f"Cast of '{story.value}' to {story.dtype}, {whose}", "bold"))
    shared = ", and once for readers of both types" if story.added else ""
    console.print(f"  {_ORIGINS[story.origin]}{shared if story.origin is Origin.STORED else ''}")
    _print_ends(console, story.producer)
    if story.is_output:
        console.print("  the result is an output of the model, and has the type that outputs are to have")
    if story.consumers:
        console.print(f"  the result is read by {plural(len(story.consumers), 'unit')}")
    for steps in story.consumers[:READERS]:
        _print_ends(console, steps)
    if len(story.consumers) > READERS:
        console.print(f"    and {len(story.consumers) - READERS:,} more")
    if story.again:
        console.print(f"  the result is cast again, see --why-cast {shlex.quote(story.again)}")
    if not story.consumers and not story.is_output and not story.again:
        console.print("  no float32 or half unit reads the result")


_ORIGINS = {
    Origin.UNIT: "the value is made by",
    Origin.INPUT: "the value is an input, and has the type that inputs are to have",
    Origin.STORED: "the value is stored",
    Origin.ANOTHER: "the value has another type, of which nothing was decided",
}
