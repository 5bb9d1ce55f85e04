"""How many runs a search may take, and of these its parts.

Runs are counted, and not timed: without a time limit a search comes to the same plan on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from amp_rewrite.flops import flop_count
from amp_rewrite.onnx_types.element_types import Types

FEWEST_RUNS = 24
"""A search may take so many runs, or half as many as there are sites, as far as WORK allows more."""

WORK = 1e11
"""The FLOPs of all runs together beyond which a search takes FEWEST_RUNS: 10 to 40 seconds on two cores."""

_ELEMENT, _NODE = 50.0, 5e4
"""The FLOPs that take as long as one element that is written, rounded and read, and as a node that starts."""

CALLS = 2
"""How many times as many runs all searches for one plan may take as the first."""


def most_runs(sites: int, work: float = 0.0) -> int:
    """The runs of a search over so many sites, where one takes the `work` of so many FLOPs."""
    wanted = max(FEWEST_RUNS, sites // 2)
    return wanted if work * wanted <= WORK else max(FEWEST_RUNS, int(WORK / work))


def work_of_run(model: ir.Model, types: Types, samples: Sequence[Mapping[str, Any]]) -> float:
    """The time of a run of all samples in FLOPs, estimated from the shapes that the first one gives."""
    counted = flop_count.count(model, types, _sizes(model, samples[0]))
    work = float(counted.total)
    for graph, runs in counted.runs.items():
        shapes = (counted.shapes.of(value) for node in graph for value in node.outputs)
        work += runs * (_ELEMENT * sum(_elements(shape) for shape in shapes) + _NODE * len(graph))
    return work * len(samples)


def _elements(shape: Sequence[int | None] | None) -> int:
    count = 1
    for size in shape or ():
        count *= size or 1
    return count


def _sizes(model: ir.Model, sample: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of open dimensions in a sample."""
    return {
        f"{value.name}:{axis}": sample[value.name].shape[axis]
        for value in model.graph.inputs
        if value.name in sample and hasattr(sample[value.name], "shape") and value.shape is not None
        for axis, size in enumerate(value.shape)
        if not isinstance(size, int)
    }


FEWEST_CHOICES = 3
"""The choices that are measured, however little time there is: as long as nothing else is known, all sites
count as equally bad, which mends a model that is only just too far.
"""

BEFORE = 2
"""The runs before a search: with no site rounded, and with those of the default plan."""


ROUNDS = ((0.3, 0.5), (0.6, 0.75), (0.85, 0.95))
"""The share of its runs up to which each round of a search measures groups of sites, and up to which choices."""

AGAIN = 1.0
"""The share up to which a search for less frees parts again: what the earlier one left."""

SEARCHED = 0.5
"""The share of a time limit that a search may take; the rest is for confirming what it finds."""
