"""What a train step is: its loss, the seed of its backward pass, its state, and its gradients, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.arguments import Texts

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
