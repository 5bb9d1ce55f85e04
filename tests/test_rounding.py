"""Float32 rounded to half: NumPy and onnxruntime give the same bits."""

import sys

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import load, numpy_helper, save
from onnx.parser import parse_model

from amp_rewrite import rewrite
from amp_rewrite.numerics import half, rounding
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16

HALVES = pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16], ids=lambda kind: kind.name)
FLOATS = hnp.arrays(np.float32, hnp.array_shapes(min_side=0), elements=st.floats(width=32, allow_nan=True))


@HALVES
@settings(deadline=None)
@given(array=FLOATS)
def test_conversion_keeps_signs_and_order(kind, array):
    """No value changes its sign, zeros included, and none overtakes another."""
    found = rounding.convert(array, kind).astype(np.float32)
    numbers = ~np.isnan(array)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(array)[numbers])
    order = np.argsort(array[numbers], axis=None)
    sorted_ = found[numbers].ravel()[order]
    assert np.all(sorted_[1:] >= sorted_[:-1])


@HALVES
@settings(deadline=None)
@given(array=FLOATS)
def test_saturation_leaves_infinities_and_makes_none(kind, array):
    """With `saturate` a value is infinite afterwards exactly when it was before."""
    found = rounding.convert(array, kind, saturate=True).astype(np.float32)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(array))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(array))
    inside = np.abs(array) <= kind.largest
    plain = rounding.convert(array, kind).astype(np.float32)
    np.testing.assert_array_equal(found[inside], plain[inside])


def test_saturated_keeps_float32():
    """Clamped values stay float32 and are not rounded."""
    found = rounding.saturated(np.float32([1e5, -3e38, 0.1, np.inf, -np.inf]), FLOAT16)
    expected = np.float32([32752, -32752, 0.1, np.inf, -np.inf])
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.fixture(params=["fast", "plain"])
def _implementation(request, monkeypatch):
    """With onnxruntime, and without it."""
    rounding.fast_converter.cache_clear()
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    yield
    rounding.fast_converter.cache_clear()


def spread(step):
    """Every `step`-th of all float32, NaN left out."""
    found = np.arange(0, 1 << 32, step, dtype=np.uint32).view(np.float32)
    return found[~np.isnan(found)]


def bits(array):
    """The bits of an array of halves."""
    return np.asarray(array).view(np.uint16)


def agrees(array, kind):
    """Asserts that an array is rounded as by NumPy, bit by bit."""
    with np.errstate(all="ignore"):
        expected = array.astype(kind.numpy)
    np.testing.assert_array_equal(bits(rounding.convert(array, kind)), bits(expected))


def with_nan():
    """Numbers, and a NaN with a payload."""
    array = spread(9973)
    array[5] = np.uint32(0x7FA12345).view(np.float32)
    return array


LARGE = {
    "many": lambda: spread(9973),
    "a NaN with a payload": with_nan,
    "another order in memory": lambda: np.asfortranarray(spread(9973)[: 1 << 18].reshape(256, -1)),
}


@HALVES
@pytest.mark.usefixtures("_implementation")
@pytest.mark.parametrize("name", LARGE)
def test_large_arrays_are_rounded_as_numpy_rounds(name, kind):
    """A large array has the shape and the bits of NumPy's astype, with onnxruntime and without."""
    array = LARGE[name]()
    assert array.size >= rounding.LARGE
    agrees(array, kind)


@HALVES
def test_onnxruntime_is_what_rounds_large_arrays(kind):
    """If it is installed, it passes the check that it rounds as NumPy does."""
    assert rounding.fast_converter(kind) is not None


def test_a_converter_that_rounds_differently_is_not_used(monkeypatch):
    """A Cast that truncates instead of rounding is detected, and NumPy rounds."""
    rounding.fast_converter.cache_clear()
    rounds = rounding.CastConverter(FLOAT16)

    def truncates(array):
        return rounds((array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))

    monkeypatch.setattr(rounding, "CastConverter", lambda _: truncates)
    try:
        assert rounding.fast_converter(FLOAT16) is None
    finally:
        rounding.fast_converter.cache_clear()


@pytest.mark.slow
@HALVES
def test_a_hundredth_of_all_float32(kind):
    """Every 97th float32 value is rounded as by NumPy."""
    array = spread(97)
    agrees(array, kind)


@pytest.mark.usefixtures("_implementation")
def test_a_weight_with_one_nan_becomes_what_numpy_makes_of_it(tmp_path):
    """In a rewrite, too, arrays with NaN are rounded by NumPy."""
    weight = np.full((256, 256), 0.1, np.float32)
    weight[200, 3] = np.uint32(0x7F812345).view(np.float32)
    body = "wide (float[n,256] x) => (float[n,256] y) <float[256,256] w> { y = MatMul (x, w) }"
    given = parse_model(f'<ir_version: 8, opset_import: ["": 17]> {body}')
    given.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    inside = rewrite(given).model
    save(given, tmp_path / "m.onnx", save_as_external_data=True)
    for proto in (inside, load(rewrite(tmp_path / "m.onnx").model)):
        found = numpy_helper.to_array(proto.graph.initializer[0])
        np.testing.assert_array_equal(found.view(np.uint16), weight.astype(np.float16).view(np.uint16))


# ---- the limits of float16 and bfloat16, and the fit of arrays


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
