"""FLOPs of nodes, as sums that were written by hand, and of models."""

import math
import re

import numpy as np
import onnx
import onnx.parser
import pytest

from amp_rewrite.costs import flop_count
from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.errors import OptionError
from amp_rewrite.model import inlining, loading
from amp_rewrite.onnx_types import element_types, schema
from tests import text
from tests.real_models import INDEX, MISSING, MODELS

HEADER = '<ir_version: 10, opset_import: ["" : {}, "com.microsoft" : 1, "mine" : 1]> g '


def counted(proto: onnx.ModelProto, **dims: int) -> FlopCount:
    """The FLOP count of a model."""
    model = loading.load(proto).model
    inlining.inline(model)
    return flop_count.count(model, element_types.infer(model), dims)


def of_graph(graph: str, opset: int = 23) -> FlopCount:
    """The FLOP count of a graph without a header, which need not be valid."""
    return counted(onnx.parser.parse_model(HEADER.format(opset) + graph))


NODES = """
2*6*6*6*2*9   | [1,4,8,8] x, [6,2,3,3] w => [1,6,6,6] y | y = Conv <group=2> (x, w)
2*4*4*4*9     | [1,4,8,8] x, [4,1,3,3] w => [1,4,4,4] y
    | y = Conv <group=4, strides=[2,2], pads=[1,1,1,1]> (x, w)
2*3*4*4*5*9   | [1,3,4,4] x, [3,5,3,3] w => [1,5,9,9] y | y = ConvTranspose <strides=[2,2]> (x, w)
2*4*4*4*3*4   | [1,4,4,4] x, [4,3,2,2] w => [1,6,8,8] y | y = ConvTranspose <group=2, strides=[2,2]> (x, w)
2*2*3*4*5     | [2,3,4] a, [4,5] b => [2,3,5] y | y = MatMul (a, b)
2*7*3*4*5     | [1,3,4] a, [7,4,5] b => [7,3,5] y | y = MatMul (a, b)
2*4*5         | [4] a, [4,5] b => [5] y | y = MatMul (a, b)
2*4           | [4] a, [4] b => float y | y = MatMul (a, b)
2*3*4*5       | [4,3] a, [5,4] b, [5] c => [3,5] y | y = Gemm <transA=1, transB=1> (a, b, c)
2*2*3*4*5     | [2,3,4] a, [2,4,5] b => [2,3,5] y | y = Einsum <equation="bij,bjk->bik"> (a, b)
2*2*3*4*5     | [2,3,4] a, [4,5] b => [2,3,5] y | y = Einsum <equation="...j,jk->...k"> (a, b)
3*4           | [3,4] a => [4,3] y | y = Einsum <equation="ij->ji"> (a)
# scores 4 x 6 of 3 heads, 8 wide, and their sum over values 10 wide
2*2*3*4*6*18  | [2,3,4,8] q, [2,3,6,8] k, [2,3,6,10] v => [2,3,4,10] y | y = Attention (q, k, v)
# grouped: four query heads on two of keys, 12 past keys before 6 new ones
2*2*4*4*18*16 | [2,4,32] q, [2,6,16] k, [2,6,16] v, [2,2,12,8] p, [2,2,12,8] o => [2,4,32] y, [2,2,18,8] n,
    [2,2,18,8] m | y, n, m = Attention <q_num_heads=4, kv_num_heads=2> (q, k, v, , p, o)
# 5 steps, batch 2: four gates of 3, from 4 inputs and 3 of the state
2*5*2*12*7    | [5,2,4] x, [1,12,4] w, [1,12,3] r => [5,1,2,3] y | y = LSTM <hidden_size=3> (x, w, r)
2*2*5*2*9*7   | [5,2,4] x, [2,9,4] w, [2,9,3] r => [5,2,2,3] y
    | y = GRU <hidden_size=3, direction="bidirectional"> (x, w, r)
2*5*2*3*7     | [5,2,4] x, [1,3,4] w, [1,3,3] r => [5,1,2,3] y | y = RNN <hidden_size=3> (x, w, r)
2*3*4*5       | uint8[3,4] a, uint8[4,5] b => int32[3,5] y | y = MatMulInteger (a, b)
2*6*36*4*9    | uint8[1,4,8,8] x, uint8[6,4,3,3] w => int32[1,6,6,6] y | y = ConvInteger (x, w)
2*6*36*2*9    | uint8[1,4,8,8] x, float s, uint8 z, uint8[6,2,3,3] w => uint8[1,6,6,6] y
    | y = QLinearConv <group=2> (x, s, z, w, s, z, s, z)
2*3*4*5       | uint8[3,4] a, float s, uint8 z, uint8[4,5] b => uint8[3,5] y
    | y = QLinearMatMul (a, s, z, b, s, z, s, z)
# 3 x 8 hidden values of 5 tokens for Q, K and V, then 5 x 5 scores, 8 wide, twice
2*2*5*8*24+2*2*5*5*16 | [2,5,8] x, [8,24] w, [24] b => [2,5,8] y
    | y = com.microsoft.Attention <num_heads=2> (x, w, b)
2*2*5*7*20    | [2,5,8] q, [2,7,8] k, [2,7,12] v => [2,5,12] y
    | y = com.microsoft.MultiHeadAttention <num_heads=2> (q, k, v)
# query, key and value in one: 5 tokens, 2 heads of 4
2*2*5*5*16    | [2,5,2,3,4] q => [2,5,8] y | y = com.microsoft.MultiHeadAttention <num_heads=2> (q)
# four query heads of 8, one new token, 12 past ones
2*2*4*1*13*16 | [2,1,32] q, [2,1,16] k, [2,1,16] v, [2,2,12,8] p, [2,2,12,8] o, int32[2] s,
    int32 t => [2,1,32] y
    | y = com.microsoft.GroupQueryAttention <num_heads=4, kv_num_heads=2> (q, k, v, p, o, s, t)
2*2*3*64*5    | [2,3,64] a, uint8[5,2,16] b, [10] s => [2,3,5] y
    | y = com.microsoft.MatMulNBits <K=64, N=5, block_size=32, bits=4> (a, b, s)
2*2*3*4*5     | [2,4,3] a, [2,5,4] b => [2,3,5] y | y = com.microsoft.FusedMatMul <transA=1, transB=1> (a, b)
# the batch comes second: 3 x 2 x 4 stands for 2 batches of 3 x 4
2*2*3*4*5     | [3,2,4] a, [4,2,5] b => [2,3,5] y
    | y = com.microsoft.FusedMatMul <transBatchA=1, transBatchB=1> (a, b)
2*3*4*5       | [3,4] a, [5,4] b, [5] c => [3,5] y
    | y = com.microsoft.FusedGemm <transB=1, activation="Relu"> (a, b, c)
2*6*36*2*9    | [1,4,8,8] x, [6,2,3,3] w, [6] b => [1,6,6,6] y
    | y = com.microsoft.FusedConv <group=2, activation="Relu"> (x, w, b)
2*3*4*5       | uint8[3,4] a, uint8[4,5] b, float s => [3,5] y
    | y = com.microsoft.MatMulIntegerToFloat (a, b, s, s)
2*3*4*5       | [3,4] a, uint8[4,5] b, float s => [3,5] y | y = com.microsoft.DynamicQuantizeMatMul (a, b, s)
2*3*4*5       | uint8[3,4] a, float s, uint8 z, uint8[4,5] b => uint8[3,5] y
    | y = com.microsoft.QGemm (a, s, z, b, s, z, , s, z)
6             | [2,3] x => [2,3] y | y = Exp (x)
6             | [2,1] x, [1,3] z => [2,3] y | y = Add (x, z)
0             | int64[2,3] x => int64[2,3] y | y = Add (x, x)
0             | [2,3] x => [3,2] y | y = Transpose (x)
0             | [2,3] x => float16[2,3] y | y = Cast <to=10> (x)
5*6           | [2,3] x => [2,3] y | y = Softmax (x)
7*6           | [2,3] x, [3] s => [2,3] y | y = LayerNormalization (x, s)
6             | [2,3] x => float y | y = ReduceSum <keepdims=0> (x)
32            | [1,2,4,4] x => [1,2,2,2] y | y = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x)
0             | [1,2,4,4] x, [4] s => [1,2,n,m] y | y = Resize (x, , s)
# 16 samples with a transform of 5 n log2 n
5*16*4        | [1,16,1] x => [1,16,2] y | y = DFT (x)
# values of huge declared shapes are not computed
0             | [1] x => [a,b] y
    | s = Constant <value_ints = [4294967296, 4294967296]> () y = ConstantOfShape (s)
"""
"""The sum, what a graph reads and makes, float32 unless it says otherwise, and its node."""
ROWS = [row.split("|") for row in re.sub(r"\n    |#.*\n", "", NODES).strip().splitlines()]


