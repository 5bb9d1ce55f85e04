"""Inputs made up from the model alone: ids within their tables, masks of ones, roots of what is positive.

Tables of rules say what an input is from its type, its name, and the operators that read it; the first rule
that fits makes the values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import inlining
from amp_rewrite.running.inputs import (
    model_inputs,
    synthetic_floats,
    synthetic_integers,
    synthetic_sizes,
)
from amp_rewrite.running.inputs.destinations import Destinations
from amp_rewrite.running.inputs.input_spec import Array, Rule, Wanted
from amp_rewrite.running.inputs.model_inputs import Holds, Input

LISTED = 2
"""How many tensors a made sequence holds."""


def make(
    model: ir.Model, dims: Mapping[str, int], seed: int, samples: int, owner: str = ""
) -> Iterator[Mapping[str, Any]]:
    """Samples for a model, which has the path `owner`, one after the other; the same seed, the same ones.

    Each input has its own stream of random numbers: another input changes none of the others. Functions
    of the model are inlined. Raises FeedError when an input cannot be made up, or when `dims` names none
    of the model's dimensions.
    """
    inlining.inline(model)
    inputs = [given for given in model_inputs.of(model, owner) if not given.spare]
    for given in inputs:
        _refuse(given)
    destinations = Destinations(model.graph)
    shapes = synthetic_sizes.shapes(inputs, dims, destinations)
    by_value = {given.value: shapes[given.name] for given in inputs}
    for given in inputs:
        _refuse_size(given, shapes[given.name])
    wanted = [
        Wanted(given, shapes[given.name], destinations.of(given.value), by_value, destinations)
        for given in inputs
    ]
    return ({w.given.name: _made(w, seed, sample) for w in wanted} for sample in range(samples))


def open_sizes(model: ir.Model, dims: Mapping[str, int]) -> dict[str, int]:
    """The size that `make` gives to each dimension that the model leaves open, by its name in `dims`."""
    inlining.inline(model)
    inputs = [given for given in model_inputs.of(model) if not given.spare]
    return synthetic_sizes.open_sizes(inputs, dims, Destinations(model.graph))


def _refuse(given: Input) -> None:
    if given.holds is Holds.OTHER or given.dtype is None:
        raise given.error("is not a tensor, so no synthetic input can be generated", remedy=_GIVE)
    if given.dims is None:
        raise given.error("has no shape in the model, not even a rank", remedy=_GIVE)
    if len(given.dims) > _MOST_DIMENSIONS:
        raise given.error(
            f"has {len(given.dims):,} dimensions, and NumPy has at most {_MOST_DIMENSIONS}",
            remedy="export the model with fewer",
        )
    if not any(fits(given.dtype) for fits, _ in _KINDS):
        raise given.error(f"is {given.dtype.name.lower()}, and cannot be made up", remedy=_GIVE)


def _refuse_size(given: Input, shape: Sequence[int]) -> None:
    if math.prod(shape) > _LARGEST:
        size = " x ".join(map(str, shape))
        raise given.error(f"would have {size} elements", remedy="give smaller sizes with `Data.dims`")


_LARGEST = 1 << 40
"""Elements, of which no machine holds so many: NumPy, asked for more, has errors of several kinds."""

_MOST_DIMENSIONS = 64

_GIVE = "give it with `Data.paths`"


def _made(wanted: Wanted, seed: int, sample: int) -> Any:
    name = zlib.crc32(wanted.given.name.encode())
    wanted = replace(wanted, random=np.random.default_rng([seed, sample, name]))
    if wanted.given.holds is Holds.SEQUENCE:
        return [_tensor(wanted) for _ in range(LISTED)]
    return _tensor(wanted)


def _tensor(wanted: Wanted) -> Array:
    rules = next(rules for fits, rules in _KINDS if fits(wanted.dtype))
    made = (rule(wanted) for rule in rules)
    values = next(values for values in made if values is not None)
    return np.asarray(values).astype(wanted.dtype.numpy())


_KINDS: tuple[tuple[Callable[[ir.DataType], bool], tuple[Rule, ...]], ...] = (
    (lambda dtype: dtype == ir.DataType.BOOL, (lambda wanted: wanted.full(1),)),
    (lambda dtype: dtype == ir.DataType.STRING, (lambda wanted: np.full(wanted.shape, "hello world"),)),
    (lambda dtype: dtype.is_integer(), synthetic_integers.RULES),
    (lambda dtype: dtype.is_floating_point(), synthetic_floats.RULES),
)
"""The rules for each kind of element; the first that makes something counts."""
