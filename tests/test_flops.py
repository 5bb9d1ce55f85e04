import numpy as np
import onnx
import onnx.parser
import pytest

from amp_rewrite.costs import flop_count, flop_formulas
from amp_rewrite.costs.flop_count import FlopCount
from amp_rewrite.errors import OptionError
from amp_rewrite.model import inlining, loading
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.operators import catalogue
from tests import text
from tests.real_models import INDEX, MISSING, MODELS

NEWEST = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'


def counted(proto: onnx.ModelProto, **dims: int) -> FlopCount:
    """The FLOP count of a model."""
    model = loading.load(proto).model
    inlining.inline(model)
    return flop_count.count(model, element_types.infer(model), dims)


def by_operator(source: str, weights: text.Weights | None = None, **dims: int) -> dict[str, int | None]:
    """FLOPs by operator of a model in text."""
    found = counted(text.model(source, weights), **dims)
    return {node.op_type: count for node, count in found.flops.items()}


def of_one(line: str) -> int | None:
    """The FLOPs of the one node of a graph."""
    found = counted(onnx.parser.parse_model(f"{NEWEST} {line}"))
    (count,) = found.flops.values()
    return count


PRODUCTS = [
    # 6 x 6 x 6 results, each 2 channels of its group under a kernel of 3 x 3
    (
        """g (float[1,4,8,8] x, float[6,2,3,3] w) => (float[1,6,6,6] y)
        { y = Conv <group=2> (x, w) }""",
        2 * 6 * 6 * 6 * 2 * 9,
    ),
    # depthwise, with stride and padding: 4 x 4 x 4 results under a kernel of 3 x 3
    (
        """g (float[1,4,8,8] x, float[4,1,3,3] w) => (float[1,4,4,4] y)
        { y = Conv <group=4, strides=[2,2], pads=[1,1,1,1]> (x, w) }""",
        2 * 4 * 4 * 4 * 9,
    ),
    # each of 3 x 4 x 4 elements goes to 5 channels under a kernel of 3 x 3
    (
        """g (float[1,3,4,4] x, float[3,5,3,3] w) => (float[1,5,9,9] y)
        { y = ConvTranspose <strides=[2,2]> (x, w) }""",
        2 * 3 * 4 * 4 * 5 * 9,
    ),
    # two groups: each of 4 x 4 x 4 elements goes to 3 channels of its group
    (
        """g (float[1,4,4,4] x, float[4,3,2,2] w) => (float[1,6,8,8] y)
        { y = ConvTranspose <group=2, strides=[2,2]> (x, w) }""",
        2 * 4 * 4 * 4 * 3 * 4,
    ),
    ("g (float[2,3,4] a, float[4,5] b) => (float[2,3,5] y) { y = MatMul (a, b) }", 2 * 2 * 3 * 4 * 5),
    # a batch of one against a batch of seven broadcasts
    ("g (float[1,3,4] a, float[7,4,5] b) => (float[7,3,5] y) { y = MatMul (a, b) }", 2 * 7 * 3 * 4 * 5),
    ("g (float[4] a, float[4,5] b) => (float[5] y) { y = MatMul (a, b) }", 2 * 4 * 5),
    ("g (float[4] a, float[4] b) => (float y) { y = MatMul (a, b) }", 2 * 4),
    (
        """g (float[4,3] a, float[5,4] b, float[5] c) => (float[3,5] y)
        { y = Gemm <transA=1, transB=1> (a, b, c) }""",
        2 * 3 * 4 * 5,
    ),
    (
        """g (float[2,3,4] a, float[2,4,5] b) => (float[2,3,5] y)
        { y = Einsum <equation="bij,bjk->bik"> (a, b) }""",
        2 * 2 * 3 * 4 * 5,
    ),
    (
        """g (float[2,3,4] a, float[4,5] b) => (float[2,3,5] y)
        { y = Einsum <equation="...j,jk->...k"> (a, b) }""",
        2 * 2 * 3 * 4 * 5,
    ),
    ('g (float[3,4] a) => (float[4,3] y) { y = Einsum <equation="ij->ji"> (a) }', 3 * 4),
    # scores 4 x 6 of 3 heads, 8 wide, and their sum over values 10 wide
    (
        """g (float[2,3,4,8] q, float[2,3,6,8] k, float[2,3,6,10] v) => (float[2,3,4,10] y)
        { y = Attention (q, k, v) }""",
        2 * 2 * 3 * 4 * 6 * (8 + 10),
    ),
    # grouped: four query heads on two of keys, 12 past keys before 6 new ones
    (
        """g (float[2,4,32] q, float[2,6,16] k, float[2,6,16] v, float[2,2,12,8] pk, float[2,2,12,8] pv)
        => (float[2,4,32] y, float[2,2,18,8] nk, float[2,2,18,8] nv)
        { y, nk, nv = Attention <q_num_heads=4, kv_num_heads=2> (q, k, v, , pk, pv) }""",
        2 * 2 * 4 * 4 * 18 * (8 + 8),
    ),
    # 5 steps, batch 2: four gates of 3, from 4 inputs and 3 of the state
    (
        """g (float[5,2,4] x, float[1,12,4] w, float[1,12,3] r) => (float[5,1,2,3] y)
        { y = LSTM <hidden_size=3> (x, w, r) }""",
        2 * 5 * 2 * 12 * (4 + 3),
    ),
    (
        """g (float[5,2,4] x, float[2,9,4] w, float[2,9,3] r) => (float[5,2,2,3] y)
        { y = GRU <hidden_size=3, direction="bidirectional"> (x, w, r) }""",
        2 * 2 * 5 * 2 * 9 * (4 + 3),
    ),
    (
        """g (float[5,2,4] x, float[1,3,4] w, float[1,3,3] r) => (float[5,1,2,3] y)
        { y = RNN <hidden_size=3> (x, w, r) }""",
        2 * 5 * 2 * 3 * (4 + 3),
    ),
    ("g (uint8[3,4] a, uint8[4,5] b) => (int32[3,5] y) { y = MatMulInteger (a, b) }", 2 * 3 * 4 * 5),
    (
        """g (uint8[1,4,8,8] x, uint8[6,4,3,3] w) => (int32[1,6,6,6] y)
        { y = ConvInteger (x, w) }""",
        2 * 6 * 36 * 4 * 9,
    ),
    (
        """g (uint8[1,4,8,8] x, float s, uint8 z, uint8[6,2,3,3] w) => (uint8[1,6,6,6] y)
        { y = QLinearConv <group=2> (x, s, z, w, s, z, s, z) }""",
        2 * 6 * 36 * 2 * 9,
    ),
    (
        """g (uint8[3,4] a, float s, uint8 z, uint8[4,5] b) => (uint8[3,5] y)
        { y = QLinearMatMul (a, s, z, b, s, z, s, z) }""",
        2 * 3 * 4 * 5,
    ),
]