@pytest.mark.parametrize(("said", "borders", "node"), ROWS, ids=[row[-1].strip() for row in ROWS])
def test_a_node_has_the_flops_that_were_counted_by_hand(said, borders, node):
    """Products, attention, recurrent cells and the rest, each with its sum written out."""
    reads, makes = re.sub(r"(^|[ ,])\[", r"\1float[", borders).split("=>")
    found = of_graph(f"({reads}) => ({makes}) {{ {node} }}").flops
    assert list(found.values())[-1] == sum(math.prod(map(int, each.split("*"))) for each in said.split("+"))


GRAPHS = {
    # An unknown operator, and its consumers without a declared shape, have unknown FLOPs, not zero.
    "(float[2,3] x, float[3,4] w) => (y) { a = mine.Magic (x) y = MatMul (a, w) }": [None, None],
    "(float[2,3] x, float[3,4] w) => (y) <float[2,3] a> { a = mine.Magic (x) y = MatMul (a, w) }": [None, 48],
    # A Gelu of another domain is not onnxruntime's, and channels-last is not channels-first.
    "(float[2,3] x) => (y) { y = mine.Gelu (x) }": [None],
    """(uint8[1,8,8,4] x, float s, uint8 z, uint8[6,4,3,3] w) => (y)
    { y = com.microsoft.QLinearConv <channels_last=1> (x, s, z, w, s, z, s, z) }""": [None],
    # An axis far out of bounds crashes the inference process (onnx 1.23).
    """(float[2,3] x, float[3] s) => (y, z)
    { y, m, d = LayerNormalization <axis=2147483648> (x, s) u = Transpose (x) z = Exp (u) }""": [
        None,
        0,
        None,
    ],
}


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_is_not_known_is_not_counted_as_nothing(graph):
    """FLOPs by node; None where they are unknown."""
    assert list(of_graph(graph, 18).flops.values()) == GRAPHS[graph]


