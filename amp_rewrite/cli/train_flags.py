"""The flags of `amp-rewrite train`: what the step is, and how its loss is scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from amp_rewrite.cli.flag_builders import grouped, number, repeatable, switch, written
from amp_rewrite.errors import OptionError
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy.named_policies import FLOAT32
from amp_rewrite.training import spec
from amp_rewrite.training.spec import Asked, DynamicLossScale, LossScale


@dataclass(frozen=True, slots=True)
class ScaleFlags:
    """What the flags say of the loss scale; which one counts may depend on the half type."""

    text: str
    dynamic: DynamicLossScale
    told: tuple[str, ...]
    skip_nonfinite: bool

    def settled(self, half: Half | None) -> LossScale | None:
        """The loss scale for a half type, None for float32; OptionError for flags without an effect on it."""
        asked = self._asked(half)
        if self.told and not isinstance(asked, DynamicLossScale):
            flags = " and ".join(self.told)
            raise OptionError(
                f"{flags} {'has' if len(self.told) == 1 else 'have'} no effect on --loss-scale {self.text}"
                f"{'' if half is FLOAT16 else f' for {half.name if half else FLOAT32}'}",
                remedy="say --loss-scale dynamic, or leave them out",
            )
        if self.skip_nonfinite and asked is None:
            raise OptionError("--skip-nonfinite is for a loss scale", remedy="say --loss-scale 1, or more")
        return asked

    def _asked(self, half: Half | None) -> LossScale | None:
        text = self.text.lower()
        if text == "none" or (text == spec.AUTO and half is None):
            return None
        if text in (spec.AUTO, spec.DYNAMIC):
            parsed = spec.parse(text, half or FLOAT16)
            return self.dynamic if isinstance(parsed, DynamicLossScale) else parsed
        try:
            return spec.parse(float(text))
        except (ValueError, OptionError) as error:
            raise OptionError(
                f"--loss-scale {self.text} is not a loss scale",
                remedy="say auto, dynamic, none, or a number from 1 up",
            ) from error


def _scale(flags: Mapping[str, Any]) -> ScaleFlags:
    told = written(click.get_current_context(), ("initial_scale", "increment_period", "multiplier"))
    try:
        dynamic = DynamicLossScale(flags["initial_scale"], flags["increment_period"], flags["multiplier"])
    except OptionError as error:
        flag = f"--{error.where.rpartition('.')[2].replace('_', '-')}"
        raise OptionError(f"{flag}: {error.problem}", remedy=error.remedy) from error
    return ScaleFlags(flags["loss_scale"], dynamic, tuple(told.values()), flags["skip_nonfinite"])


def _spec(flags: Mapping[str, Any]) -> Asked:
    try:
        state = spec.pairs("--state", flags["state"]) if flags["state"] else None
    except OptionError as error:
        raise OptionError(f"--state: {error.problem}", remedy="write it as in --state w=w.new") from error
    return Asked(flags["loss"], flags["seed_value"], state, tuple(flags["gradient"]) or None)


_START = DynamicLossScale()

scale_flags = grouped(
    (
        click.option(
            "--loss-scale",
            default=spec.AUTO,
            show_default=True,
            metavar="auto|dynamic|none|NUMBER",
            help="dynamic: adapted in every step; a number: fixed; auto: dynamic for float16, none for "
            "bfloat16.",
        ),
        number(
            "--initial-scale",
            float,
            "What a dynamic scale starts from.",
            _START.initial_scale,
            metavar="NUMBER",
        ),
        number(
            "--increment-period",
            int,
            "After how many steps with finite gradients a dynamic scale grows.",
            _START.increment_period,
            metavar="STEPS",
        ),
        number(
            "--multiplier",
            float,
            "What a dynamic scale grows by, and shrinks by where gradients are not finite.",
            _START.multiplier,
            metavar="NUMBER",
        ),
        switch(
            "--skip-nonfinite",
            "With a fixed scale: keep the state where gradients are not finite, as a dynamic one does.",
        ),
    ),
    "scaling",
    _scale,
)
"""Adds these flags to a command, which gets them as `ScaleFlags` in `scaling`."""

spec_flags = grouped(
    (
        click.option("--loss", metavar="NAME", help="The output that is the loss."),
        click.option(
            "--seed", "seed_value", metavar="NAME", help="The value that every gradient is linear in."
        ),
        repeatable("--state", "IN=OUT", "An input, and the output that is its new value."),
        repeatable("--gradient", "NAME", "A value that is a gradient."),
    ),
    "said",
    _spec,
)
"""Adds these flags to a command, which gets them as `Asked` in `said`."""
