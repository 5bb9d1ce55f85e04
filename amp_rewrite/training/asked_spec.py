"""What somebody says of a train step, in arguments or in metadata; what is left open is found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from amp_rewrite.errors import OptionError, SpecError
from amp_rewrite.training import spec
from amp_rewrite.training.spec import PREFIX, Pair


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
            state=None if state is None else spec.pairs("state", json.loads(state)),
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
