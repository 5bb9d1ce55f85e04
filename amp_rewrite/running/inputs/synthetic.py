"""Inputs synthesised from the model alone: ids within their tables, masks of ones, positive radicands."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.costs import flop_count
from amp_rewrite.model import inlining
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.options import Ranges
from amp_rewrite.running.inputs import values
from amp_rewrite.running.inputs.consumers import Consumers
from amp_rewrite.running.inputs.declared_inputs import Input, Structure, inputs_of
from amp_rewrite.running.inputs.sizes import Sizing
from amp_rewrite.running.inputs.values import BRANCHES, ImageRange, InputSpec

Feeds = Mapping[str, Any]

SEQUENCE_LENGTH = 2
"""The number of tensors in a synthetic sequence."""


class Synthesis:
    """The synthetic inputs of a model, whose functions are inlined; `sizing` has their open sizes.

    `dims` gives sizes of open dimensions, `ranges` are declared by the user. Raises FeedError if `dims` has a
    name that is not an open dimension; what needs values does if an input cannot be synthesised.
    """

    def __init__(
        self, model: ir.Model, dims: Mapping[str, int], ranges: Ranges | None = None, model_path: str = ""
    ) -> None:
        inlining.inline(model)
        self._model, self._dims, self._ranges = model, dims, ranges or {}
        self._inputs = [one for one in inputs_of(model, model_path) if not one.has_default]
        self._consumers = Consumers(model.graph)
        self.sizing = Sizing(self._inputs, dims, self._consumers)

    def samples(self, seed: int, count: int, images: ImageRange = ImageRange.UNIT) -> Iterator[Feeds]:
        """Yield samples; the same seed gives the same samples.

        Each input has its own random number generator, so that adding an input does not change the others.
        If an input selects a branch, there are at least two samples, which alternate so that both branches
        run. `images` is the range of images if the graph implies none.
        """
        specs = [replace(spec, default_images=images) for spec in self._specs]
        branches = BRANCHES if any(spec.chooses for spec in specs) else 1
        indices = range(max(count, branches))
        return ({spec.input.name: _sample(spec, seed, index) for spec in specs} for index in indices)

    @property
    def images(self) -> dict[str, ImageRange | None]:
        """The inputs that are images, without those of a declared range, with the range that the graph
        implies; None for an unknown one.
        """
        return {spec.input.name: values.stated_range(spec) for spec in self._specs if values.is_image(spec)}

    @property
    def free(self) -> frozenset[str]:
        """The names of the inputs of unknown magnitude (`values.is_free`)."""
        return frozenset(spec.input.name for spec in self._specs if values.is_free(spec))

    def lengthened(self, factor: int) -> dict[str, int] | None:
        """Return `dims` with the open lengths (`Sizing.lengths`) this many times as long; None if there are
        none, or if a sample or a run on it would be large.
        """
        lengths = self.sizing.lengths
        longer = {**self._dims, **{name: factor * size for name, size in lengths.items()}}
        sizing = Sizing(self._inputs, longer, self._consumers)
        if not lengths or any(math.prod(sizing.shape(one)) > _MOST_ELEMENTS for one in self._inputs):
            return None
        count = flop_count.count(self._model, element_types.infer(self._model), sizing.open_sizes())
        elements = sum(math.prod(shape) for shape in count.shapes.known.values())
        is_small = count.total <= _MOST_FLOPS and elements <= _MOST_VALUES and not count.unknown_trip_counts
        return longer if is_small else None

    @cached_property
    def _specs(self) -> list[InputSpec]:
        for declared in self._inputs:
            _check_type(declared)
        shapes = {declared.value: self.sizing.shape(declared) for declared in self._inputs}
        for declared in self._inputs:
            shape = shapes[declared.value]
            if math.prod(shape) > _MAX_ELEMENTS:
                problem = f"would have {' x '.join(map(str, shape))} elements"
                raise declared.error(problem, remedy="give smaller sizes with `Data.dims`")
        return [
            InputSpec(
                input=declared,
                shape=shapes[declared.value],
                uses=self._consumers.of(declared.value),
                all_shapes=shapes,
                consumers=self._consumers,
                declared=self._ranges.get(declared.name),
            )
            for declared in self._inputs
        ]


_MOST_ELEMENTS, _MOST_FLOPS, _MOST_VALUES = 1 << 22, 20e9, 1 << 29
"""The largest run on long inputs: elements of an input, FLOPs, and elements of all values together, from
which two runs on two cores take about a second and a half (ALiBi at 2,048 tokens: 3.6e8).
"""


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
