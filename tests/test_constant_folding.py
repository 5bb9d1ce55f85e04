"""Subgraphs of stored values, folded as far as the runtime cannot once they are half."""

import numpy as np
import onnx
import pytest

from amp_rewrite import pipeline
from amp_rewrite.model import loading, serialization
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.preparing import constant_folding
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.process import worker_process
from tests import text

SCALE = """g (float[4,4] x) => (float[4,4] y) <float[4] w, float[4] lo> {
    [least] a = Max (w, lo)
    [exp] b = Exp (a)
    [turn] c = Reshape (b, s)
    [mul] y = Mul (x, c) }"""
SHAPED = SCALE.replace("float[4] lo>", "float[4] lo, int64[2] s = {1, 4}>")


def folded(proto, kept=()):
    """The model in float32 after folding, and what changed."""
    loaded = loading.load(proto)
    nodes = frozenset(node for node in loaded.model.graph.all_nodes() if node.name in kept)
    changes = constant_folding.fold_constants(loaded.model, nodes)
    made = serialization.to_proto(loaded)
    onnx.checker.check_model(made, full_check=True)
    return made, changes


def same(before, after):
    """Asserts that both models compute the same bits."""
    if text.RUNS:
        expected, found = text.run(before), text.run(after)
        assert {n: a.tobytes() for n, a in expected.items()} == {n: a.tobytes() for n, a in found.items()}


def test_up_to_the_last_without_half():
    """The Exp has no half kernel on the CPU, the Reshape behind it has: its result is stored in place of what
    led to it, and the Reshape stays.
    """
    proto = text.model(SHAPED)
    made, changes = folded(proto)
    assert text.nodes(made) == ["c = Reshape(b, s)", "y = Mul(x, c)"]
    assert changes == (
        FormChange(FormChangeKind.FOLDED, "least", "b"),
        FormChange(FormChangeKind.FOLDED, "exp", "b"),
    )
    assert text.stored(made).keys() == {"b", "s"}
    same(proto, made)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # what moves data alone stays
        ("b = Transpose (w)  y = Add (x, b)", ["b = Transpose(w)", "y = Add(x, b)"]),
        # a chain of arithmetic is one value
        ("a = Neg (w)  b = Exp (a)  c = Add (b, w)  y = Add (x, c)", ["y = Add(x, c)"]),
        # what a half kernel reads in between stays for that reader, and no longer for the other
        (
            "a = Transpose (w)  b = Exp (a)  c = MatMul (x, a)  y = Add (c, b)",
            ["a = Transpose(w)", "c = MatMul(x, a)", "y = Add(c, b)"],
        ),
        # a stored result is read by what stays
        (
            "a = Exp (w)  b = Transpose (a)  c = Add (x, a)  y = Add (c, b)",
            ["b = Transpose(a)", "c = Add(x, a)", "y = Add(c, b)"],
        ),
        # integers are the runtime's
        (
            "s = Shape (w)  n = Add (s, s)  k = Sub (n, s)  y = Reshape (x, k)",
            ["s = Shape(w)", "n = Add(s, s)", "k = Sub(n, s)", "y = Reshape(x, k)"],
        ),
        # a random number is another in every run
        (
            "a = RandomNormalLike (w)  b = Exp (a)  y = Add (x, b)",
            ["a = RandomNormalLike(w)", "b = Exp(a)", "y = Add(x, b)"],
        ),
    ],
)
def test_what_is_stored(before, after):
    """What arithmetic without a half kernel leads to is stored, and nothing that others need goes."""
    proto = text.model(f"g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {{ {before} }}")
    made, _ = folded(proto)
    assert text.nodes(made) == after
    if "Random" not in before:
        same(proto, made)


def test_outputs_stay_computed():
    """A value that is an output of the model is still made by a node."""
    proto = text.model(
        "g (float[4] x) => (float[4] y, float[4] b) <float[4] w> { b = Exp (w)  y = Add (x, b) }"
    )
    made, changes = folded(proto)
    assert changes == ()
    assert text.nodes(made) == ["b = Exp(w)", "y = Add(x, b)"]


def test_what_a_caller_may_give_is_not_stored():
    """From IR version 4 on, an initializer that is an input too can be overridden; before it is constant."""
    proto = text.model("g (float[4] x) => (float[4] y) <float[4] w> { b = Exp (w)  y = Add (x, b) }")
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [4]))
    assert folded(proto)[1] == ()
    proto.ir_version = 3
    del proto.opset_import[:]
    proto.opset_import.append(onnx.helper.make_opsetid("", 7))
    made, changes = folded(proto)
    assert [change.node for change in changes] == ["b"]
    assert [given.name for given in made.graph.input] == ["x", "b"]
    same(proto, made)


def test_inside_a_body():
    """What a branch computes of stored values is stored in it, or goes with what led to it outside."""
    proto = text.model(
        """g (float[4] x, bool c) => (float[4] y) <float[4] w> {
            a = Exp (w)
            y = If (c) <then_branch = t () => (float[4] p) { b = Neg (a)  p = Add (x, b) },
                        else_branch = e () => (float[4] q) { b = Sqrt (a)  q = Add (x, b) }> }"""
    )
    made, changes = folded(proto)
    assert len(changes) == 3
    assert [line for line in text.nodes(made) if "Add" in line] == ["p = Add(x, b)", "q = Add(x, b)"]
    assert len(text.nodes(made)) == 3
    same(proto, made)


