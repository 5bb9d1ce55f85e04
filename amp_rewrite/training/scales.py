"""Loss scales, with the semantics of tf.train.experimental's FixedLossScale and DynamicLossScale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from amp_rewrite import arguments
from amp_rewrite.numerics.half import FLOAT16, Half

AUTO, DYNAMIC = "auto", "dynamic"
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class FixedLossScale:
    """A scale that stays: at least 1, and finite in float32. OptionError for anything else.

    No step is skipped: gradients that are not finite are applied, as in TensorFlow.

    Examples:
        >>> from amp_rewrite.training import FixedLossScale
        >>> FixedLossScale(128)
        FixedLossScale(value=128.0)
    """

    value: float

    def __init__(self, value: float) -> None:
        object.__setattr__(self, "value", _at_least_one("FixedLossScale.value", value))


@dataclass(frozen=True, slots=True)
class DynamicLossScale:
    """A scale that the step adapts: it is multiplied by `multiplier` after `increment_period` steps with
    finite gradients, unless float32 cannot hold that, and divided by it, to 1 at the least, where gradients
    are not finite; such a step is skipped.

    `initial_scale` and `multiplier` are at least 1, the latter more; `increment_period` counts steps, and is
    at least 1. The defaults are TensorFlow's. OptionError for anything else.

    Examples:
        >>> from amp_rewrite.training import DynamicLossScale
        >>> DynamicLossScale(increment_period=1000)
        DynamicLossScale(initial_scale=32768.0, increment_period=1000, multiplier=2.0)
    """

    initial_scale: float
    increment_period: int
    multiplier: float

    def __init__(
        self, initial_scale: float = 2.0**15, increment_period: int = 2000, multiplier: float = 2.0
    ) -> None:
        hold = partial(object.__setattr__, self)
        hold("initial_scale", _at_least_one("DynamicLossScale.initial_scale", initial_scale))
        hold(
            "increment_period",
            arguments.whole("DynamicLossScale.increment_period", increment_period, least=1),
        )
        hold("multiplier", _at_least_one("DynamicLossScale.multiplier", multiplier))
        if self.multiplier == 1:
            raise arguments.refused(
                "DynamicLossScale.multiplier", "1 would never change the scale", "give 2, say"
            )


LossScale = FixedLossScale | DynamicLossScale


def _at_least_one(name: str, given: Any) -> float:
    if not arguments.is_number(given) or not 1 <= given <= FLOAT32_MAX:
        raise arguments.refused(name, f"{arguments.shown(given)} is not a number from 1 to {FLOAT32_MAX:.4g}")
    return float(given)


def parse(given: LossScale | str | float | None, half: Half = FLOAT16) -> LossScale | None:
    """A loss scale as it may be given: an instance, a number from 1 up, "dynamic", or None for none.

    "auto" is "dynamic" for float16, and None for bfloat16, whose range is that of float32. OptionError for
    anything else.
    """
    if given is None or isinstance(given, (FixedLossScale, DynamicLossScale)):
        return given
    if given == AUTO:
        return DynamicLossScale() if half is FLOAT16 else None
    if given == DYNAMIC:
        return DynamicLossScale()
    if arguments.is_number(given) and math.isfinite(given):
        return FixedLossScale(given)
    raise arguments.refused(
        "loss_scale",
        f"{arguments.shown(given)} is not a loss scale",
        'give "dynamic", a number from 1 up, None, FixedLossScale(128) or DynamicLossScale()',
    )
