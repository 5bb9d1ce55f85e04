"""A Transpose before a product by stored weights: these take the rank of the data, and every result loads.

Results run in a process of their own, since onnxruntime crashes where the ranks differ.
"""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_rewrite import analyze, rewrite
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.transposed_weights import reshaped
from tests import text
from tests.cuda_sessions import cuda_placer, marks, worsened
from tests.sessions import Runtime

SIZES = "2345"
ORDERS = [order for rank in (3, 4) for order in itertools.permutations(range(rank))]
MODEL = """{head}g (float[{shape}] x) => (float{out} y) <float[{inner},{inner}] p, float[{inner}] q,
    float[{weights}] w> {{
    h = MatMul (x, p)
    m = Add (h, q)
    [turn] t = Transpose <perm = {order}> (m)
    {between}
    [product] y = MatMul ({operands})
}}"""
HEADS = {"float16": "", "bfloat16": '<ir_version: 10, opset_import: ["": 22]> '}


def turned(order, side=0, between="", read="t", half="float16", sizes=None):
    """A product, its Transpose, and a product by a stored matrix on one side of it."""
    before = [int(SIZES[axis]) for axis in range(len(order))]
    after = sizes or [before[axis] for axis in order]
    weights = (after[-1], 6) if side == 0 else (6, after[-2])
    return MODEL.format(
        head=HEADS[half],
        shape=",".join(map(str, before)),
        inner=before[-1],
        weights=",".join(map(str, weights)),
        order=list(order),
        between=between,
        operands=f"{read}, w" if side == 0 else f"w, {read}",
        out=f"[{','.join('ABCDE'[: len(after)])}]",
    )


@pytest.fixture(scope="module")
def runtime():
    """onnxruntime's CPU provider in a process of its own."""
    child = Runtime()
    yield child
    child.close()


@pytest.fixture(scope="module")
def place():
    """Places models on CUDA."""
    with cuda_placer() as placed:
        yield placed


def loads(runtime, before, after, close=2e-2):
    """Both run, and about the same comes out."""
    stored = {tensor.name for tensor in before.graph.initializer}
    fed = [given for given in before.graph.input if given.name not in stored]
    feeds = {given.name: text.numbers(given.type.tensor_type) for given in fed}
    expected, found = (runtime.run(model.SerializeToString(), feeds) for model in (before, after))
    assert (expected.failure, found.failure) == ("", "")
    for name, values in expected.values.items():
        np.testing.assert_allclose(found.values[name], values, rtol=close, atol=close)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_axes_loads_and_runs(runtime, order, side):
    """All of it is half, whichever operand is transposed, and the CPU provider does not crash."""
    before = text.model(turned(order, side))
    loads(runtime, before, text.rewritten(before).model)
    assert {"m", "t", "y"} <= text.in_half(turned(order, side))


MOVERS = {
    "u = Mul (t, k)": {},
    "u = Div (t, k)": {},
    "u = Mul (t, e)": {},
    "u = Tanh (t)": {},
    "u = Identity (t)": {},
    "u = Dropout (t)": {},
    "u = Cast <to = 1> (t)": {},
    "s = Transpose <perm = [1, 0, 2]> (x) u = Concat <axis = -1> (t, s)": {"sizes": [3, 2, 8]},
    "u = Slice (t, from, to)": {},
    "u = Reshape (t, same)": {},
    "u = Expand (t, same)": {},
    "u, v = Split <axis = 2> (t, parts)": {"sizes": [3, 2, 1]},
    "r = Reshape (t, flat) u = Unsqueeze (r, from)": {"sizes": [1, 6, 4]},
    "r = ReduceMax <axes = [0], keepdims = 0> (t) u = Unsqueeze (r, from)": {"sizes": [1, 2, 4]},
    "u = Unsqueeze (t, from)": {"sizes": [1, 3, 2, 4]},
    "r = Unsqueeze (t, to) u = Squeeze (r, to)": {},
    "r = Unsqueeze (t, from) u = Transpose <perm = [1, 0, 2, 3]> (r)": {"sizes": [3, 1, 2, 4]},
    "u = Transpose <perm = [0, 2, 1]> (t)": {"sizes": [3, 4, 2]},
    "u = Transpose <perm = [1, 2, 0]> (t)": {"sizes": [2, 4, 3]},
    "u = Transpose <perm = [2, 0, 1]> (t)": {"sizes": [4, 3, 2]},
    "u = Transpose (t)": {"sizes": [4, 2, 3]},
}
CONSTANTS = """<float k = {0.5}, float[4] e = {1.0, 2.0, 3.0, 4.0}, int64[1] from = {0}, int64[1] to = {1},
    int64[3] same = {3, 2, 4}, int64[2] flat = {6, 4}, int64[2] parts = {1, 3}, """