@pytest.mark.parametrize("size", [64, 60_000])
def test_growth_is_limited(size):
    """A result may be small, or about as large as what it is made of; one that is much larger stays."""
    before = """g (float[n] x) => (float[n] y) <float[1,64] w, int64[2] r = {1, SIZE}> {
        a = Exp (w)  b = Tile (a, r)  m = ReduceSum <keepdims=0> (b)  y = Add (x, m) }"""
    proto = text.model(before.replace("SIZE", str(size)))
    made, changes = folded(proto)
    assert changes
    assert sum(array.nbytes for array in text.stored(made).values()) <= constant_folding.SMALL + 64
    same(proto, made)


@pytest.mark.parametrize(
    "bomb",
    [
        "t = Constant <value_ints=[1000000, 1000000]> ()  b = ConstantOfShape (t)  m = ReduceSum (b)",
        "a = Expand (w, s)  m = Exp (a)",
        "m = Tile (w, s)",
        """n = Constant <value_float=1e12> ()  z = Constant <value_float=0.0> ()
           o = Constant <value_float=1.0> ()  m = Range (z, n, o)""",
        'm = Einsum <equation="i,j,k,l,m,n,o->ijklmno"> (w, w, w, w, w, w, w)',
    ],
)
def test_what_would_be_huge_is_not_computed(bomb):
    """Sizes are inferred before anything is computed."""
    proto = text.unchecked(
        f"""g (float[64] x) => (y) <float[64] w, int64[1] s = {{100000000000}}> {{
            {bomb}  k = Neg (w)  h = Add (x, k)  y = Add (h, m) }}"""
    )
    loaded = loading.load(proto)
    changes = constant_folding.fold_constants(loaded.model, ())
    assert [change.node for change in changes] == ["k"]


def test_what_the_proof_would_not_compute_is_not_folded():
    """A product of three long vectors is a short result of much work."""
    proto = text.model(
        """g (float[4] x) => (float[4] y) { n = Constant <value_ints = [16384]> ()
            w = ConstantOfShape <value = float[1] {2}> (n)
            m = Einsum <equation="i,j,k->"> (w, w, w)  h = Add (x, m)  y = Mul (h, x) }"""
    )
    assert folded(proto)[1] == ()
    assert pipeline.rewrite(proto).report.certificate is not None


@pytest.mark.parametrize(
    "odd", ["a = Exp <alpha=1> (w, w)", "a = Softmax <axis=77> (w)", "a = MatMul (w, s)"]
)
def test_what_is_not_valid_is_left_alone(odd):
    """A node that cannot be computed stays, and no error is raised."""
    proto = text.unchecked(
        f"g (float[4] x) => (float[4] y) <float[4] w, float[3] s> {{ {odd}  y = Add (x, a) }}"
    )
    loaded = loading.load(proto)
    assert constant_folding.fold_constants(loaded.model, ()) == ()
    assert len(loaded.model.graph) == 2


def test_quantised_regions_stay():
    """A runtime recognises them by their nodes."""
    proto = text.model(
        """g (float[4] x) => (float[4] y) <int8[4] q, float s, int8 z> {
            a = DequantizeLinear (q, s, z)  b = Neg (a)  y = Add (x, b) }"""
    )
    assert folded(proto)[1] == ()


def test_without_onnxruntime(monkeypatch):
    """onnx's reference computes what is stored, to float32's rounding."""
    monkeypatch.setattr(worker_process.importlib.util, "find_spec", lambda _: None)
    data = text.model("g () => (float[4] y) <float[4] w> { a = Exp (w)  y = Mul (a, w) }")
    found = worker_process.evaluate(data.SerializeToString())
    array = onnx.numpy_helper.to_array(onnx.TensorProto.FromString(found["y"]))
    weights = text.stored(data)["w"]
    np.testing.assert_allclose(array, np.exp(weights) * weights, rtol=1e-6)


@pytest.mark.parametrize(
    "asked",
    [
        Options(fold=False),
        Options(pins=Pins(keep_full="exp")),
        Options(pins=Pins(force_half="e.p")),
        Options(lists=operator_lists.load("tensorflow"), follow=False),
    ],
)
def test_who_asks_for_the_node_gets_it(asked):
    """`fold` turns it off, as do a pin on the node, and Grappler's rules."""
    proto = text.model(
        SHAPED.replace("Mul (x, c)", "MatMul (x, c)")
        .replace("{1, 4}", "{4, 1}")
        .replace("[4,4] y", "[4,1] y")
    )
    assert pipeline.rewrite(proto).report.form_changes
    result = pipeline.rewrite(proto, asked)
    assert result.report.form_changes == ()
    assert any("Exp" in node for node in text.nodes(result.model))


@pytest.mark.parametrize("kind", Kind)
def test_an_operator_on_another_list_is_folded(kind):
    """What a list says of an operator takes no node back: the stored result was computed in float32."""
    proto = text.model(SHAPED)
    lists = operator_lists.load("default").override(kind, ["Exp"])
    before, after = (pipeline.analyze(proto, asked).report() for asked in (Options(), Options(lists=lists)))
    assert before.form_changes == after.form_changes != ()


def test_a_long_chain():
    """A long row of nodes of stored values is no deeper for us than a short one."""
    lines = [f"v{i + 1} = Neg (v{i})" for i in range(3_000)]
    proto = text.unchecked(
        f"g (float[4] x) => (float[4] y) <float[4] v0> {{ {' '.join(lines)}  y = Add (x, v3000) }}"
    )
    loaded = loading.load(proto)
    assert len(constant_folding.fold_constants(loaded.model, ())) == 3_000
