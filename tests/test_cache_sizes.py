"""The sizes of past keys and values that attention operators require of synthetic inputs."""

import numpy as np
import pytest

from tests.sessions import Runtime
from tests.text import model

pytest.importorskip("onnxruntime")
from amp_rewrite.running.inputs.feeds import Data, feeds

RUNTIME = Runtime()

GENAI = """
g (int64[batch, seq] input_ids, int64[batch, total] attention_mask,
   float[batch, 2, slid, dim] past_0_key, float[batch, 2, slid, dim] past_0_value,
   float[batch, heads, past, dim] past_1_key, float[batch, heads, past, dim] past_1_value)
=> (float[batch, seq, 64] y,
    float[b, 2, t, d] k0, float[b, 2, t, d] v0, float[b, 2, u, d] k1, float[b, 2, u, d] v1)
<float[9, 64] table, float[64, 128] wq, float[64, 32] wk, float[64, 32] wv, int64[1] one, int64[] axis> {{
    x = Gather (table, input_ids)
    seen = ReduceSum (attention_mask, one)
    last64 = Sub (seen, one)
    last = Cast <to = 6> (last64)
    shape = Shape (attention_mask)
    length = Gather (shape, axis)
    total32 = Cast <to = 6> (length)
    packed = MatMul (x, wq)
    a, k0, v0 = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2{window}>
        (packed, , , past_0_key, past_0_value, last, total32)
    k = MatMul (a, wk)
    v = MatMul (a, wv)
    y, k1, v1 = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
        (a, k, v, past_1_key, past_1_value, last, total32)
}}"""


SLIDING = ", local_window_size = 40, sliding_window_cache = 1"


@pytest.mark.parametrize(("window", "slid"), [("", 8), (SLIDING, 40)])
def test_a_decoder_of_genai_runs(window, slid):
    """Queries, keys and values in one input or in three: past keys and values, whose sizes are all open, get
    heads of the right size, and a sliding window its own length, beside a mask over what the others hold.
    """
    text = GENAI.format(window=window)
    proto = model(text, {"one": np.ones(1, np.int64), "axis": np.array(1)})
    sample = next(feeds(proto, Data()))
    shapes = [sample[f"past_{layer}_value"].shape for layer in (0, 1)]
    assert shapes == [(1, 2, slid, 16), (1, 2, 8, 16)]
    assert sample["attention_mask"].shape == (1, 24)
    assert not RUNTIME.run(proto.SerializeToString(), dict(sample)).failure


@pytest.mark.parametrize(
    ("operator", "heads"),
    [
        ("com.microsoft.MultiHeadAttention <num_heads = 4> (q, q, q, , , , past_key, past_value)", 4),
        ("Attention <q_num_heads = 4, kv_num_heads = 2> (q, half, half, , past_key, past_value)", 2),
    ],
)
def test_heads_come_from_the_queries(operator, heads):
    """Past keys have the heads that attention names, each with its part of the queries."""
    text = f"""<ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1]>
    g (float[batch, seq, 5] x, float[batch, h, past, d] past_key, float[batch, h, past, d] past_value)
    => (float[batch, seq, 24] y) <float[5, 24] w, float[5, 12] wh> {{
        q = MatMul (x, w) half = MatMul (x, wh) y, present_key, present_value = {operator} }}"""
    proto = model(text)
    sample = next(feeds(proto, Data()))
    assert sample["past_key"].shape == sample["past_value"].shape == (1, heads, 8, 6)
    assert not RUNTIME.run(proto.SerializeToString(), dict(sample)).failure
