"""What a model costs on a device, gathered once for all colours that are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.costs import borders, model_costs, prediction
from amp_rewrite.costs.borders import Border
from amp_rewrite.costs.model_costs import AS_GIVEN, ModelCosts, Scale
from amp_rewrite.costs.prediction import Prediction
from amp_rewrite.policy.open_sizes import DEFAULT
from amp_rewrite.policy.options import IOTypes, Options


@dataclass(frozen=True, slots=True)
class Prices:
    """The costs of a model's kernels and borders; `origin` says who gave the sizes of open dimensions."""

    graph: UnitGraph
    costs: ModelCosts
    borders: tuple[Border, ...]
    origin: str = ""

    def predict(self, halves: Sequence[bool], scale: Scale = AS_GIVEN) -> Prediction:
        """The predicted times with these units in half, at the model's own sizes or at another scale."""
        costs, half = self.costs, self.costs.half
        none, (sizes, open_size, origin) = [False] * len(halves), self._sizes()
        everything = prediction.everything(self.graph, half)
        times = prediction.run_times(costs, self.borders, (none, halves, everything), scale)
        return Prediction(
            costs.device.name, half.name, sizes, open_size, origin, costs.device.is_fast(half.name), *times
        )

    def _sizes(self) -> tuple[str, int | None, str]:
        """The shape of the first input, empty where there is none; the size of what is open in it, and where
        the sizes of open dimensions were given.
        """
        first = next((value for value in self.graph.root.inputs if value.const_value is None), None)
        shape = self.graph.shape(first)
        is_open = shape is not None and not shape.is_static()
        text = "x".join(map(str, self.costs.sizes.shape(first) or ()))
        return text, DEFAULT if is_open else None, self.origin if self.graph.sized else ""


def measure(graph: UnitGraph, options: Options) -> Prices:
    """The prices of a model that is not edited yet; linear in its nodes, ports and edges."""
    costs = model_costs.measure(graph, options.device, options.half)
    half_io = options.io is IOTypes.HALF
    return Prices(graph, costs, tuple(borders.find(graph, costs, half_io=half_io)), options.dims.origin)
