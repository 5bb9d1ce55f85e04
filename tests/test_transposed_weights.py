"""Every order of axes before a product by stored weights; `transposed_weights.cases` has what stands between.

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
from amp_rewrite.preparing.transposed_operands import reshaped
from tests import model_files, text
from tests.cuda_sessions import marks, worsened

SIZES = "2345"
ORDERS = [order for rank in (3, 4) for order in itertools.permutations(range(rank))]
MODEL = """{head}g (float[{shape}] x) => (float{out} y) <float[{inner},{inner}] p, float[{inner}] q,
    float[{weights}] w> {{ h = MatMul (x, p) m = Add (h, q) [turn] t = Transpose <perm = {order}> (m)
    [product] y = MatMul ({operands}) }}"""
HEADS = {"float16": "", "bfloat16": '<ir_version: 10, opset_import: ["": 22]> '}


def turned(order, side=0, half="float16"):
    """A product, its Transpose, and a product by a stored matrix on one side of it."""
    before = [int(SIZES[axis]) for axis in range(len(order))]
    after = [before[axis] for axis in order]
    weights = (after[-1], 6) if side == 0 else (6, after[-2])
    return MODEL.format(
        head=HEADS[half],
        shape=",".join(map(str, before)),
        inner=before[-1],
        weights=",".join(map(str, weights)),
        order=list(order),
        operands="t, w" if side == 0 else "w, t",
        out=f"[{','.join('ABCDE'[: len(after)])}]",
    )


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


def test_the_report_says_it():
    """With the product that reads them, and both ranks."""
    report = rewrite(text.model(turned((1, 2, 0, 3)))).report
    assert report.form_changes == (FormChange(FormChangeKind.RANK, "product", before=2, after=4),)


def test_a_second_rewrite_changes_nothing():
    """The ranks are equal then."""
    once = rewrite(text.model(turned((1, 0, 2)))).model
    again = rewrite(once)
    assert again.model == once
    assert again.report.form_changes == ()


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
        t = Transpose <perm = [1,0,2]> (x) y = MatMul (t, w) }"""
    model_files.save_external(text.model(source), tmp_path / "m.onnx", "m.data")
    made = rewrite(tmp_path / "m.onnx", output=tmp_path / "r.onnx").model
    (stored,) = onnx.load(made, load_external_data=False).graph.initializer
    assert (list(stored.dims), stored.data_location) == ([1, 600, 500], onnx.TensorProto.EXTERNAL)
    loads(runtime, onnx.load(tmp_path / "m.onnx"), onnx.load(made), close=0.1)


@pytest.mark.parametrize("order", ["perm = [0, 0, 1]", "perm = [1, 0]", "perm: ints = []", "perm = 1"])
def test_what_is_not_valid_is_left_alone(order):
    """No order that is not one of the axes changes a weight, and nothing fails."""
    source = turned((1, 0, 2)).replace("perm = [1, 0, 2]", order)
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


MOVED = """g (float[2,3,4] x, float[4,6] q) => (float[A,B,C] y) <float[4,4] u> {
    m = MatMul (x, u) t = Transpose <perm = [1, 0, 2]> (m) s = Identity (t) w = Relu (q)
    y = MatMul (s, w) }"""
LARGER = """g (float[2,3,4] x) => (float[A,B,C,D] y) <float[4,4] u, float[5,1,4,6] w> {
    m = MatMul (x, u) t = Transpose <perm = [1, 0, 2]> (m) y = MatMul (t, w) }"""
VECTOR = LARGER.replace("A,B,C,D", "A,B").replace("5,1,4,6", "4")


@marks
@pytest.mark.parametrize("source", [MOVED, LARGER, VECTOR])
def test_different_ranks_load_on_cuda(place, source):
    """Nothing between the two has another type."""
    assert place(rewrite(text.model(source)).model).refused == ""
