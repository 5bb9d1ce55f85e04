"""The spec of a train step by names: loss, seed of the backward pass, state and gradients."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from amp_rewrite import arguments
from amp_rewrite.analysis.states import Pair
from amp_rewrite.arguments import Texts
from amp_rewrite.errors import OptionError, SpecError
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy.entries import Entry, Kind
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.options import CASTING, Options
from amp_rewrite.rewriting import annotations

PREFIX = annotations.TRAINING


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """The spec of a model as a train step, by the names of its values.

    `loss` is a scalar output. `seed` is the value from which the backward pass starts: every gradient is
    linear in it. `state` are the pairs of inputs and outputs of parameters, slots and counters; pairs of
    names are accepted. `gradients` are the values of gradients; if empty, analysis finds them. What else is
    empty is found by metadata, names or the dataflow. Raises OptionError for arguments of other types.

    Examples:
        >>> from amp_rewrite.training import TrainSpec
        >>> TrainSpec("loss", "loss_grad", state="w=w.new").state
        (Pair(input='w', output='w.new'),)
    """

    loss: str
    seed: str
    state: tuple[Pair, ...]
    gradients: tuple[str, ...]

    def __init__(self, loss: str = "", seed: str = "", state: Any = (), gradients: Texts = ()) -> None:
        hold = partial(object.__setattr__, self)
        hold("loss", arguments.instance("TrainSpec.loss", loss, str))
        hold("seed", arguments.instance("TrainSpec.seed", seed, str))
        hold("state", pairs("TrainSpec.state", state))
        hold("gradients", arguments.texts("TrainSpec.gradients", gradients))

    def to_metadata(self) -> dict[str, str]:
        """Return the spec as metadata of a model, from which `find_spec` restores it.

        Examples:
            >>> from amp_rewrite.training import TrainSpec
            >>> TrainSpec("loss", "loss_grad").to_metadata()["amp_rewrite.train.seed"]
            'loss_grad'
        """
        plain = self.to_json()
        lists = {name: json.dumps(plain[field]) for name, field in _LISTS.items()}
        return {
            f"{PREFIX}{name}": text for name, text in {"loss": self.loss, "seed": self.seed, **lists}.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data.

        Examples:
            >>> from amp_rewrite.training import TrainSpec
            >>> TrainSpec("loss", "loss_grad", state="w=w.new").to_json()["state"]
            [['w', 'w.new']]
        """
        state = [[pair.input, pair.output] for pair in self.state]
        return {"loss": self.loss, "seed": self.seed, "state": state, "gradients": list(self.gradients)}


def pairs(name: str, value: Any) -> tuple[Pair, ...]:
    """Parse pairs of state: a mapping, or a sequence of Pairs, pairs of names and "IN=OUT"."""
    if isinstance(value, str):
        value = (value,)
    several: Any = value.items() if isinstance(value, Mapping) else value
    try:
        state = [_pair(name, each) for each in several]
    except TypeError as error:
        raise arguments.refused(
            name, f"{arguments.describe(value)} is not a list of pairs", _EXAMPLE
        ) from error
    for side in ("input", "output"):
        names = [getattr(pair, side) for pair in state]
        if double := next((each for each in names if names.count(each) > 1), None):
            raise arguments.refused(name, f"'{double}' is in two pairs", "name every tensor of state once")
    return tuple(state)


_EXAMPLE = 'write [("w", "w.new")]'


def _pair(name: str, value: Any) -> Pair:
    if isinstance(value, Pair):
        return value
    if isinstance(value, str):
        first, equals, second = value.partition("=")
        names: tuple[Any, ...] = (first, second) if equals and first and second else ()
    else:
        names = tuple(value)
    if len(names) != 2 or not all(isinstance(each, str) for each in names):
        raise arguments.refused(name, f"{arguments.describe(value)} is not a pair of names", _EXAMPLE)
    return Pair(*names)


def complete(spec: TrainSpec, other: TrainSpec) -> TrainSpec:
    """Return a spec with what is empty in it from another."""
    own = {each.name: value for each in fields(spec) if (value := getattr(spec, each.name))}
    return replace(other, **own)


_LISTS = {"state": "state", "grads": "gradients"}
"""The fields of TrainSpec that metadata have as JSON, by their names there."""


