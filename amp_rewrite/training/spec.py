"""What a train step is: its loss, the seed of its backward pass, its state, and its gradients, by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from amp_rewrite import arguments
from amp_rewrite.arguments import Texts
from amp_rewrite.errors import OptionError, SpecError
from amp_rewrite.numerics.half import FLOAT16, Half

# Loss scales, with the semantics of tf.train.experimental's FixedLossScale and DynamicLossScale.

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


PREFIX = "amp_rewrite.train."
"""Of the keys in a model's metadata that say what a step is: loss, seed, state, grads."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of state: the input that it is read from, and the output that holds it after the step.

    Examples:
        >>> from amp_rewrite.training import Pair
        >>> str(Pair("w", "w.new"))
        'w -> w.new'
    """

    input: str
    output: str

    def __str__(self) -> str:
        return f"{self.input} -> {self.output}"


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """What a model is as a train step, by the names of its values.

    `loss` is a scalar output. `seed` is the value from which the backward pass starts: every gradient is
    linear in it. `state` are the pairs of inputs and outputs that hold parameters, slots and counters.
    `gradients` are values that are gradients; where none is named, analysis finds them. Raises OptionError
    for arguments of other types; `state` may hold pairs of names.

    Examples:
        >>> from amp_rewrite.training import TrainSpec
        >>> TrainSpec("loss", "loss_grad", state="w=w.new").state
        (Pair(input='w', output='w.new'),)
    """

    loss: str
    seed: str
    state: tuple[Pair, ...]
    gradients: tuple[str, ...]

    def __init__(self, loss: str, seed: str, state: Any = (), gradients: Texts = ()) -> None:
        hold = partial(object.__setattr__, self)
        hold("loss", arguments.instance("TrainSpec.loss", loss, str))
        hold("seed", arguments.instance("TrainSpec.seed", seed, str))
        hold("state", pairs("TrainSpec.state", state))
        hold("gradients", arguments.texts("TrainSpec.gradients", gradients))

    def to_metadata(self) -> dict[str, str]:
        """The spec as metadata of a model, from which `find_spec` reads it again.

        Examples:
            >>> from amp_rewrite.training import TrainSpec
            >>> TrainSpec("loss", "loss_grad").to_metadata()["amp_rewrite.train.seed"]
            'loss_grad'
        """
        state = [[pair.input, pair.output] for pair in self.state]
        return {
            f"{PREFIX}loss": self.loss,
            f"{PREFIX}seed": self.seed,
            f"{PREFIX}state": json.dumps(state),
            f"{PREFIX}grads": json.dumps(list(self.gradients)),
        }

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data.

        Examples:
            >>> from amp_rewrite.training import TrainSpec
            >>> TrainSpec("loss", "loss_grad", state="w=w.new").to_json()["state"]
            [['w', 'w.new']]
        """
        state = [[pair.input, pair.output] for pair in self.state]
        return {"loss": self.loss, "seed": self.seed, "state": state, "gradients": list(self.gradients)}


def pairs(name: str, given: Any) -> tuple[Pair, ...]:
    """Pairs of state, each given as a Pair, as two names, or as "IN=OUT"; also as a mapping."""
    if isinstance(given, str):
        given = (given,)
    several: Any = given.items() if isinstance(given, Mapping) else given
    try:
        found = [_pair(name, each) for each in several]
    except TypeError as error:
        raise arguments.refused(name, f"{arguments.shown(given)} is not a list of pairs", _EXAMPLE) from error
    for side in ("input", "output"):
        names = [getattr(pair, side) for pair in found]
        if double := next((each for each in names if names.count(each) > 1), None):
            raise arguments.refused(name, f"'{double}' is in two pairs", "name every tensor of state once")
    return tuple(found)


_EXAMPLE = 'write [("w", "w.new")]'


def _pair(name: str, given: Any) -> Pair:
    if isinstance(given, Pair):
        return given
    if isinstance(given, str):
        first, equals, second = given.partition("=")
        names: tuple[Any, ...] = (first, second) if equals and first and second else ()
    else:
        names = tuple(given)
    if len(names) != 2 or not all(isinstance(each, str) for each in names):
        raise arguments.refused(name, f"{arguments.shown(given)} is not a pair of names", _EXAMPLE)
    return Pair(*names)


# What somebody says of a train step, in arguments or in metadata; what is left open is found.


@dataclass(frozen=True, slots=True)
class Asked:
    """What is said of a step; None where nothing is."""

    loss: str | None = None
    seed: str | None = None
    state: tuple[Pair, ...] | None = None
    gradients: tuple[str, ...] | None = None

    def over(self, other: Asked) -> Asked:
        """This, with what it leaves open taken from another."""
        fields = ("loss", "seed", "state", "gradients")
        mine = {name: getattr(self, name) for name in fields if getattr(self, name) is not None}
        return replace(other, **mine)


def in_metadata(metadata: Mapping[str, str]) -> Asked:
    """What the metadata of a model say of it; SpecError for what is not as `TrainSpec.to_metadata` has it."""
    state, gradients = metadata.get(f"{PREFIX}state"), metadata.get(f"{PREFIX}grads")
    try:
        return Asked(
            loss=metadata.get(f"{PREFIX}loss"),
            seed=metadata.get(f"{PREFIX}seed"),
            state=None if state is None else pairs("state", json.loads(state)),
            gradients=None if gradients is None else _names(json.loads(gradients)),
        )
    except (ValueError, RecursionError, OptionError, AttributeError) as error:
        raise SpecError(
            f"its metadata {PREFIX}* are damaged ({error})",
            where="the model",
            remedy="name loss, seed and state, or remove these metadata",
        ) from error


def _names(given: Any) -> tuple[str, ...]:
    """Names in a list, or as the values of a mapping from parameters."""
    found: Any = given.values() if isinstance(given, dict) else given
    if not isinstance(given, (dict, list)) or not all(isinstance(name, str) for name in found):
        raise ValueError("the gradients are no list of names")
    return tuple(found)
