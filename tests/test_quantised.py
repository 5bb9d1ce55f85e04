"""Quantised regions have one type with their scales, so that a runtime can fuse them into integer kernels."""

import numpy as np
import pytest

from amp_rewrite import measure_placement
from amp_rewrite.policy import targets
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device
from tests.text import agree, model, rewritten

JOINED = """<ir_version: 10, opset_import: ["" : 21]>
g (uint8[2,4] x) => (uint8[4,4] y) <float s = {0.05}, uint8 z = {0}> {
    d = DequantizeLinear (x, s, z)
    c = Concat <axis = 0> (d, d)
    y = QuantizeLinear (c, s, z)
}"""


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
