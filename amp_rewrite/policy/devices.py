"""The devices that times are predicted for, as data: peak rates, memory bandwidth, the time of a launch."""

from __future__ import annotations

from dataclasses import dataclass

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


H200 = Device(
    "h200",
    float32=67 * _TERA,
    float16=989.5 * _TERA,  # the data sheet has twice that, with sparsity
    bfloat16=989.5 * _TERA,
    bandwidth=4800 * _GIGA,
    source="NVIDIA H200 Tensor Core GPU datasheet: H200 SXM",
)
A100 = Device(
    "a100",
    float32=19.5 * _TERA,
    float16=312 * _TERA,
    bfloat16=312 * _TERA,
    bandwidth=2039 * _GIGA,
    source="NVIDIA A100 Tensor Core GPU datasheet: A100 80GB SXM",
)
L4 = Device(
    "l4",
    float32=30.3 * _TERA,
    float16=121 * _TERA,  # the data sheet has 242, with sparsity
    bfloat16=121 * _TERA,
    bandwidth=300 * _GIGA,
    source="NVIDIA L4 Tensor Core GPU datasheet",
)
T4 = Device(
    "t4",
    float32=8.1 * _TERA,
    float16=65 * _TERA,
    bfloat16=8.1 * _TERA,  # Turing's Tensor Cores have no bfloat16
    bandwidth=320 * _GIGA,
    source="NVIDIA T4 Tensor Core GPU datasheet",
)

BY_NAME = {device.name: device for device in (H200, A100, L4, T4)}