def spec_in_metadata(metadata: Mapping[str, str]) -> TrainSpec:
    """Return the spec in a model's metadata, empty where they lack it; SpecError for any format but that of
    `TrainSpec.to_metadata`, or a mapping from parameters to gradients.
    """
    loss, seed = (metadata.get(f"{PREFIX}{name}", "") for name in ("loss", "seed"))
    try:
        state, gradients = (json.loads(metadata.get(f"{PREFIX}{name}", "[]")) for name in _LISTS)
        return TrainSpec(loss, seed, state, gradients.values() if isinstance(gradients, dict) else gradients)
    except (ValueError, RecursionError, OptionError) as error:
        raise SpecError(
            f"its metadata {PREFIX}* are damaged ({error})",
            where="the model",
            remedy="name loss, seed and state, or remove these metadata",
        ) from error


# The two implementations: the unchanged operator lists, or every layer in half.


class Implementation(enum.Enum):
    """The implementation of half in a step, named as in the official ResNet's `--fp16_implementation`.

    GRAPH_REWRITE: by the operator lists, the rules and predicted times, as in Grappler. CASTING: every layer
    in half, as with a half `dtype` of layers, except those that the list denies.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import Implementation, rewrite_train_step
        >>> rewrite_train_step(train_step(), implementation=Implementation.CASTING).report.nodes.half
        11
    """

    GRAPH_REWRITE = "graph_rewrite"
    CASTING = "casting"


def settle_implementation(options: Options, how: Implementation) -> Options:
    """Return the options for an implementation. CASTING has lists of its own, with INFER as ALLOW: half
    whatever the neighbours are; overrides by the user stay.
    """
    if how is Implementation.GRAPH_REWRITE:
        return options
    text = "casting: every layer computes in half"
    allowed = Entry(Kind.ALLOW, Evidence(Authority.LIST, Reason.LISTED, subject=CASTING, text=text))
    lists = options.operator_lists()
    entries = {
        key: allowed if entry.kind is Kind.INFER and entry.authority is Authority.LIST else entry
        for key, entry in lists.entries.items()
    }
    return replace(options, lists=replace(lists, name=CASTING, entries=MappingProxyType(entries)))


# Loss scales, with the semantics of tf.train.experimental's FixedLossScale and DynamicLossScale.

AUTO, DYNAMIC = "auto", "dynamic"
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class FixedLossScale:
    """A constant scale, at least 1 and finite in float32. OptionError for any other.

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
    finite gradients, unless it would overflow float32, and divided by it, down to 1, where gradients are not
    finite; such a step is skipped.

    `initial_scale` is at least 1, `multiplier` greater than 1, and `increment_period` a number of steps, at
    least 1. The defaults are TensorFlow's. OptionError for other values.

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


def _at_least_one(name: str, number: Any) -> float:
    if not arguments.is_number(number) or not 1 <= number <= FLOAT32_MAX:
        raise arguments.refused(
            name, f"{arguments.describe(number)} is not a number from 1 to {FLOAT32_MAX:.4g}"
        )
    return float(number)


def at_powers_of_two(scale: LossScale) -> LossScale:
    """Return the scale with each number that is no power of two replaced by the power below it."""
    if isinstance(scale, FixedLossScale):
        return FixedLossScale(_power_of_two(scale.value))
    multiplier = max(_power_of_two(scale.multiplier), 2.0)
    return DynamicLossScale(_power_of_two(scale.initial_scale), scale.increment_period, multiplier)


def _power_of_two(number: float) -> float:
    return math.ldexp(0.5, math.frexp(number)[1])


def parse_scale(scale: LossScale | str | float | None, half: Half = FLOAT16) -> LossScale | None:
    """Parse a loss scale: an instance, a number from 1 up, "dynamic", or None for none.

    "auto" is "dynamic" for float16, and None for bfloat16, whose range is that of float32. OptionError for
    any other value.
    """
    if scale is None or isinstance(scale, (FixedLossScale, DynamicLossScale)):
        return scale
    if scale == AUTO:
        return DynamicLossScale() if half is FLOAT16 else None
    if scale == DYNAMIC:
        return DynamicLossScale()
    if arguments.is_number(scale) and math.isfinite(scale):
        return FixedLossScale(scale)
    raise arguments.refused(
        "loss_scale",
        f"{arguments.describe(scale)} is not a loss scale",
        'give "dynamic", a number from 1 up, None, FixedLossScale(128) or DynamicLossScale()',
    )
