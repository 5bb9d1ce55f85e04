"""What is said of a train step in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.explaining.sentences import plural
from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.training.comparing import StepComparison
from amp_rewrite.training.scaled_step import ScaledStep
from amp_rewrite.training.scales import FixedLossScale


def lines(step: ScaledStep) -> Iterator[SummaryLine]:
    """The step, its scale, and what stays float32 for it."""
    spec = step.spec
    guessed = f" (by the dataflow: {', '.join(step.guessed)})" if step.guessed else ""
    state = plural(len(spec.state), "tensor")
    yield SummaryLine("step", f"loss '{spec.loss}', seed '{spec.seed}', {state} of state{guessed}")
    yield SummaryLine("scale", _scale(step))
    around, behind = plural(len(step.loss_region), "node"), plural(len(step.optimiser), "node")
    gradients = plural(len(step.frontier), "gradient")
    yield SummaryLine("float32", f"{around} around the loss, {behind} behind {gradients}")
    for pair in step.unguarded:
        yield SummaryLine("warning", f"the state {pair} is an input itself, and kept whatever happens")


def compared(found: StepComparison) -> str:
    """What two steps were compared on, and how, in one sentence."""
    limits = f"limits in {found.half}: error {found.bounds.loss:g}, update {found.bounds.update:g}"
    return f"compared {len(found.steps)} steps with the original's on {found.inputs}; {limits}"


COLUMNS = ("step", "loss", "in half", "error", "update", "largest of a state", "skipped", "verdict")


def cells(found: StepComparison) -> Iterator[tuple[str, ...]]:
    """A row for each step, one cell for each of COLUMNS."""
    for number, step in enumerate(found.steps, 1):
        largest = f"{step.largest:.1e} {step.state}" if step.state else ""
        numbers = (f"{step.loss:.6g}", f"{step.half_loss:.6g}", f"{step.error:.1e}", f"{step.update:.1e}")
        yield (str(number), *numbers, largest, str(step.skipped), found.verdict_of(step))


def _scale(step: ScaledStep) -> str:
    scale, borders = step.loss_scale, step.borders
    if scale is None:
        return "none"
    if isinstance(scale, FixedLossScale):
        skips = f", steps are skipped unless '{borders.finite}'" if borders.finite else ", no step is skipped"
        return f"fixed at {scale.value:g}{skips}"
    grows = f"times {scale.multiplier:g} after {scale.increment_period:,} good steps"
    state = f"'{borders.scale}' and '{borders.good_steps}'"
    return f"dynamic from {scale.initial_scale:g}, {grows}; state {state}, and output '{borders.finite}'"


def details(step: ScaledStep) -> Iterator[SummaryLine]:
    """Every pair of state, gradient and node that stays float32, a line each."""
    lone = set(step.without_gradient)
    for pair in step.spec.state:
        yield SummaryLine("state", f"{pair}{', which depends on no gradient' if pair in lone else ''}")
    yield from (SummaryLine("frontier", name) for name in step.frontier)
    yield from (SummaryLine("float32", f"{name}, around the loss") for name in step.loss_region)
    yield from (SummaryLine("float32", f"{name}, behind the gradients") for name in step.optimiser)
