"""The speed that a CUDA device gains from half, by its compute capability."""

from __future__ import annotations

import re
from dataclasses import dataclass

from amp_rewrite.errors import OptionError
from amp_rewrite.running import latency


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
    return latency.query(lambda nvml, handle: Capability(*nvml.nvmlDeviceGetCudaComputeCapability(handle)))


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


def shortfall(capability: Capability, half: str) -> str:
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
