"""What the HTML report shows of a train step: its parts, and where a loss scale enters and leaves."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amp_rewrite.reporting.drawn_graph import Box, Shade
from amp_rewrite.reporting.summary import SummaryLine


class StepPart(enum.Enum):
    """The part of a train step that a node belongs to.

    BACKWARD is linear in the seed, and multiplied by a loss scale that ENTERS at the seed and LEAVES at the
    gradients. LOSS and OPTIMISER stay float32, and SCALE decides which steps are skipped, and the next scale.
    """

    FORWARD = "forward"
    LOSS = "loss"
    ENTERS = "enters"
    BACKWARD = "backward"
    LEAVES = "leaves"
    OPTIMISER = "optimiser"
    SCALE = "scale"


@dataclass(frozen=True, slots=True)
class StepView:
    """The lines on a train step, and the part of each box; None for what is no node."""

    lines: tuple[SummaryLine, ...]
    parts: tuple[StepPart | None, ...]


def view(lines: Sequence[SummaryLine], parts: Mapping[str, StepPart], boxes: Sequence[Box]) -> StepView:
    """The view of a step whose nodes have these parts, by the names of outputs; all others are forward."""
    return StepView(tuple(lines), tuple(_part(box, parts) for box in boxes))


def _part(box: Box, parts: Mapping[str, StepPart]) -> StepPart | None:
    """The part of a box; a Cast is of the part of its value."""
    if box.shade is Shade.BORDER:
        return None
    return next((parts[value.name] for value in box.outputs if value.name in parts), StepPart.FORWARD)
