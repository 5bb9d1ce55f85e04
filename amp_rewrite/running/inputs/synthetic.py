"""Inputs synthesised from the model alone: ids within their tables, masks of ones, positive radicands.

Tables of rules decide by the type and name of an input and by the operators that read it; the first rule that
applies gives the values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.errors import FeedError
from amp_rewrite.model import inlining
from amp_rewrite.policy.open_sizes import refuse_wrong_sizes
from amp_rewrite.policy.options import Ranges
from amp_rewrite.running.inputs import model_inputs, said_ranges, synthetic_floats, synthetic_integers
from amp_rewrite.running.inputs.image_range import ImageRange
from amp_rewrite.running.inputs.input_spec import Array, InputSpec, Rule
from amp_rewrite.running.inputs.model_inputs import Input, Structure
from amp_rewrite.running.inputs.sizes import RULES, Consumers, Key, OpenDim, Shape, size_of

SEQUENCE_LENGTH = 2
"""The number of tensors in a synthetic sequence."""
BRANCHES = 2


def synthesise(
    model: ir.Model,
    dims: Mapping[str, int],
    seed: int,
    samples: int,
    model_path: str = "",
    images: ImageRange = ImageRange.UNIT,
    ranges: Ranges | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Samples for a model, one after the other; the same seed gives the same samples.

    Each input has its own random number generator, so that adding an input does not change the others.
    Where an input chooses a branch there are two samples at least, and they take turns: both branches run.
    `images` is the range of images for which the graph does not say one, `ranges` are those that the user
    declared of inputs. Inlines the functions of `model`.
    Raises FeedError if an input cannot be synthesised, or if `dims` has a name that is not an open dimension.
    """
    specs = [replace(spec, unsaid_images=images) for spec in _specs(model, dims, ranges or {}, model_path)]
    branches = BRANCHES if any(spec.chooses for spec in specs) else 1
    count = max(samples, branches)
    return ({spec.input.name: _values(spec, seed, index) for spec in specs} for index in range(count))


def image_ranges(model: ir.Model, dims: Mapping[str, int], ranges: Ranges) -> frozenset[ImageRange | None]:
    """The ranges that the graph says of its images, with None for one of which it says nothing; empty without
    images, but for those with a declared range. Raises what `synthesise` raises.
    """
    return frozenset(
        said_ranges.said_range(spec)
        for spec in _specs(model, dims, ranges)
        if spec.dtype.is_floating_point() and synthetic_floats.is_image(spec)
    )


def _specs(model: ir.Model, dims: Mapping[str, int], ranges: Ranges, model_path: str = "") -> list[InputSpec]:
    inlining.inline(model)
    inputs = _required(model, model_path)
    for declared in inputs:
        _check_type(declared)
    consumers = Consumers(model.graph)
    shapes = _shapes(inputs, dims, consumers)
    for declared in inputs:
        _check_size(declared, shapes[declared.name])
    by_value = {declared.value: shapes[declared.name] for declared in inputs}
    found = (InputSpec(i, shapes[i.name], consumers.of(i.value), by_value, consumers) for i in inputs)
    return [replace(spec, declared=ranges.get(spec.input.name)) for spec in found]


def open_sizes(model: ir.Model, dims: Mapping[str, int]) -> dict[str, int]:
    """The size that `synthesise` chooses for each open dimension, by its name in `dims`."""
    inlining.inline(model)
    inputs, consumers = _required(model), Consumers(model.graph)
    found = _shapes(inputs, dims, consumers)
    return {d.symbol or d.label: found[d.input.name][d.axis] for d in _open_dims(inputs, consumers)}


def _shapes(inputs: Sequence[Input], dims: Mapping[str, int], consumers: Consumers) -> dict[str, Shape]:
    """The shape of every input of known rank, by name; a symbol has the same size everywhere.

    `dims` gives sizes by symbol or as `input:axis`. Raises FeedError if it has a name that is not open, or
    two sizes for one axis.
    """
    open_dims = list(_open_dims(inputs, consumers))
    refuse_wrong_sizes(dims, {d.label: d.symbol for d in open_dims}, FeedError)
    labelled = {(d.input.name, d.axis): dims[d.label] for d in open_dims if d.label in dims}
    found: dict[Key, int] = {d.key: dims[d.label] for d in open_dims if d.label in dims}
    found |= {symbol: dims[symbol] for d in open_dims if (symbol := d.symbol) and symbol in dims}
    for rule in RULES:
        for dim in open_dims:
            size = None if dim.key in found else rule(dim, found)
            if size is not None:
                found[dim.key] = size
    return {
        i.name: tuple(labelled.get((i.name, axis), size_of(i, axis, found, 1)) for axis in range(len(i.dims)))
        for i in inputs
        if i.dims is not None
    }


def _open_dims(inputs: Sequence[Input], consumers: Consumers) -> Iterator[OpenDim]:
    for declared in inputs:
        for axis, dim in enumerate(declared.dims or ()):
            if not isinstance(dim, int):
                yield OpenDim(declared, axis, dim, inputs, consumers)


def _required(model: ir.Model, model_path: str = "") -> list[Input]:
    return [declared for declared in model_inputs.of(model, model_path) if not declared.has_default]


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
    if not any(applies(declared.dtype) for applies, _ in _RULES):
        raise declared.error(f"is {declared.dtype.name.lower()}, and cannot be synthesised", remedy=_GIVE)


def _check_size(declared: Input, shape: tuple[int, ...]) -> None:
    if math.prod(shape) > _MAX_ELEMENTS:
        size = " x ".join(map(str, shape))
        raise declared.error(f"would have {size} elements", remedy="give smaller sizes with `Data.dims`")


_MAX_ELEMENTS = 1 << 40
"""More than any machine has memory for: NumPy's errors beyond that are of several kinds."""
_MAX_RANK = 64
_GIVE = "give it with `Data.paths`"


def _values(spec: InputSpec, seed: int, sample: int) -> Any:
    name = zlib.crc32(spec.input.name.encode())
    spec = replace(spec, random=np.random.default_rng([seed, sample, name]), sample=sample)
    if spec.input.structure is Structure.SEQUENCE:
        return [_tensor(spec) for _ in range(SEQUENCE_LENGTH)]
    return _tensor(spec)


def _tensor(spec: InputSpec) -> Array:
    rules = next(rules for applies, rules in _RULES if applies(spec.dtype))
    values = next(values for rule in rules if (values := rule(spec)) is not None)
    return np.asarray(values).astype(spec.dtype.numpy())


def _truth(spec: InputSpec) -> Array:
    return spec.full(not spec.chooses or spec.sample % BRANCHES == 0)


_RULES: tuple[tuple[Callable[[ir.DataType], bool], tuple[Rule, ...]], ...] = (
    (lambda dtype: dtype == ir.DataType.BOOL, (_truth,)),
    (lambda dtype: dtype == ir.DataType.STRING, (lambda spec: np.full(spec.shape, "hello world"),)),
    (lambda dtype: dtype.is_integer(), synthetic_integers.RULES),
    (lambda dtype: dtype.is_floating_point(), synthetic_floats.RULES),
)
"""The rules for each category of element types."""
