"""Float32 -> half, to the nearest value, ties to even: the same bits whoever rounds.

NumPy and ml_dtypes round a value at a time; onnxruntime's Cast uses the processor's instructions for it, many
times as fast. What is large goes to it, where it is installed and rounds alike.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import parser

from amp_rewrite.numerics.half import Half
from amp_rewrite.process import fork_safe

Floats = NDArray[np.float32]

_LARGE = 1 << 16
"""From so many values on the import of onnxruntime pays."""


def convert(array: Floats, half: Half, *, saturate: bool = False, nan: bool = True) -> NDArray[Any]:
    """`array` rounded to the nearest values of `half`, ties to even, signs kept.

    With `saturate`, finite values beyond the range become the fill of their sign instead of infinity;
    infinities stay. Who knows that there is no NaN says so with `nan`, and spares a look at all values.
    """
    given = saturated(array, half) if saturate else array
    fast = _cast(half) if given.size >= _LARGE and not (nan and np.isnan(given.min())) else None
    return fast(given) if fast else _plain(half, given)


def saturated(array: Floats, half: Half) -> Floats:
    """`array` in float32, with the fill of `half` for finite values beyond its range; see `Half.fill`."""
    beyond = np.abs(array) > half.largest
    if not beyond.any():
        return array
    beyond &= np.isfinite(array)
    return np.where(beyond, np.copysign(np.float32(half.fill), array), array).astype(np.float32)


def _plain(half: Half, array: Floats) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        return array.astype(half.numpy)


@functools.cache
def _cast(half: Half) -> Callable[[Floats], NDArray[Any]] | None:
    """onnxruntime's Cast to `half`; None where it is not installed, or does not round as NumPy does.

    It is not asked about NaN, of which it keeps other bits.
    """
    sample = _sample()
    try:
        cast = _Cast(half)
        rounds_alike = _same_bits(cast(sample), _plain(half, sample))
    except Exception:  # onnxruntime has no common class for its errors
        return None
    return cast if rounds_alike else None


def _same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return np.array_equal(one.view(np.uint16), other.view(np.uint16))


def _sample() -> Floats:
    """Float32 of every size: no NaN, both infinities, and for each exponent what lies on and beside a tie."""
    exponents = np.arange(0, 1 << 31, 1 << 23, dtype=np.int64)
    ends = np.array([i + j for i, j in itertools.product(_ENDS, (-1, 0, 1))], np.int64)
    bits = (exponents[:, None] + ends[None, :]).reshape(-1)
    bits = bits[(bits >= 0) & (bits <= _INFINITY)]
    return np.concatenate([bits, bits + (1 << 31)]).astype(np.uint32).view(np.float32)


_INFINITY = 0x7F800000
_ENDS = [*(1 << i for i in range(23)), *(3 << i for i in range(22)), 0, 0x7FEFFF]


class _Cast:
    """A Cast from float32 to half on the CPU, on the caller's thread; any number of threads may call it."""

    def __init__(self, half: Half) -> None:
        self._half = half
        runtime = fork_safe.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # only what ends the process
        model = parser.parse_model(_MODEL.format(half=half.name, to=int(half.dtype)))
        self._session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, array: Floats) -> NDArray[Any]:
        given = np.ascontiguousarray(array, np.float32)
        made = np.empty(given.shape, self._half.numpy)
        binding = self._session.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, [given.size], given.ctypes.data)
        binding.bind_output("y", "cpu", 0, int(self._half.dtype), [made.size], made.ctypes.data)
        self._session.run_with_iobinding(binding)
        return made


_MODEL = """
<ir_version: 8, opset_import: ["": 13]>
rounding (float[n] x) => ({half}[n] y) {{ y = Cast <to: int = {to}> (x) }}
"""