CONTRIB = [
    # 3 x 8 hidden values of 5 tokens for Q, K and V, then 5 x 5 scores, 8 wide, twice
    (
        """g (float[2,5,8] x, float[8,24] w, float[24] b) => (float[2,5,8] y)
        { y = com.microsoft.Attention <num_heads=2> (x, w, b) }""",
        2 * 2 * 5 * 8 * 24 + 2 * 2 * 5 * 5 * (8 + 8),
    ),
    (
        """g (float[2,5,8] q, float[2,7,8] k, float[2,7,12] v) => (float[2,5,12] y)
        { y = com.microsoft.MultiHeadAttention <num_heads=2> (q, k, v) }""",
        2 * 2 * 5 * 7 * (8 + 12),
    ),
    # query, key and value in one: 5 tokens, 2 heads of 4
    (
        """g (float[2,5,2,3,4] q) => (float[2,5,8] y)
        { y = com.microsoft.MultiHeadAttention <num_heads=2> (q) }""",
        2 * 2 * 5 * 5 * (8 + 8),
    ),
    # four query heads of 8, one new token, 12 past ones
    (
        """g (float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, float[2,2,12,8] pk, float[2,2,12,8] pv,
        int32[2] s, int32 t)
        => (float[2,1,32] y)
        { y = com.microsoft.GroupQueryAttention <num_heads=4, kv_num_heads=2> (q, k, v, pk, pv, s, t) }""",
        2 * 2 * 4 * 1 * 13 * (8 + 8),
    ),
    (
        """g (float[2,3,64] a, uint8[5,2,16] b, float[10] s) => (float[2,3,5] y)
        { y = com.microsoft.MatMulNBits <K=64, N=5, block_size=32, bits=4> (a, b, s) }""",
        2 * 2 * 3 * 64 * 5,
    ),
    (
        """g (float[2,4,3] a, float[2,5,4] b) => (float[2,3,5] y)
        { y = com.microsoft.FusedMatMul <transA=1, transB=1> (a, b) }""",
        2 * 2 * 3 * 4 * 5,
    ),
    # the batch comes second: 3 x 2 x 4 stands for 2 batches of 3 x 4
    (
        """g (float[3,2,4] a, float[4,2,5] b) => (float[2,3,5] y)
        { y = com.microsoft.FusedMatMul <transBatchA=1, transBatchB=1> (a, b) }""",
        2 * 2 * 3 * 4 * 5,
    ),
    (
        """g (float[3,4] a, float[5,4] b, float[5] c) => (float[3,5] y)
        { y = com.microsoft.FusedGemm <transB=1, activation="Relu"> (a, b, c) }""",
        2 * 3 * 4 * 5,
    ),
    (
        """g (float[1,4,8,8] x, float[6,2,3,3] w, float[6] b) => (float[1,6,6,6] y)
        { y = com.microsoft.FusedConv <group=2, activation="Relu"> (x, w, b) }""",
        2 * 6 * 36 * 2 * 9,
    ),
    (
        """g (uint8[3,4] a, uint8[4,5] b, float s) => (float[3,5] y)
        { y = com.microsoft.MatMulIntegerToFloat (a, b, s, s) }""",
        2 * 3 * 4 * 5,
    ),
    (
        """g (float[3,4] a, uint8[4,5] b, float s) => (float[3,5] y)
        { y = com.microsoft.DynamicQuantizeMatMul (a, b, s) }""",
        2 * 3 * 4 * 5,
    ),
    (
        """g (uint8[3,4] a, float s, uint8 z, uint8[4,5] b) => (uint8[3,5] y)
        { y = com.microsoft.QGemm (a, s, z, b, s, z, , s, z) }""",
        2 * 3 * 4 * 5,
    ),
]

