"""The run budget of a search and of its phases.

Runs are counted, not timed: without a time limit a search gives the same plan on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from amp_rewrite.costs import flop_count
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.running.sequences import Steps

FEWEST_RUNS = 24
"""The run budget; half the number of sites if that is more and within WORK."""

WORK = 1e11
"""The FLOPs of all runs together beyond which a search takes FEWEST_RUNS: 10 to 40 seconds on two cores."""

_ELEMENT, _NODE = 50.0, 5e4
"""The FLOPs that take as long as writing, rounding and reading an element, and as launching a node."""

CALLS = 2
"""The run budget of all searches for one plan, as a multiple of that of the first."""


def most_runs(sites: int, work: float = 0.0) -> int:
    """Return the run budget for so many sites, with `work` FLOPs per run."""
    runs = max(FEWEST_RUNS, sites // 2)
    return runs if work * runs <= WORK else max(FEWEST_RUNS, int(WORK / work))


def work_of_run(model: ir.Model, types: Types, samples: Sequence[Mapping[str, Any]]) -> float:
    """Estimate the time of a run of all samples in FLOPs, from the shapes of the first one."""
    counts = flop_count.count(model, types, _sizes(model, samples[0]))
    work = float(counts.total)
    for graph, runs in counts.runs.items():
        shapes = (counts.shapes.of(value) for node in graph for value in node.outputs)
        work += runs * (_ELEMENT * sum(_elements(shape) for shape in shapes) + _NODE * len(graph))
    return work * sum(sample.count if isinstance(sample, Steps) else 1 for sample in samples)


def _elements(shape: Sequence[int | None] | None) -> int:
    count = 1
    for size in shape or ():
        count *= size or 1
    return count


def _sizes(model: ir.Model, sample: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of open dimensions in a sample."""
    return {
        f"{value.name}:{axis}": sample[str(value.name)].shape[axis]
        for value in model.graph.inputs
        if hasattr(sample.get(str(value.name)), "shape")
        for axis, size in enumerate(value.shape or ())
        if not isinstance(size, int)
    }


FEWEST_CHOICES = 3
"""The fewest choices to measure, whatever the time: without further measurements all sites count as equally
sensitive, which mends a model slightly above the target.
"""

BEFORE = 2
"""The runs before a search: with no site rounded, and with the default plan."""


ROUNDS = ((0.3, 0.5), (0.6, 0.75), (0.85, 0.95))
"""The share of its runs up to which each round of a search measures groups of sites, and then choices."""

AGAIN = 1.0
"""The share of its runs up to which a repeated search frees parts: the rest of the budget."""

SEARCHED = 0.5
"""The share of a time limit for the search; the rest is for confirming its plans."""