@pytest.mark.parametrize("between", MOVERS)
def test_what_stands_between_makes_no_difference(runtime, between):
    """onnxruntime moves a Transpose past many operators, and removes others."""
    source = turned((1, 0, 2), 0, between, "u", **MOVERS[between])
    before = text.model(source.replace("<float", f"{CONSTANTS}float", 1))
    loads(runtime, before, text.rewritten(before).model)


@pytest.mark.parametrize("pinned", ["turn", "product", "(turn|product)"])
@pytest.mark.parametrize("order", [(1, 0, 2), (1, 2, 0), (1, 2, 0, 3), (1, 2, 3, 0)])
def test_a_cast_between_the_two_is_no_trouble(runtime, order, pinned):
    """Where one of them is half and the other is not, onnxruntime exchanges Transpose and Cast."""
    before = text.model(turned(order))
    loads(runtime, before, rewrite(before, Options(pins=Pins(keep_full=pinned))).model)


def test_no_node_is_added():
    """The weights have one axis more, of size one."""
    found = text.rewritten(text.model(turned((1, 0, 2)))).model
    assert [list(tensor.dims) for tensor in found.graph.initializer] == [[4, 4], [4], [1, 4, 6]]
    assert [node.op_type for node in found.graph.node] == [
        "Cast",
        "MatMul",
        "Add",
        "Transpose",
        "MatMul",
        "Cast",
    ]


def test_the_report_says_it():
    """With the product that reads them, and both ranks."""
    report = rewrite(text.model(turned((1, 2, 0, 3)))).report
    assert report.form_changes == (FormChange(FormChangeKind.RANK, "product", before=2, after=4),)


@pytest.mark.parametrize("order", [(0, 2, 1), (0, 1, 2), (0, 2, 1, 3)])
def test_where_the_first_axis_stays_weights_do(order):
    """Such a Transpose is absorbed, or left alone, whatever the ranks are."""
    assert rewrite(text.model(turned(order))).report.form_changes == ()


def test_a_second_rewrite_changes_nothing():
    """The ranks are equal then."""
    once = rewrite(text.model(turned((1, 0, 2)))).model
    again = rewrite(once)
    assert again.model == once
    assert again.report.form_changes == ()