OTHERS = [
    ("g (float[2,3] x) => (float[2,3] y) { y = Exp (x) }", 6),
    ("g (float[2,1] x, float[1,3] z) => (float[2,3] y) { y = Add (x, z) }", 6),
    ("g (int64[2,3] x) => (int64[2,3] y) { y = Add (x, x) }", 0),
    ("g (float[2,3] x) => (float[3,2] y) { y = Transpose (x) }", 0),
    ("g (float[2,3] x) => (float16[2,3] y) { y = Cast <to=10> (x) }", 0),
    ("g (float[2,3] x) => (float[2,3] y) { y = Softmax (x) }", 5 * 6),
    ("g (float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization (x, s) }", 7 * 6),
    ("g (float[2,3] x) => (float y) { y = ReduceSum <keepdims=0> (x) }", 6),
    (
        """g (float[1,2,4,4] x) => (float[1,2,2,2] y)
        { y = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x) }""",
        32,
    ),
    ("g (float[1,2,4,4] x, float[4] s) => (float[1,2,n,m] y) { y = Resize (x, , s) }", 0),
    # 16 samples with a transform of 5 n log2 n
    ("g (float[1,16,1] x) => (float[1,16,2] y) { y = DFT (x) }", 5 * 16 * 4),
]


@pytest.mark.parametrize(("said", "count"), [("2", 2), ('"two"', 1), ("[2, 2]", 1), ("2.0", 1)])
def test_an_attribute_of_another_kind_counts_as_none(said: str, count: int) -> None:
    """An attribute of the wrong type counts as absent."""
    line = f"g (x, w) => (y) {{ y = ConvTranspose <group = {said}> (x, w) }}"
    model = loading.load(onnx.parser.parse_model(f"{NEWEST} {line}")).model
    assert schema.integer(model.graph[0], "group", 1) == count


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62])
def test_sizes_beyond_all_counting(size: int) -> None:
    """A declared dimension may be any number: values computed from such a shape are just unknown."""
    line = f"g (float[{size},{size},4] x) => (int64[m] s, int64 c) {{ s = Shape (x) c = Size (x) }}"
    found = counted(onnx.parser.parse_model(f"{NEWEST} {line}"))
    assert set(found.flops.values()) <= {0, None}


