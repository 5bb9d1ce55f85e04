"""Advice on Tensor Cores for a whole model."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.advice import capability as capabilities
from amp_rewrite.advice import padding
from amp_rewrite.advice.capability import Capability
from amp_rewrite.advice.measured import Measured
from amp_rewrite.advice.padding import Padding
from amp_rewrite.coverage import precision
from amp_rewrite.coverage.precision import Precision
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import element_types
from amp_rewrite.rewriting.decisions import Decisions


@dataclass(frozen=True, slots=True)
class Advice:
    """What would make half faster; nothing of it is done.

    `half` is the half type, `capability` that of the device it is for, None where nobody said and no device
    is at hand. `shortfall` says why such a device gains nothing; nothing where it does. `paddings` are the
    products that padding would help, and `open_dims` names the dimensions that were not looked at.
    """

    half: str
    capability: Capability | None
    shortfall: str
    paddings: tuple[Padding, ...]
    open_dims: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "half": self.half,
            "capability": None if self.capability is None else str(self.capability),
            "shortfall": self.shortfall,
            "paddings": [found.to_json() for found in self.paddings],
            "open_dims": list(self.open_dims),
        }


def give(measured: Measured, decisions: Decisions, half: str, capability: Capability | None = None) -> Advice:
    """Advice on the nodes that run in half in a model, or that are decided to.

    For a device that gains nothing there is nothing to pad.
    """
    decided: set[Hashable] = {decision.node for decision in decisions.all if decision.is_half}
    shortfall = "" if capability is None else capabilities.shortfall(capability, half)
    return Advice(
        half=half,
        capability=capability,
        shortfall=shortfall,
        paddings=() if shortfall else padding.find(measured, decided.union(_halves(measured))),
        open_dims=measured.work.shapes.assumed,
    )


def _halves(measured: Measured) -> Iterator[ir.Node]:
    version = element_types.versions(measured.model.graph.opset_imports)
    for graph in graphs(measured.model.graph):
        for node in graph:
            found = precision.of_node(node, measured.types, version(node.domain))
            if found in (Precision.HALF, Precision.MIXED):
                yield node
