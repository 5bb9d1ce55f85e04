"""The limits of float16 and bfloat16, and the fit of arrays."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from amp_rewrite.numerics import half, rounding
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16

HALVES = pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16], ids=lambda kind: kind.name)
FLOATS = hnp.arrays(np.float32, hnp.array_shapes(min_side=0), elements=st.floats(width=32, allow_nan=True))


def test_the_limits_of_both_types():
    """The limits of IEEE 754 binary16, and of bfloat16: float32's exponent with 8 significant bits."""
    assert (FLOAT16.largest, FLOAT16.smallest, FLOAT16.integers) == (65504.0, 2.0**-24, 2048)
    assert BFLOAT16.largest == float.fromhex("0x1.fep127")
    assert (BFLOAT16.smallest, BFLOAT16.integers) == (2.0**-133, 256)
    assert (FLOAT16.dtype, FLOAT16.tensor) == (ir.DataType.FLOAT16, "tensor(float16)")
    assert (BFLOAT16.dtype, BFLOAT16.tensor) == (ir.DataType.BFLOAT16, "tensor(bfloat16)")


@HALVES
def test_integers_are_exact_up_to_the_bound(kind):
    """Every integer up to `integers` is exact, and the next one is not."""
    exact = np.arange(-kind.integers, kind.integers + 1, dtype=np.float32)
    assert half.fit(exact, kind).exact
    assert not half.fit(np.float32([kind.integers + 1]), kind).exact


def test_fit_counts():
    """Overflow and flushing are counted separately; infinities and zeros count as neither."""
    array = np.float32([1e5, -1e5, np.inf, -np.inf, 1e-9, -1e-9, 0.0, -0.0, 0.1, 1.0])
    found = half.fit(array, FLOAT16)
    assert (found.overflowing, found.flushed) == (2, 2)
    assert (found.low, found.high) == (-1e5, 1e5)
    assert (found.exact, found.whole) == (False, False)


@HALVES
def test_half_of_the_smallest_value_is_flushed(kind):
    """Half of the smallest value is a tie, which rounds to zero; the next float32 does not."""
    tie = np.float32(kind.smallest / 2)
    array = np.float32([tie, -tie, np.nextafter(tie, np.float32(1)), np.nan, 0.0])
    assert half.fit(array, kind).flushed == 2


@pytest.mark.parametrize(
    ("values", "exact", "whole"),
    [
        ([], True, True),
        ([np.nan, np.inf, -np.inf], True, True),
        ([1.0, 2.0, -3.0], True, True),
        ([0.5, -0.0], True, False),
        ([2049.0], False, True),
        ([0.1], False, False),
    ],
)
def test_exact_and_whole(values, exact, whole):
    """`exact` is whether half can represent every value, `whole` whether all finite ones are integers."""
    found = half.fit(np.float32(values), FLOAT16)
    assert (found.exact, found.whole) == (exact, whole)


@HALVES
@settings(deadline=None)
@given(array=FLOATS)
def test_fit_agrees_with_convert(kind, array):
    """Each number of a Fit, recomputed from the converted array."""
    before = array.copy()
    found, back = half.fit(array, kind), rounding.convert(array, kind).astype(np.float32)
    np.testing.assert_array_equal(array, before)
    finite = np.isfinite(array)
    assert found.overflowing == np.count_nonzero(np.isinf(back) & finite)
    assert found.flushed == np.count_nonzero((back == 0) & (array != 0))
    assert found.exact == np.array_equal(back, array, equal_nan=True)
    if np.any(finite):
        assert (found.low, found.high) == (array[finite].min(), array[finite].max())


@HALVES
@settings(deadline=None)
@given(arrays=st.lists(FLOATS.filter(np.size), min_size=1, max_size=6))
def test_many_fits_at_once_are_those_of_each(kind, arrays):
    """Whatever stands beside an array, and with infinities and NaN."""
    assert half.fit_each(arrays, kind) == [half.fit(array, kind) for array in arrays]


def test_rounding_is_to_nearest_even():
    """Ties round to even, and 65520 is the smallest value that overflows."""
    array = np.float32([1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 65520.0])
    found = rounding.convert(array, FLOAT16)
    assert found.tolist() == [1.0, 1 + 2**-9, 65504.0, np.inf]
    assert rounding.convert(np.float32([1 + 2**-8]), BFLOAT16).dtype == ml_dtypes.bfloat16
    assert rounding.convert(np.float32([1 + 2**-8]), BFLOAT16).astype(float).tolist() == [1.0]
