"""What is proven of a model's values, held against what a run of it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite import pipeline
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.bounds.intervals import UNKNOWN, Interval
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model import serialization
from amp_rewrite.policy.options import Options
from amp_rewrite.running.instrumented_model import InstrumentedModel
from amp_rewrite.running.sessions import Device

SHARED = Path(__file__).parents[2] / "shared" / "models"

Feeds = Mapping[str, NDArray[Any]]


def bounds(analysis: Analysis) -> dict[str, Interval]:
    """The bound of every value of the main graph of an analysed model, by name; masks are as they are."""
    analysis.facts.ranges.masks.clamped.clear()
    proven = Proven(analysis.loaded.model, analysis.facts, analysis.options)
    return {
        value.name or "": proven.of(value) for node in analysis.loaded.model.graph for value in node.outputs
    }


def of(model: onnx.ModelProto, **ranges: tuple[float, float]) -> dict[str, Interval]:
    """The bounds of a model whose inputs have these ranges."""
    return bounds(pipeline.analyze(model, Options(ranges=ranges, fold=False, keep_overridable=True)))


def ranges_of(sample: Feeds) -> dict[str, tuple[float, float]]:
    """The ranges of the float inputs of a sample."""
    floats = {name: array for name, array in sample.items() if getattr(array, "dtype", None) == np.float32}
    return {name: (float(array.min()), float(array.max())) for name, array in floats.items() if array.size}


class Sizes:
    """What an analysed model declares of the shapes of its values, its outputs aside, which are its author's;
    sizes of one name are the same, as a runtime believes.
    """

    def __init__(self, analysis: Analysis) -> None:
        graph = analysis.loaded.model.graph
        values = (*graph.inputs, *(value for node in graph for value in node.outputs))
        self._declared = {
            value.name: [dim if isinstance(dim, int) else dim.value for dim in value.shape]
            for value in values
            if value.shape is not None and type(value.type) is ir.TensorType and not value.is_graph_output()
        }
        self._named: dict[str, int] = {}

    def wrong(self, name: str, shape: tuple[int, ...]) -> Iterator[str]:
        """What is declared of a value that has this shape, and is another."""
        declared = self._declared.get(name, [None] * len(shape))
        sizes = [
            self._named.setdefault(dim, size) if isinstance(dim, str) else size if dim is None else dim
            for dim, size in zip(declared, shape, strict=False)
        ]
        if len(declared) != len(shape) or sizes != list(shape):
            yield f"{name}: {declared}, and is {shape}"


def broken(source: onnx.ModelProto | Path, sample: Feeds) -> Iterator[str]:
    """What a run of a model on this sample shows beyond its bounds, where its inputs are declared to be as
    they are in the sample.
    """
    analysis = pipeline.analyze(source, Options(ranges=ranges_of(sample)))
    known, sizes = bounds(analysis), Sizes(analysis)
    for name, array in sample.items():
        yield from sizes.wrong(name, np.shape(array))
    runner = InstrumentedModel(serialization.to_proto(analysis.loaded), Device.CPU)
    for values in runner.chunks(runner.values, sample):
        for name, array in values.items():
            yield from sizes.wrong(name, np.shape(array))
            bound = known.get(name, UNKNOWN)
            if any(beyond(np.asarray(array, np.float64), bound)):
                yield f"{name}: {bound}"


def beyond(array: NDArray[np.float64], bound: Interval) -> Iterator[bool]:
    """What an array shows beyond its bound: its elements. NaN proves nothing."""
    numbers = array[~np.isnan(array)]
    yield bool(numbers.size) and not (bound.low <= numbers.min() and numbers.max() <= bound.high)