SHARED = """g (float[2,3,4] x, float[5,4] z) => (float[A,B,C] y, float[D,E] v) <float[4,6] w> {
    t = Transpose <perm = [1, 0, 2]> (x)
    y = MatMul (t, w)
    v = MatMul (z, w)
}"""
TWO_RANKS = """g (float[2,3,4] x, float[1,2,3,4] z) => (float[A,B,C] y, float[D,E,F,G] v) <float[4,6] w> {
    t = Transpose <perm = [1, 0, 2]> (x)
    y = MatMul (t, w)
    u = Transpose <perm = [1, 2, 0, 3]> (z)
    v = MatMul (u, w)
}"""
CONSTANT = """g (float[2,3,4] x) => (float[A,B,C] y) {
    w = Constant <value = float[4,2] {1, 2, 3, 4, 5, 6, 7, 8}> ()
    t = Transpose <perm = [1, 0, 2]> (x)
    y = MatMul (t, w)
}"""
SHARED_CONSTANT = """g (float[2,3,4] x, float[5,4] z) => (float[A,B,C] y, float[D,E] v) {
    w = Constant <value = float[4,2] {1, 2, 3, 4, 5, 6, 7, 8}> ()
    t = Transpose <perm = [1, 0, 2]> (x)
    y = MatMul (t, w)
    v = MatMul (z, w)
}"""
LEAVING = """g (float[2,3,4] x) => (float[A,B,C] y, float[4,6] w) <float[4,6] w> {
    t = Transpose <perm = [1, 0, 2]> (x)
    y = MatMul (t, w)
}"""
IN_A_BODY = """g (float[2,3,4] x, bool c) => (float[A,B,C] y) <float[4,6] w> {
    y = If (c) <
        then_branch = one () => (float[A,B,C] a) {
            t = Transpose <perm = [1, 0, 2]> (x)
            a = MatMul (t, w)
        },
        else_branch = two () => (float[A,B,C] b) {
            v = Constant <value_float = 0.5> ()
            u = Transpose <perm = [1, 0, 2]> (x)
            m = MatMul (u, w)
            b = Mul (m, v)
        }>
}"""
IN_A_LOOP = """g (float[2,2,4] x, int64 n, bool c) => (float[A,B,C] y) <float[4,4] w> {
    y = Loop (n, c, x) <body = b (int64 i, bool k, float[A,B,C] h) => (bool o, float[A,B,C] a) {
        o = Identity (k)
        t = Transpose <perm = [1, 0, 2]> (h)
        a = MatMul (t, w)
    }>
}"""
OLD_IR = f'<ir_version: 3, opset_import: ["": 11]> {SHARED.replace("z)", "z, float[4,6] w)")}'
OPERATORS = {
    "SHARED": (SHARED, {(4, 6)}),
    "TWO_RANKS": (TWO_RANKS, {(4, 6)}),
    "CONSTANT": (CONSTANT, {(1, 4, 2)}),
    "SHARED_CONSTANT": (SHARED_CONSTANT, {(4, 2)}),
    "LEAVING": (LEAVING, {(4, 6)}),
    "IN_A_BODY": (IN_A_BODY, {(1, 4, 6), ()}),
    "IN_A_LOOP": (IN_A_LOOP, {(1, 4, 4)}),
    "OLD_IR": (OLD_IR, {(4, 6)}),
}


@pytest.mark.parametrize("case", OPERATORS)
def test_a_weight_with_other_readers_keeps_its_rank(runtime, case):
    """Initializers and Constant nodes, in bodies too, and what is an output; the result loads."""
    source, shapes = OPERATORS[case]
    before = text.model(source)
    after = text.rewritten(before).model
    assert {array.shape for array in text.stored(after).values()} == shapes
    loads(runtime, before, after)


OVERRIDABLE = SHARED.replace("z)", "z, float[4,6] w)")
COMPUTED = """g (float[2,3,4] x, float[4,6] q) => (float[A,B,C] y) <float[4,4] u> {
    m = MatMul (x, u)
    t = Transpose <perm = [1, 0, 2]> (m)
    w = Relu (q)
    y = MatMul (t, w)
}"""
VECTOR = """g (float[2,3,4] x) => (float[A,B] y) <float[4,4] u, float[4] w> {
    m = MatMul (x, u)
    t = Transpose <perm = [1, 0, 2]> (m)
    y = MatMul (t, w)
}"""
LARGER = """g (float[2,3,4] x) => (float[A,B,C,D] y) <float[4,4] u, float[5,1,4,6] w> {
    m = MatMul (x, u)
    t = Transpose <perm = [1, 0, 2]> (m)
    y = MatMul (t, w)
}"""
MOVED = """g (float[2,3,4] x, float[4,6] q) => (float[A,B,C] y) <float[4,4] u> {
    m = MatMul (x, u)
    t = Transpose <perm = [1, 0, 2]> (m)
    s = Identity (t)
    w = Relu (q)
    y = MatMul (s, w)
}"""


