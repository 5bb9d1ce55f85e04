"""The devices that times are predicted for, as data: peak rates, memory bandwidth, the time of a launch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.errors import OptionError

_TERA, _GIGA, _MICRO = 1e12, 1e9, 1e-6

LAUNCH = 2.5 * _MICRO
"""Seconds that a kernel takes however little it does. An assumption, not a measurement: NVIDIA's blog finds
3.8 microseconds from one short kernel to the next, of which the kernel itself takes 2.9, and 9.6 where each
is waited for (A. Gray: Getting Started with CUDA Graphs, 2019). The time of a runtime is left out.
"""


@dataclass(frozen=True, slots=True)
class Device:
    """The figures of a device that a prediction needs.

    Rates are floating-point operations a second, a multiply-add being two: `float32` without TF32, `float16`
    and `bfloat16` with dense Tensor Cores. Where there is no fast path for a half type, its rate is that of
    float32. `bandwidth` is bytes a second from and to the device's memory, `launch` seconds for each kernel.
    `source` cites the origin of the numbers.

    Examples:
        >>> from amp_rewrite.options import Device
        >>> Device("mine", float32=10e12, float16=80e12, bfloat16=10e12, bandwidth=300e9).name
        'mine'
    """

    name: str
    float32: float
    float16: float
    bfloat16: float
    bandwidth: float
    launch: float = LAUNCH
    source: str = ""

    def rate(self, half: str) -> float:
        """Return the rate of a half type, by its name.

        Examples:
            >>> from amp_rewrite import Options
            >>> Options(device="t4").device.rate("float16")
            65000000000000.0
        """
        return self.bfloat16 if half == "bfloat16" else self.float16

    def is_fast(self, half: str) -> bool:
        """Return whether arithmetic in that half type is faster than in float32.

        Examples:
            >>> from amp_rewrite import Options
            >>> Options(device="t4").device.is_fast("bfloat16")
            False
        """
        return self.rate(half) > self.float32


_CARDS = (
    # TFLOPS in float32, float16 and bfloat16 without sparsity (some data sheets have twice that), and GB/s
    ("h200", 67, 989.5, 989.5, 4800, "NVIDIA H200 Tensor Core GPU datasheet: H200 SXM"),
    ("h100", 67, 989.5, 989.5, 3350, "NVIDIA H100 Tensor Core GPU datasheet: H100 SXM"),
    ("a100", 19.5, 312, 312, 2039, "NVIDIA A100 Tensor Core GPU datasheet: A100 80GB SXM"),
    ("a10", 31.2, 125, 125, 600, "NVIDIA A10 Tensor Core GPU datasheet"),
    ("a10g", 35, 70, 70, 600, "NVIDIA A10G datasheet (published by AWS, for its G5 instances)"),
    ("l40s", 91.6, 362, 362, 864, "NVIDIA L40S datasheet"),
    ("l4", 30.3, 121, 121, 300, "NVIDIA L4 Tensor Core GPU datasheet"),
    ("t4", 8.1, 65, 8.1, 320, "NVIDIA T4 Tensor Core GPU datasheet; Turing's Tensor Cores have no bfloat16"),
    # GeForce cards add up in float32 at half the rate of float16
    ("rtx3090", 35.6, 71, 71, 936, "NVIDIA Ampere GA102 GPU Architecture whitepaper V2.0, appendix A"),
    ("rtx4090", 82.6, 165.2, 165.2, 1008, "NVIDIA Ada GPU Architecture whitepaper V2.0, appendix A"),
    ("rtx5090", 104.8, 209.5, 209.5, 1792, "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A"),
    # a quarter of 170 TOPS in int8 with sparsity
    ("orin", 5.3, 42.5, 42.5, 204.8, "NVIDIA Jetson AGX Orin Series Technical Brief v1.2: 64GB module"),
)

BY_NAME = {
    name: Device(name, single * _TERA, half * _TERA, brain * _TERA, bandwidth * _GIGA, source=source)
    for name, single, half, brain, bandwidth, source in _CARDS
}
H200, T4 = BY_NAME["h200"], BY_NAME["t4"]


def named(name: str, value: Any) -> Device:
    """Return a device by its name, or by its figures: `NAME,HALF/SINGLE,TB/S` in TFLOPS and TB/s.

    One number of TFLOPS counts for both types, as of a card without fast half. Raises OptionError, which
    gives the `name` of the argument, for anything else.
    """
    if not isinstance(value, str) or "," not in value:
        return arguments.named(name, value, Device, BY_NAME, _REMEDY)
    figures = _FIGURES.fullmatch(value)
    rates = [float(figure) for figure in figures.group(2, 3, 4) if figure] if figures else [0.0]
    if figures is None or not min(rates):
        raise OptionError(f"`{name}` {value} is not NAME,TFLOPS,TB/S", remedy=_REMEDY)
    half, single, bandwidth = rates[0] * _TERA, rates[-2] * _TERA, rates[-1] * _TERA
    return Device(figures[1].strip(), single, half, half, bandwidth, source="given by the user")


_NUMBER = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"
_FIGURES = re.compile(rf"([^,]*[^,\s][^,]*),{_NUMBER}(?:/{_NUMBER})?,{_NUMBER}")
_REMEDY = "give its figures as in mine,125/31.2,0.6: dense TFLOPS in half and in float32, and TB/s"