@pytest.mark.parametrize(("said", "count"), [("2", 2), ('"two"', 1), ("[2, 2]", 1), ("2.0", 1)])
def test_an_attribute_of_another_kind_counts_as_none(said: str, count: int) -> None:
    """An attribute of the wrong type counts as absent."""
    line = f"(x, w) => (y) {{ y = ConvTranspose <group = {said}> (x, w) }}"
    model = loading.load(onnx.parser.parse_model(HEADER.format(23) + line)).model
    assert schema.integer(model.graph[0], "group", 1) == count


@pytest.mark.parametrize("size", [2**31, 2**62])
def test_sizes_beyond_all_counting(size: int) -> None:
    """A declared dimension may be any number: values computed from such a shape are just unknown."""
    found = of_graph(f"(float[{size},{size},4] x) => (int64[m] s, int64 c) {{ s = Shape (x) c = Size (x) }}")
    assert set(found.flops.values()) <= {0, None}


COMPUTED = {
    # Shape, Gather, Concat and Reshape, where onnx's inference of the whole model gives up
    """g (float[batch, length, 6] x) => (float[a, b, c, d] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[2] heads = {2, 3}, float[3, 5] w> {
      s = Shape (x) b = Gather (s, zero) l = Gather (s, one) shape = Concat <axis=0> (b, l, heads)
      r = Reshape (x, shape) y = MatMul (r, w) }""": 2 * (4 * 7 * 2) * 3 * 5,
    # NonZero of a small constant has a known size: old exports create ranges so
    """g (float[batch, length] x) => (float[n, length] y) <int64[1] five = {5}, float[1,7] k> {
      ones = ConstantOfShape <value = int64[1] {1}> (five) where = NonZero (ones)
      columns = Transpose (where) f = Cast <to = 1> (columns) y = Add (f, k) }""": 5 * 7,
    # along the first axis
    """g (float[3] h, float[length, 3] x, float[3, 3] w, float[batch] b)
    => (float[3] hn, float[length, 3] ys) {
      hn, ys = Scan (h, x) <num_scan_inputs = 1, body = b (float[3] s, float[3] t)
        => (float[3] sn, float[3] o) { sn = MatMul (s, w) o = Add (sn, t) }> }""": 7 * (2 * 3 * 3 + 3),
}