@pytest.mark.parametrize("source", [OVERRIDABLE, COMPUTED, VECTOR, LARGER, MOVED])
def test_where_ranks_differ_nothing_between_the_two_is_half(runtime, source):
    """What is computed, a vector, and what has too many axes keep their ranks, and a Cast would not load."""
    before, options = text.model(source), Options(keep_overridable=True)
    held = text.kept(source, options)
    assert {"t", "y"} <= set(held)
    assert all("the same rank" in held[name] for name in ("t", "y"))
    assert not {"t", "s", "y"} & text.in_half(source, options)
    loads(runtime, before, text.rewritten(before, options).model)


UNRANKED = """g (float[2,3,4] x, int64[N] s) => (float[A,B,C] y) <float[4,4] u, float[4,6] w> {{
    m = MatMul (x, u)
    r = Reshape (m, s)
    t = Transpose{perm} (r)
    y = MatMul (t, w)
}}"""


@pytest.mark.parametrize(("perm", "halved"), [(" <perm = [1, 0, 2]>", True), ("", False)])
def test_the_order_says_the_rank(perm, halved):
    """It is declared where nothing else says it, so that onnxruntime knows it; else all is float32."""
    source = UNRANKED.format(perm=perm)
    assert (text.in_half(source) >= {"t", "y"}) == halved
    assert (text.kept(source).keys() >= {"t", "y"}) != halved
    after = rewrite(text.model(source)).model
    declared = {info.name: len(info.type.tensor_type.shape.dim) for info in after.graph.value_info}
    assert not halved or declared["t"] == 3


def test_a_declared_rank_loads(runtime):
    """The shape is an input of the model here: nothing but the order says how many axes there are."""
    after = rewrite(text.model(UNRANKED.format(perm=" <perm = [1, 0, 2]>"))).model
    assert runtime.load(after.SerializeToString()).failure == ""


def test_what_is_in_a_file_stays_there(tmp_path):
    """With its new shape, it is the same bytes."""
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    (tmp_path / "data").write_bytes(b"other" + array.tobytes())
    lies = ir.ExternalTensor(
        tmp_path / "data", 5, array.nbytes, ir.DataType.FLOAT, shape=ir.Shape([4, 6]), name="w"
    )
    for tensor in (ir.Tensor(array), lies):
        made = reshaped(tensor, [1, 4, 6])
        assert type(made) is type(lies) or tensor is not lies
        assert made.name == tensor.name
        assert made.tobytes() == array.tobytes()
        np.testing.assert_array_equal(made.numpy(), array[None])


