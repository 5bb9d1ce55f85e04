"""Quantised regions have one type with their scales, so that a runtime can fuse them into integer kernels."""

import numpy as np
import pytest

from amp_rewrite import measure_placement
from amp_rewrite.policy import operator_lists, targets
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device
from tests.text import agree, becomes, in_half, kept, model, rewritten, stays

REASON = "works on quantised data, between DequantizeLinear and QuantizeLinear"


def test_what_stands_between_dequantize_and_quantize_stays():
    """DequantizeLinear, Conv, Relu, QuantizeLinear is one integer kernel: nothing in it changes."""
    text = """g (uint8[1,1,4,4] x) => (uint8[1,1,4,4] y)
    <float[1,1,1,1] w, float s, uint8 z> {
        d = DequantizeLinear (x, s, z)
        c = Conv (d, w)
        r = Relu (c)
        y = QuantizeLinear (r, s, z)
    }"""
    stays(text)
    assert kept(text) == {"c": REASON, "r": REASON}


def test_quantised_weights_alone_make_no_region():
    """A product whose weights alone are dequantised is a product: their scale is half, at the opset that has
    it.
    """
    becomes(
        """g (float[4,4] x) => (float[4,4] y) <uint8[4,4] w, float s, uint8 z> {
            d = DequantizeLinear (w, s, z)
            y = MatMul (x, d)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <uint8[4,4] w, float16 s, uint8 z> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            d = DequantizeLinear (w, s, z)
            y__float16 = MatMul (x__float16, d)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    )


def test_the_float_part_of_a_quantised_model_is_rewritten():
    """Behind the region half begins again."""
    text = """g (uint8[4,4] x) => (float[4,4] y) <float[4,4] w, float s, uint8 z> {
        d = DequantizeLinear (x, s, z)
        c = MatMul (d, w)
        q = QuantizeLinear (c, s, z)
        e = DequantizeLinear (q, s, z)
        f = Relu (e)
        m = MatMul (f, w)
        y = Relu (m)
    }"""
    assert kept(text).keys() == {"c", "f"}
    assert in_half(text) == {"m", "y"}


def test_the_inputs_of_a_quantizer_stay():
    """What is quantised right after its maker stays float32: its numbers decide where steps fall."""
    text = """g (float[4,4] x) => (uint8[4,4] y) <float[4,4] w, float s, uint8 z> {
        m = MatMul (x, w)
        r = Relu (m)
        y = QuantizeLinear (r, s, z)
    }"""
    assert kept(text) == {"r": REASON}
    assert in_half(text) == {"m"}


def test_a_scale_and_what_it_scales_move_together():
    """From opset 19 on both may be half, and the result with them: that type is not said any more."""
    becomes(
        """<ir_version: 11, opset_import: ["" : 23]>
        g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float s, uint8 z> {
            h = MatMul (x, w)
            q = QuantizeLinear (h, s, z)
            d = DequantizeLinear <output_dtype = 1> (q, s, z)
            y = MatMul (d, w)
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w, float16 s, uint8 z> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            h = MatMul (x__float16, w)
            q = QuantizeLinear (h, s, z)
            d = DequantizeLinear (q, s, z)
            y__float16 = MatMul (d, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        Options(level=Level.UNSAFE_FORCE_ALL),
    )


JOINED = """<ir_version: 10, opset_import: ["" : 21]>
g (uint8[2,4] x) => (uint8[4,4] y) <float s = {0.05}, uint8 z = {0}> {
    d = DequantizeLinear (x, s, z)
    c = Concat <axis = 0> (d, d)
    y = QuantizeLinear (c, s, z)
}"""


def test_a_region_is_not_forced():
    """onnxruntime would fuse it in half too, and refuse what it made; another runtime gets what is asked."""
    forced = Options(level=Level.UNSAFE_FORCE_ALL)
    assert "c" not in in_half(JOINED, forced)
    assert "c" in in_half(JOINED, Options(level=Level.UNSAFE_FORCE_ALL, target=targets.ANY))
    agree(model(JOINED), rewritten(model(JOINED), forced).model)


RESIDUAL = """<ir_version: 8, opset_import: ["" : 13]>
g (float[1,4,4,4] x) => (float[1,4,4,4] y)
<int8[4,4,1,1] w, float s, int8 z = {0}, float[4] t, int8[4] n = {0, 0, 0, 0}, int32[4] b, float u> {
    a = QuantizeLinear (x, s, z)
    c = DequantizeLinear (a, s, z)
    v = DequantizeLinear <axis = 0> (w, t, n)
    k = DequantizeLinear (b, u)
    d = Conv (c, v, k)
    e = QuantizeLinear (d, s, z)
    f = DequantizeLinear (e, s, z)
    h = Add (f, f)
    i = QuantizeLinear (h, s, z)
    j = DequantizeLinear (i, s, z)
    y = Conv (j, v)
}"""
TENSORRT = Options(target=targets.TENSORRT)


def test_a_region_is_half_with_its_scales():
    """TensorRT fuses half scales, so all between is half at the first opset that has them: without a Cast,
    over what is an integer between, and with the bias, which it takes from no 32 bits, computed.
    """
    becomes(
        RESIDUAL,
        """g (float[1,4,4,4] x) => (float[1,4,4,4] y)
        <int8 z, int8[4] n, int8[4,4,1,1] w, float s, float16[4] t, float16[4] k, float16 s__float16> {
            a = QuantizeLinear (x, s, z)
            c = DequantizeLinear (a, s__float16, z)
            v = DequantizeLinear <axis = 0> (w, t, n)
            d = Conv (c, v, k)
            e = QuantizeLinear (d, s__float16, z)
            f = DequantizeLinear (e, s__float16, z)
            h = Add (f, f)
            i = QuantizeLinear (h, s__float16, z)
            j = DequantizeLinear (i, s__float16, z)
            y__float16 = Conv (j, v)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        TENSORRT,
    )


@pytest.mark.parametrize(
    ("options", "tiny"),
    [
        (Options(), ()),
        (Options(target=targets.TENSORRT, keep_opset=True), ()),
        (
            Options(
                target=targets.TENSORRT,
                lists=operator_lists.load("default").override("deny", "DequantizeLinear"),
            ),
            (),
        ),
        (Options(target=targets.TENSORRT, level=Level.TENSOR_CORES_ONLY), ()),
        (TENSORRT, ("s",)),  # of data
        (TENSORRT, ("t",)),  # of weights
    ],
    ids=["onnxruntime", "opset", "list", "level", "data", "weights"],
)
def test_a_region_stays_with_a_scale_that_is_float32(options, tiny):
    """The runtime fuses float32 alone, the opset has no half scale, what was asked for
    has none, or half has too few digits for it."""
    numbers = {"s": np.float32(0.05), "t": np.full(4, 0.05, np.float32)}
    weights = {name: array * np.float32(1e-4 if name in tiny else 1) for name, array in numbers.items()}
    assert in_half(RESIDUAL, options, weights=weights) == set()


def test_blocks_of_four_bits_are_fused():
    """Between dequantised weights and their product stands nothing: onnxruntime makes one kernel of both."""
    proto = model(
        """<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,32] x) => (float[2,64] y) <int4[32,64] w, float[1,64] s> {
        d = DequantizeLinear <axis = 0, block_size = 32> (w, s)
        y = MatMul (x, d)
    }""",
        {"w": np.ones((32, 64), np.int8)},
    )
    assert measure_placement(rewritten(proto).model, Device.CPU).fused == {"com.microsoft:MatMulNBits": 1}


def test_a_comparison_opens_what_onnxruntime_breaks():
    """Its optimiser fuses half scales for the CPU, and refuses its own kernel: then it does without."""
    result = rewritten(model(JOINED), Options(level=Level.UNSAFE_FORCE_ALL, target=targets.ANY))
    with pytest.raises(Exception, match="float16"):
        agree(model(JOINED), result.model)
    assert sessions.open_session(result.model).get_outputs()[0].name == "y"