@pytest.mark.parametrize(("line", "count"), [*PRODUCTS, *CONTRIB, *OTHERS])
def test_a_node_has_the_flops_that_were_counted_by_hand(line, count):
    """Products, attention, recurrent cells and the rest, each with its sum written out."""
    assert of_one(line) == count


def test_old_operators_count_as_new_ones():
    """Opset 7 infers no shape after a negative axis or a Relu of opset 1: the newest schema is tried."""
    old = '<ir_version: 3, opset_import: ["" : 9]>'
    line = "g (float[2,3] a, float[2,4] b) => (y) { c = Concat <axis=-1> (a, b) y = Relu (c) }"
    found = counted(onnx.parser.parse_model(f"{old} {line}"))
    assert [found.flops[n] for n in found.flops] == [0, 14]


def test_a_computed_shape_is_followed():
    """Shape, Gather, Concat and Reshape, where onnx's inference of the whole model gives up."""
    found = by_operator(
        """g (float[batch, length, 6] x) => (float[a, b, c, d] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[2] heads = {2, 3}, float[3, 5] w> {
          s = Shape (x)
          b = Gather (s, zero)
          l = Gather (s, one)
          shape = Concat <axis=0> (b, l, heads)
          r = Reshape (x, shape)
          y = MatMul (r, w)
        }""",
        batch=4,
        length=7,
    )
    assert found["MatMul"] == 2 * (4 * 7 * 2) * 3 * 5


OPEN = """g (float[batch, 6] x) => (float[batch, 5] y) <float[6, 5] w> { y = MatMul (x, w) }"""


def test_an_open_dimension_counts_as_64_and_is_named():
    """Dimensions without a given size are reported."""
    found = counted(text.model(OPEN))
    assert (found.total, found.shapes.assumed) == (64 * 2 * 6 * 5, ("batch",))


def test_an_open_dimension_has_the_size_that_is_given():
    """Sizes can be given by symbol, or by input and axis; then nothing is assumed."""
    found = counted(text.model(OPEN), batch=8)
    assert (found.total, found.shapes.assumed) == (8 * 2 * 6 * 5, ())
    found = counted(text.model(OPEN), **{"x:0": 8})
    assert (found.total, found.shapes.assumed) == (8 * 2 * 6 * 5, ())


def test_a_dimension_that_is_not_open_is_refused():
    """The error lists the open dimensions."""
    with pytest.raises(OptionError, match=r"no open dimension 'bach'; did you mean batch\?"):
        counted(text.model(OPEN), bach=8)


def test_a_node_of_unknown_shape_has_no_flops_rather_than_none():
    """An unknown operator, and its consumers without a declared shape, have unknown FLOPs, not zero."""
    source = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[2, 3] x, float[3, 4] w) => (y) { a = mine.Magic (x) y = MatMul (a, w) }"""
    found = counted(onnx.parser.parse_model(source))
    assert list(found.flops.values()) == [None, None]


def test_a_name_alone_is_no_operator():
    """A Gelu of another domain is not onnxruntime's, and channels-last is not channels-first."""
    header = '<ir_version: 8, opset_import: ["" : 17, "mine" : 1, "com.microsoft" : 1]>'
    found = counted(onnx.parser.parse_model(f"{header} g (float[2, 3] x) => (y) {{ y = mine.Gelu (x) }}"))
    assert (list(found.flops.values()), found.shapes.of(next(iter(found.flops)).outputs[0])) == ([None], None)
    line = """g (uint8[1,8,8,4] x, float s, uint8 z, uint8[6,4,3,3] w) => (y)
    { y = com.microsoft.QLinearConv <channels_last=1> (x, s, z, w, s, z, s, z) }"""
    assert of_one(line) is None


def test_a_shape_beyond_all_memory_is_only_a_shape():
    """Values of huge declared shapes are not computed."""
    line = "g (float[1] x) => (y) <int64[2] s = {4294967296, 4294967296}> { y = ConstantOfShape (s) }"
    assert of_one(line) == 0