@pytest.mark.parametrize("source", COMPUTED)
def test_a_computed_shape_is_followed(source):
    """A batch of 4 and a length of 7 are known behind what moves and computes them."""
    assert counted(text.model(source), batch=4, length=7).total == COMPUTED[source]


def test_open_dimensions():
    """One counts as 64 and is named, or has the size that is given by symbol or by input and axis."""
    model = text.model("g (float[batch,6] x) => (float[batch,5] y) <float[6,5] w> { y = MatMul (x, w) }")
    for dims, size, assumed in (({}, 64, ("batch",)), ({"batch": 8}, 8, ()), ({"x:0": 8}, 8, ())):
        found = counted(model, **dims)
        assert (found.total, found.shapes.assumed) == (size * 2 * 6 * 5, assumed)
    with pytest.raises(OptionError, match=r"no open dimension 'bach'; did you mean batch\?"):
        counted(model, bach=8)


@pytest.mark.parametrize(("condition", "times", "unknown"), [("go", 5, []), ("c", 1, ["Loop"])])
def test_a_body_counts_as_often_as_it_runs(condition, times, unknown):
    """As the constant trip count says; once, and reported, where the condition depends on the data."""
    found = counted(
        text.model(
            f"""g (float[2, 4] x, float[4, 4] w, bool c) => (float[2, 4] y)
            <int64 n = {{5}}, bool go = {{1}}> {{ y = Loop (n, {condition}, x) <body = b
            (int64 i, bool cin, float[2, 4] v) => (bool cout, float[2, 4] u) {{
            cout = Identity (cin) u = MatMul (v, w) }}> }}"""
        )
    )
    assert found.total == times * 2 * 2 * 4 * 4
    assert [node.op_type for node in found.unknown_trip_counts] == unknown


@pytest.mark.parametrize(("condition", "total", "either"), [("c", 64, 1), ("no", 8, 0)])
def test_of_two_branches_the_one_counts_that_runs(condition, total, either):
    """The costlier branch where the condition is unknown; the other one is not in the sum."""
    found = counted(
        text.model(
            f"""g (bool c, float[2, 4] x, float[4, 4] w) => (float[2, 4] y) <bool no = {{0}}> {{
            y = If ({condition}) <then_branch = t () => (float[2, 4] a) {{ a = MatMul (x, w) }},
                                  else_branch = e () => (float[2, 4] b) {{ b = Relu (x) }}> }}"""
        )
    )
    assert (found.total, len(found.undecided_branches)) == (total, either)


HEAVY = set(
    """Conv ConvTranspose MatMul Gemm LSTM GRU RNN Attention Einsum FusedConv FusedMatMul FusedGemm
    MultiHeadAttention GroupQueryAttention MatMulNBits
    QLinearConv QLinearMatMul MatMulInteger QGemm""".split()
)


def known_and_heavy(entry) -> tuple[int, int]:
    """The number of products of a real model with known FLOPs, and of all products, for its own inputs."""
    model = loading.load(MODELS / entry["file"]).model
    inlining.inline(model)
    sizes = {
        n: given["shape"] if isinstance(given, dict) else given[1] for n, given in entry["inputs"].items()
    }
    dims = {
        f"{value.name}:{axis}": sizes[value.name][axis]
        for value in model.graph.inputs
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int) and axis < len(sizes.get(value.name, ()))
    }
    found = flop_count.count(model, element_types.infer(model), dims)
    counts = [count for node, count in found.flops.items() if node.op_type in HEAVY]
    return sum(count is not None for count in counts), len(counts)


@pytest.mark.slow
@pytest.mark.skipif(not INDEX, reason=MISSING)
def test_nearly_all_products_of_real_models_have_flops():
    """98 of 100 over all real models; a model with operators that nobody knows is the rest."""
    known, heavy = np.sum([known_and_heavy(entry) for entry in INDEX], axis=0)
    assert heavy > 2000
    assert known >= 0.98 * heavy
