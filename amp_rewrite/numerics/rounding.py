"""Rounding of float32 to half, to the nearest value, ties to even: the same bits from either implementation.

NumPy and ml_dtypes round one value at a time; onnxruntime's Cast uses the processor's conversion instructions
and is many times as fast. Large arrays go to onnxruntime if it is installed and rounds identically.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import parser

from amp_rewrite.numerics.half import Half

Floats = NDArray[np.float32]

LARGE = 1 << 16
"""The array size from which importing onnxruntime pays off."""


def convert(array: Floats, half: Half, *, saturate: bool = False, nan: bool = True) -> NDArray[Any]:
    """`array` rounded to the nearest values of `half`, ties to even, signs kept.

    With `saturate`, finite values out of range become the fill value of their sign instead of infinity;
    infinities stay. `nan=False` saves the pass that looks for NaN, whose payload is then any.
    """
    source = saturated(array, half) if saturate else array
    is_large = source.size >= LARGE and not (nan and np.isnan(source.min()))
    fast = fast_converter(half) if is_large else None
    return fast(source) if fast else _numpy_convert(half, source)


def saturated(array: Floats, half: Half) -> Floats:
    """`array` in float32, with finite values out of range replaced by the fill value (`Half.fill`)."""
    beyond = np.abs(array) > half.largest
    if not beyond.any():
        return array
    beyond &= np.isfinite(array)
    return np.where(beyond, np.copysign(np.float32(half.fill), array), array).astype(np.float32)


def lifted(array: Floats, half: Half) -> NDArray[Any]:
    """`array` of positive numbers, rounded to values of `half` above zero."""
    return _numpy_convert(half, np.maximum(array, np.float32(half.smallest)))


def _numpy_convert(half: Half, array: Floats) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        return array.astype(half.numpy)


@functools.cache
def fast_converter(half: Half) -> CastConverter | None:
    """Return onnxruntime's conversion to `half`; None if it is missing or does not round as NumPy does.

    Not for NaN: it is a NaN of half, but its payload bits are not kept as NumPy keeps them.
    """
    sample = _sample()
    try:
        converter = CastConverter(half)
        same = np.array_equal(converter(sample).view(np.uint16), _numpy_convert(half, sample).view(np.uint16))
        same = same and bool(np.isnan(converter(_NANS).astype(np.float32)).all())
    except Exception:  # onnxruntime's errors have no common base class
        return None
    return converter if same else None


def _sample() -> Floats:
    """Return float32 values of every exponent and sign, on and beside ties, with infinities but no NaN."""
    exponents = np.arange(0, 1 << 31, 1 << 23, dtype=np.int64)
    ends = np.array([i + j for i, j in itertools.product(_ENDS, (-1, 0, 1))], np.int64)
    bits = (exponents[:, None] + ends[None, :]).reshape(-1)
    bits = bits[(bits >= 0) & (bits <= _INFINITY)]
    return np.concatenate([bits, bits + (1 << 31)]).astype(np.uint32).view(np.float32)


_INFINITY = 0x7F800000
_PAYLOADS = [*(1 << i for i in range(23)), 0x7FFFFF]
_NANS = np.array([s | _INFINITY | b for s in (0, 1 << 31) for b in _PAYLOADS], np.uint32).view(np.float32)
"""NaN of both signs, with payloads that a type of 16 bits drops, too."""
_ENDS = [*(1 << i for i in range(23)), *(3 << i for i in range(22)), 0, 0x7FEFFF]


class CastConverter:
    """A Cast from float32 to a half type on the CPU, on the caller's thread; several threads may call it."""

    def __init__(self, half: Half) -> None:
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # fatal errors only
        model = parser.parse_model(_MODEL.format(half=half.name, to=int(half.dtype))).SerializeToString()
        self._half = half
        self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def __call__(self, array: Floats) -> NDArray[Any]:
        """Return the rounded array, of the same shape."""
        source = np.ascontiguousarray(array, np.float32)
        result = np.empty(source.shape, self._half.numpy)
        binding = self._session.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, [source.size], source.ctypes.data)
        binding.bind_output("y", "cpu", 0, int(self._half.dtype), [result.size], result.ctypes.data)
        self._session.run_with_iobinding(binding)
        return result


_MODEL = """
<ir_version: 8, opset_import: ["": 13]>
rounding (float[n] x) => ({half}[n] y) {{ y = Cast <to: int = {to}> (x) }}
"""