def test_a_declared_shape_helps_where_nothing_is_known_of_the_maker():
    """The declared shape of a custom operator's output is used."""
    source = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[2, 3] x, float[3, 4] w) => (y) <float[2, 3] a> { a = mine.Magic (x) y = MatMul (a, w) }"""
    found = counted(onnx.parser.parse_model(source))
    assert list(found.flops.values()) == [None, 2 * 2 * 3 * 4]


LOOP = """g (float[2, 4] x, float[4, 4] w, bool c) => (float[2, 4] y) <int64 n = {5}, bool go = {1}> {
  y = Loop (n, %s, x) <body = b (int64 i, bool cin, float[2, 4] v) => (bool cout, float[2, 4] u) {
    cout = Identity (cin)
    u = MatMul (v, w)
  }>
}"""


def test_a_body_counts_as_often_as_it_runs():
    """A Loop with a constant trip count and an unchanging condition runs that often."""
    found = counted(text.model(LOOP % "go"))
    assert (found.total, found.unknown_trip_counts) == (5 * 2 * 2 * 4 * 4, ())


def test_a_loop_whose_end_is_not_known_counts_once():
    """It is reported: its condition depends on the data."""
    found = counted(text.model(LOOP % "c"))
    assert found.total == 2 * 2 * 4 * 4
    assert [node.op_type for node in found.unknown_trip_counts] == ["Loop"]


def test_a_scan_runs_as_often_as_its_input_is_long():
    """Seven steps along the first axis."""
    found = counted(
        text.model(
            """g (float[3] h, float[7, 3] x, float[3, 3] w) => (float[3] hn, float[7, 3] ys) {
              hn, ys = Scan (h, x) <num_scan_inputs = 1, body = b (float[3] s, float[3] t)
                => (float[3] sn, float[3] o) { sn = MatMul (s, w) o = Add (sn, t) }>
            }"""
        )
    )
    assert found.total == 7 * (2 * 3 * 3 + 3)


IF = """g (bool c, float[2, 4] x, float[4, 4] w) => (float[2, 4] y) <bool no = {0}> {
  y = If (%s) <then_branch = t () => (float[2, 4] a) { a = MatMul (x, w) },
               else_branch = e () => (float[2, 4] b) { b = Relu (x) }>
}"""


@pytest.mark.parametrize(("condition", "total", "either"), [("c", 64, 1), ("no", 8, 0)])
def test_of_two_branches_the_one_counts_that_runs(condition, total, either):
    """The costlier branch where the condition is unknown; the other one is not in the sum."""
    found = counted(text.model(IF % condition))
    assert (found.total, len(found.undecided_branches)) == (total, either)


def test_a_sum_of_squares_over_an_open_ended_value_is_followed():
    """NonZero of a small constant has a known size: old exports create ranges so."""
    found = by_operator(
        """g (float[1, 4] x) => (float[n, 4] y) <int64[1] five = {5}> {
          ones = ConstantOfShape <value = int64[1] {1}> (five)
          where = NonZero (ones)
          columns = Transpose (where)
          f = Cast <to = 1> (columns)
          y = Add (f, x)
        }"""
    )
    assert found["Add"] == 5 * 4


def test_a_node_that_onnx_dies_of_costs_nothing_but_itself():
    """An axis far out of bounds crashes the inference process (onnx 1.23); the next node is inferred."""
    found = counted(
        onnx.parser.parse_model(
            f"""{NEWEST} g (float[2,3] x, float[3] s) => (y, z) {{
              y, m, d = LayerNormalization <axis=2147483648> (x, s)
              u = Transpose (x)
              z = Exp (u)
            }}"""
        )
    )
    assert list(found.flops.values()) == [None, 0, 6]


def test_every_operator_is_counted_one_way():
    """The catalogue leaves to a formula what one counts."""
    assert all(catalogue.find(*operator).flops is None for operator in flop_formulas.FORMULAS)


HEAVY = set(
    """Conv ConvTranspose MatMul Gemm LSTM GRU RNN Attention Einsum FusedConv FusedMatMul FusedGemm
    MultiHeadAttention GroupQueryAttention MatMulNBits
    QLinearConv QLinearMatMul MatMulInteger QGemm""".split()
)


def _shapes(given):
    return given["shape"] if isinstance(given, dict) else given[1]


def known_and_heavy(entry) -> tuple[int, int]:
    """The number of products of a real model with known FLOPs, and of all products, for its own inputs."""
    model = loading.load(MODELS / entry["file"]).model
    inlining.inline(model)
    sizes = {name: _shapes(given) for name, given in entry["inputs"].items()}
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
