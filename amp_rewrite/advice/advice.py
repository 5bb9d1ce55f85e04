"""What would make half faster on a CUDA device: advice on Tensor Cores for a whole model."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from amp_rewrite.advice.padding import Padding, find
from amp_rewrite.coverage import counts
from amp_rewrite.coverage.counts import Precision
from amp_rewrite.coverage.measuring import some
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.sentences import plural, share
from amp_rewrite.flops.shapes import FlopCount
from amp_rewrite.model.traversal import every_node
from amp_rewrite.onnx_types import element_types
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.running import nvml

# The speed that a CUDA device gains from half, by its compute capability.


@dataclass(frozen=True, slots=True, order=True)
class Capability:
    """A compute capability in NVIDIA's numbering: 7.5 is (7, 5)."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def parse(text: str) -> Capability:
    """Parses a compute capability such as 7.5; OptionError for anything else."""
    found = re.fullmatch(r"(\d{1,2})\.(\d)", text, re.ASCII)
    if found is None:
        raise OptionError(f"{text} is not a compute capability", remedy="write it as in 7.5")
    return Capability(int(found[1]), int(found[2]))


def of_this_machine() -> Capability | None:
    """The compute capability of the first visible CUDA device; None where NVML cannot tell."""
    return nvml.query(lambda nvml, handle: Capability(*nvml.nvmlDeviceGetCudaComputeCapability(handle)))


TENSOR_CORES_FROM = {"float16": Capability(7, 0), "bfloat16": Capability(8, 0)}
"""The first capability with Tensor Cores for a half type (CUDA C++ Programming Guide, "Warp Matrix
Functions": Volta, and Ampere for bfloat16).
"""

_VECTORS = {
    Capability(5, 3): "other float16 arithmetic is twice as fast as float32 there",
    Capability(6, 0): "other float16 arithmetic is twice as fast as float32 there",
    Capability(6, 1): "float16 arithmetic runs at 1/64 of float32's rate there",
    Capability(6, 2): "other float16 arithmetic is twice as fast as float32 there",
}
"""Before Tensor Cores (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions": results
per clock and multiprocessor of 256 against 128, 128 against 64, 2 against 128, 256 against 128).
"""


def shortfall_of(capability: Capability, half: str) -> str:
    """Why products in a half type gain no speed on such a device; empty where they do.

    The GeForce GTX 16 series has no Tensor Cores either, which its capability of 7.5 does not show.
    """
    since = TENSOR_CORES_FROM[half]
    if capability >= since:
        return ""
    vectors = _VECTORS.get(capability) if half == "float16" else None
    return (
        f"compute capability {capability} has no Tensor Cores for {half} (they came with {since}): products "
        f"gain no speed from it, but use less memory{f'; {vectors}' if vectors else ''}"
    )


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
    shortfall = "" if capability is None else shortfall_of(capability, half)
    return Advice(
        half=half,
        capability=capability,
        shortfall=shortfall,
        paddings=() if shortfall else find(counted, decided.union(_halves(counted))),
        open_dims=counted.shapes.assumed,
    )


def _halves(counted: FlopCount) -> Iterator[ir.Node]:
    version = element_types.versions(counted.model.graph.opset_imports)
    for node in every_node(counted.model.graph):
        found = counts.of_node(node, counted.types, version(node.domain))
        if found in (Precision.HALF, Precision.MIXED):
            yield node


# Advice on Tensor Cores as text.


def lines(advice: Advice) -> Iterator[str]:
    """Why the device gains no speed; else the products that padding would speed up, two lines each."""
    if advice.shortfall:
        yield advice.shortfall
        return
    if advice.paddings:
        yield _WHY
    for padding in advice.paddings:
        yield from _padding(padding)
    if not advice.paddings:
        yield f"all known dimensions of products in {advice.half} are multiples of 8"
    if advice.open_dims:
        names = some(advice.open_dims)
        yield f"open dimensions were not examined ({names}); --dim NAME=SIZE sets them"


_WHY = (
    "Tensor Cores take any size since cuBLAS 11 and cuDNN 7.6.3, and are fastest with multiples of 8; "
    "these products have other dimensions:"
)


def _padding(padding: Padding) -> Iterator[str]:
    part = "" if padding.flop_share is None else f", {share(padding.flop_share)} of FLOPs"
    more = len(padding.nodes) - 1
    others = f" and {more:,} more" if more else ""
    yield f"{plural(len(padding.nodes), 'node')}{part}: {padding.operator} '{padding.nodes[0]}'{others}"
    sizes = ", ".join(f"{found.name} {found.size:,} -> {found.padded:,}" for found in padding.dimensions)
    extra_bytes = f"{share(padding.extra_bytes)} more bytes in their second operand"
    yield f"  {sizes}; padded: {share(padding.extra_flops)} more FLOPs, {extra_bytes}"


# The compatibility check of a precision policy: whether a device gains from half, and sizes fit its cores.
#
# Keras logs the first part for `mixed_float16` ("Mixed precision compatibility check"); nothing depends on
# it.

_SHOWN = 3


def device_lines(advice: Advice) -> Iterator[str]:
    """What is known of the device, and which dimensions of products are no multiples of 8, a line each.

    In a train step the batch is among them: it is the inner dimension of the products that give gradients.
    """
    yield _device(advice)
    if advice.paddings:
        sizes = dict.fromkeys(
            f"{found.size:,} -> {found.padded:,}"
            for padding in advice.paddings
            for found in padding.dimensions
        )
        count = sum(len(padding.nodes) for padding in advice.paddings)
        shown = ", ".join([*list(sizes)[:_SHOWN], *(["..."] if len(sizes) > _SHOWN else [])])
        yield f"{plural(count, 'product')} with dimensions that are no multiples of 8: {shown}"
    if advice.open_dims:
        yield f"open dimensions ({some(advice.open_dims)}), the batch as well, are best as multiples of 8"


def _device(advice: Advice) -> str:
    since = TENSOR_CORES_FROM[advice.half]
    if advice.capability is None:
        return f"no CUDA device here; {advice.half} gains speed from compute capability {since} on"
    return advice.shortfall or f"compute capability {advice.capability} has Tensor Cores for {advice.half}"
