"""What would make half faster on a CUDA device: advice on Tensor Cores for a whole model."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.advice import compute_capability, padding
from amp_rewrite.advice.compute_capability import Capability
from amp_rewrite.advice.padding import Padding
from amp_rewrite.coverage import counts
from amp_rewrite.coverage.counts import Precision
from amp_rewrite.flops.flop_count import FlopCount
from amp_rewrite.model.traversal import every_node
from amp_rewrite.onnx_types import element_types
from amp_rewrite.rewriting.decisions import Decisions


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice, none of which is carried out.

    `half` is the half type, `capability` the compute capability of the target device, None where none was
    given and no device is present. `shortfall` says why the device gains no speed from half; empty where it
    does. `paddings` are the products that padding would speed up; `open_dims` names the dimensions that were
    not examined because they are open.
    """

    half: str
    capability: Capability | None
    shortfall: str
    paddings: tuple[Padding, ...]
    open_dims: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The advice as plain data."""
        return {**asdict(self), "capability": None if self.capability is None else str(self.capability)}


def give(counted: FlopCount, decisions: Decisions, half: str, capability: Capability | None = None) -> Advice:
    """Advice on the nodes that run in half in a model, or will after the decisions are carried out.

    No padding is advised for a device that gains no speed from half.
    """
    decided: set[Hashable] = {decision.node for decision in decisions.all if decision.is_half}
    shortfall = "" if capability is None else compute_capability.shortfall(capability, half)
    return Advice(
        half=half,
        capability=capability,
        shortfall=shortfall,
        paddings=() if shortfall else padding.find(counted, decided.union(_halves(counted))),
        open_dims=counted.shapes.assumed,
    )


def _halves(counted: FlopCount) -> Iterator[ir.Node]:
    version = element_types.versions(counted.model.graph.opset_imports)
    for node in every_node(counted.model.graph):
        found = counts.of_node(node, counted.types, version(node.domain))
        if found in (Precision.HALF, Precision.MIXED):
            yield node