def test_external_weights_stay_external(runtime, tmp_path):
    """A large weight in a file is raised, converted and written block by block."""
    source = """g (float[2,3,600] x) => (float[A,B,C] y) <float[600,500] w> {
        t = Transpose <perm = [1,0,2]> (x)
        y = MatMul (t, w)
    }"""
    onnx.save(
        text.model(source),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    made = rewrite(tmp_path / "m.onnx", output=tmp_path / "r.onnx").model
    (stored,) = onnx.load(made, load_external_data=False).graph.initializer
    assert (list(stored.dims), stored.data_location) == ([1, 600, 500], onnx.TensorProto.EXTERNAL)
    loads(runtime, onnx.load(tmp_path / "m.onnx"), onnx.load(made), close=0.1)


ODD = [
    "Transpose <perm = [0, 0, 1]> (m)",
    "Transpose <perm = [1, 0]> (m)",
    "Transpose <perm: ints = []> (m)",
    "Transpose <perm = 1> (m)",
]


@pytest.mark.parametrize("transpose", ODD)
def test_what_is_not_valid_is_left_alone(transpose):
    """No order that is not one of the axes changes a weight, and nothing fails."""
    source = turned((1, 0, 2)).replace("Transpose <perm = [1, 0, 2]> (m)", transpose)
    assert analyze(text.unchecked(source), Options(check=False)).graph.units


def test_a_long_chain_of_transposes_is_traversed_a_few_times(monkeypatch):
    """And not once for each of them."""
    looked_up = []
    uses = ir.Value.uses
    lengths = {}
    for length in (200, 400):
        chain = "\n".join(f"t{i + 1} = Transpose <perm = [1, 0, 2]> (t{i})" for i in range(length))
        head, end = "g (float[2,2,4] t0) => (float[A,B,C] y) <float[4,6] w>", f"y = MatMul (t{length}, w)"
        model = text.model(f"{head} {{ {chain} {end} }}")
        with monkeypatch.context() as patch:
            patch.setattr(ir.Value, "uses", lambda value: looked_up.append(value) or uses(value))
            looked_up.clear()
            analyze(model)
            lengths[length] = len(looked_up)
    assert lengths[400] < 2.2 * lengths[200]


@marks
@pytest.mark.parametrize("half", HEADS)
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_loads_on_cuda(place, order, side, half):
    """With no node more than float32 has, but the Casts at both ends; some Transposes are absorbed."""
    before = text.model(turned(order, side, half=half))
    original, result = place(before), place(rewrite(before, Options(half=half)).model)
    assert (result.refused, worsened(original, result)) == ("", [])
    assert result.nodes <= original.nodes + 2


@marks
@pytest.mark.parametrize("pinned", ["turn", "product"])
@pytest.mark.parametrize("order", [(1, 0, 2), (1, 2, 0), (1, 2, 0, 3), (1, 2, 3, 0)])
def test_a_cast_between_loads_on_cuda(place, order, pinned):
    """The Transpose is absorbed through it."""
    result = place(rewrite(text.model(turned(order)), Options(pins=Pins(keep_full=pinned))).model)
    assert result.refused == ""
    assert result.operators.get("Transpose", 0) == 0


@marks
@pytest.mark.parametrize("source", [OVERRIDABLE, COMPUTED, VECTOR, LARGER, MOVED])
def test_different_ranks_load_on_cuda(place, source):
    """Nothing between the two has another type."""
    assert place(rewrite(text.model(source)).model).refused == ""


@pytest.mark.parametrize("stored", ["w", "k"])
def test_a_transpose_of_a_stored_weight_is_left_to_the_runtime(runtime, stored):
    """onnxruntime folds it: its product is half whatever the ranks, and runs; so behind an Identity."""
    before = text.model(
        f"""g (float[2,3,4] x) => (float[a,b,c] y) <float[6,4] w> {{
            k = Identity (w)
            [turn] t = Transpose <perm = [1, 0]> ({stored})
            [product] y = MatMul (x, t)
        }}"""
    )
    found = analyze(before)
    assert all(
        found.painting.is_half(unit.index) for unit in found.graph.units if unit.node.name == "product"
    )
    result = rewrite(before)
    assert result.report.form_changes == ()
    loads(runtime, before, result.model)


def test_a_reshape_to_a_number_of_sizes_that_is_not_known_raises_nothing(runtime):
    """Sizes that are computed may be of another rank than the data: with a weight of its rank, the product
    would have an axis more, and the result would not be proved.
    """
    between = """sizes = Shape (m) second = Constant <value = int64 {1}> () width = Gather (sizes, second)
    zero = Constant <value = int64[1] {0}> () wide = Unsqueeze (width, zero)
    rest = Constant <value = int64[1] {-1}> () asked = Concat <axis = 0> (rest, wide)
    flat = Reshape (t, asked)"""
    before = text.model(turned((1, 2, 0), between=between, read="flat", sizes=[8, 3]))
    result = rewrite(before)
    assert result.report.form_changes == ()
    loads(runtime, before, result.model)
