"""Inputs synthesised from the model alone: ids within their tables, masks of ones, positive radicands."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.costs import flop_count
from amp_rewrite.model import inlining
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.options import Ranges
from amp_rewrite.running.inputs import declared_inputs, values
from amp_rewrite.running.inputs.consumers import Consumers
from amp_rewrite.running.inputs.declared_inputs import Input, Structure
from amp_rewrite.running.inputs.sizes import Sizing
from amp_rewrite.running.inputs.values import BRANCHES, ImageRange, InputSpec

SEQUENCE_LENGTH = 2
"""The number of tensors in a synthetic sequence."""


def synthesise(
    model: ir.Model,
    dims: Mapping[str, int],
    seed: int,
    samples: int,
    model_path: str = "",
    images: ImageRange = ImageRange.UNIT,
    ranges: Ranges | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Yield synthetic samples for a model; the same seed gives the same samples.

    Each input has its own random number generator, so that adding an input does not change the others.
    If an input selects a branch, there are at least two samples, which alternate so that both branches run.
    `images` is the range of images if the graph implies none, `ranges` are declared by the user. Inlines the
    functions of `model`.
    Raises FeedError if an input cannot be synthesised, or if `dims` has a name that is not an open dimension.
    """
    specs = [replace(spec, default_images=images) for spec in _specs(model, dims, ranges or {}, model_path)]
    branches = BRANCHES if any(spec.chooses for spec in specs) else 1
    count = max(samples, branches)
    return ({spec.input.name: _sample(spec, seed, index) for spec in specs} for index in range(count))


def unspecific_inputs(
    model: ir.Model, dims: Mapping[str, int], ranges: Ranges
) -> tuple[frozenset[ImageRange | None], frozenset[str], frozenset[str]]:
    """Return the ranges that the graph implies for its images, None for an unknown one, the names of the
    inputs of unknown magnitude (`values.is_free`), and those of images of an unknown range. An input with a
    declared range is in none.

    Raises as `synthesise` does.
    """
    floats = [spec for spec in _specs(model, dims, ranges) if spec.dtype.is_floating_point()]
    images = {spec.input.name: values.stated_range(spec) for spec in floats if values.is_image(spec)}
    free = frozenset(spec.input.name for spec in floats if values.is_free(spec))
    return frozenset(images.values()), free, frozenset(name for name in images if images[name] is None)


def open_sizes(model: ir.Model, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the size that `synthesise` chooses for each open dimension, by its name in `dims`."""
    return _sizing(model, dims)[1].open_sizes()


def lengthened(model: ir.Model, dims: Mapping[str, int], factor: int) -> dict[str, int] | None:
    """Return `dims` with the open lengths (`Sizing.lengths`) this many times as long; None if there are none,
    or if a sample or a run on it would be large.

    Raises as `synthesise` does.
    """
    inputs, usual, consumers = _sizing(model, dims)
    lengths = usual.lengths()
    longer = {**dims, **{name: factor * size for name, size in lengths.items()}}
    sizing = Sizing(inputs, longer, consumers)
    if not lengths or any(math.prod(sizing.shape(one)) > _MOST_ELEMENTS for one in inputs):
        return None
    count = flop_count.count(model, element_types.infer(model), sizing.open_sizes())
    elements = sum(math.prod(shape) for shape in count.shapes.known.values())
    is_small = count.total <= _MOST_FLOPS and elements <= _MOST_VALUES and not count.unknown_trip_counts
    return longer if is_small else None


_MOST_ELEMENTS, _MOST_FLOPS, _MOST_VALUES = 1 << 22, 20e9, 1 << 29
"""The largest run on long inputs: elements of an input, FLOPs, and elements of all values together, from
which two runs on two cores take about a second and a half (ALiBi at 2,048 tokens: 3.6e8).
"""


def _specs(model: ir.Model, dims: Mapping[str, int], ranges: Ranges, model_path: str = "") -> list[InputSpec]:
    inputs, sizing, consumers = _sizing(model, dims, model_path, _check_type)
    shapes = {declared.value: sizing.shape(declared) for declared in inputs}
    for declared in inputs:
        shape = shapes[declared.value]
        if math.prod(shape) > _MAX_ELEMENTS:
            problem = f"would have {' x '.join(map(str, shape))} elements"
            raise declared.error(problem, remedy="give smaller sizes with `Data.dims`")
    return [
        InputSpec(
            input=declared,
            shape=shapes[declared.value],
            uses=consumers.of(declared.value),
            all_shapes=shapes,
            consumers=consumers,
            declared=ranges.get(declared.name),
        )
        for declared in inputs
    ]


def _sizing(
    model: ir.Model,
    dims: Mapping[str, int],
    model_path: str = "",
    check: Callable[[Input], object] = lambda _: None,
) -> tuple[list[Input], Sizing, Consumers]:
    """Inline the functions of a model; return its inputs without a default, each checked before their sizes,
    and what reads them.
    """
    inlining.inline(model)
    inputs = [one for one in declared_inputs.inputs_of(model, model_path) if not one.has_default]
    for declared in inputs:
        check(declared)
    consumers = Consumers(model.graph)
    return inputs, Sizing(inputs, dims, consumers), consumers


def _check_type(declared: Input) -> None:
    if declared.structure is Structure.OTHER or declared.dtype is None:
        raise declared.error("is not a tensor, and cannot be synthesised", remedy=_GIVE)
    if declared.dims is None:
        raise declared.error("has no shape in the model, not even a rank", remedy=_GIVE)
    if len(declared.dims) > _MAX_RANK:
        raise declared.error(
            f"has {len(declared.dims):,} dimensions, and NumPy has at most {_MAX_RANK}",
            remedy="export the model with fewer",
        )
    if not values.is_supported(declared.dtype):
        raise declared.error(f"is {declared.dtype.name.lower()}, and cannot be synthesised", remedy=_GIVE)


_MAX_ELEMENTS = 1 << 40
"""More than any machine has memory for: NumPy's errors beyond that are of several kinds."""
_MAX_RANK = 64
_GIVE = "give it with `Data.paths`"


def _sample(spec: InputSpec, seed: int, sample: int) -> Any:
    name = zlib.crc32(spec.input.name.encode())
    spec = replace(spec, random=np.random.default_rng([seed, sample, name]), sample=sample)
    if spec.input.structure is Structure.SEQUENCE:
        return [values.tensor(spec) for _ in range(SEQUENCE_LENGTH)]
    return values.tensor(spec)
