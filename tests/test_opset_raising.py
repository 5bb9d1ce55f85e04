"""The opset is raised, by number, to one at which more is half; else Clip is written as Max and Min."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_rewrite import rewrite, verify
from amp_rewrite.policy import targets
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.preparing import norms_and_clips, opset_raising
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import text

HEAD = '<ir_version: {ir}, opset_import: ["" : {opset}]>'
CLIPPED = """g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w, float low, float high> {
    a = MatMul (x, w)
    [clip] b = Clip (a, low, high)
    y = MatMul (b, w)
}"""
BOUNDS = {"low": np.float32(0), "high": np.float32(6)}
STATED = """g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> {
    a = MatMul (x, w)
    [clip] b = Clip <min = 0.0, max = 6.0> (a)
    y = MatMul (b, w)
}"""
BFLOAT16 = Options(half="bfloat16")


def proto(graph, opset, *, ir_version=7):
    """A model of that opset."""
    return text.unchecked(f"{HEAD.format(ir=ir_version, opset=opset)} {graph}", BOUNDS)


def raised(model, options=None):
    """The opset of what a model is prepared to, in float32."""
    prepared = ir.from_proto(model)
    changes = opset_raising.raise_opset(prepared, (options or Options()).form)
    after = prepared.opset_imports.get("", prepared.opset_imports.get("ai.onnx"))
    before = model.opset_import[0].version if model.opset_import else None
    expected = (
        () if after == before else (FormChange(FormChangeKind.OPSET_RAISED, before=before, after=after),)
    )
    assert changes == expected
    return after


def _casts(model):
    """The Casts of a model: two, where all between its input and its output is half."""
    return sum(node.op_type == "Cast" for node in model.graph.node)


def test_a_clip_is_freed():
    """From opset 11 to 12, where Clip has a half kernel; the IR version stays, and the result computes."""
    model = proto(CLIPPED, 11)
    result = rewrite(model)
    assert (result.model.opset_import[0].version, result.model.ir_version) == (12, 7)
    assert _casts(result.model) == 2
    assert result.report.form_changes == (FormChange(FormChangeKind.OPSET_RAISED, before=11, after=12),)
    onnx.checker.check_model(result.model, full_check=True)
    text.agree(model, result.model)


@pytest.mark.parametrize(
    "options",
    [
        Options(keep_opset=True),
        Options(lists="tensorflow", follow=False),
        Options(target=targets.ANY),
    ],
    ids=["keep_opset", "grappler", "any"],
)
def test_it_stays(options):
    """Where the user says so, under Grappler's rules, and for a target that has every kernel as it is."""
    model = proto(CLIPPED, 11)
    assert raised(model, options) == 11
    prepared = ir.from_proto(model)
    assert norms_and_clips.rewrite_clips(prepared, options.form) == ()
    assert rewrite(model, options).model.opset_import[0].version == 11


TWICE = CLIPPED.replace("[clip] b = Clip (a", "j = MatMul (a, w) k = MatMul (j, w) [clip] b = Clip (k")
SOFTMAX = """g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> {
    a = MatMul (x, w)
    b = MatMul (a, w)
    y = Softmax (b)
}"""
ONE = SOFTMAX.replace("b = MatMul (a, w)", "").replace("(b)", "(a)")
THREE = """g (float[2, 4, 4] x) => (float[2, 4, 4] y) <float[4, 4] w> {
    a = MatMul (x, w)
    y = Softmax <axis = 1> (a)
}"""
CONVOLUTION = """g (float[1, 2, 8, 8] x) => (float[1, 2, {size}, {size}] y) <float[2, 2, 1, 1] w> {{
    a = Conv (x, w)
    b = Relu (a)
    c = {middle} (b)
    d = Conv (c, w)
    y = Relu (d)
}}"""
PLAIN = CONVOLUTION.format(size=8, middle="Sigmoid")
POOLED = CONVOLUTION.format(size=4, middle="MaxPool <kernel_shape = [2, 2], strides = [2, 2]>")
LEAKY = CONVOLUTION.format(size=8, middle="LeakyRelu")
SQUEEZED = """g (float[1, 4] x) => (float[4] y) <float[4, 4] w> {
    j = MatMul (x, w)
    k = MatMul (j, w)
    a = MatMul (k, w)
    y = Squeeze <axes = [0]> (a)
}"""
NOTHING = "g (float[2, 4] x) => (float[2, 4] y) { a = Relu (x) y = Sigmoid (a) }"
INTEGERS = "g (int64[4] x) => (int64[4] y) { y = Clip (x) }"


@pytest.mark.parametrize(
    ("graph", "old", "new"),
    [
        (CLIPPED, 11, 11),
        (TWICE, 11, 13),
        (CLIPPED, 13, 13),
        (SOFTMAX, 11, 13),
        (ONE, 11, 11),
        (THREE, 11, 11),
        (PLAIN, 11, 22),
        (PLAIN, 20, 22),
        (POOLED, 11, 11),
        (LEAKY, 22, 22),
        (SQUEEZED, 11, 11),
        (SQUEEZED.replace(" <axes = [0]>", ""), 11, 13),
        (NOTHING, 11, 11),
        (INTEGERS, 11, 11),
    ],
)
def test_bfloat16_needs_more(graph, old, new):
    """Most operators need 13, and Conv 22. It stays where an operator would mean something else, or lose its
    kernel (MaxPool at 22), where no product could be half, where Casts would be as many as what gains, and
    where nothing is float32.
    """
    model = proto(graph, old)
    assert raised(model, BFLOAT16) == new
    result = rewrite(model, BFLOAT16)
    assert result.model.opset_import[0].version == new
    if new != old:
        onnx.checker.check_model(result.model, full_check=True)
        assert verify(model, result.model, _feeds(model), device="cpu").ok


def _feeds(model):
    return {one.name: text.numbers(one.type.tensor_type) for one in model.graph.input}


def test_rewriting_twice_is_rewriting_once():
    """The result of a raised model stays as it is."""
    for options in (Options(), BFLOAT16):
        once = rewrite(proto(TWICE, 11), options).model
        assert rewrite(once, options).model == once


def test_the_raised_model_computes_the_same_bits():
    """In float32, before anything is half."""
    for graph, options in ((CLIPPED, Options()), (SOFTMAX, BFLOAT16), (PLAIN, BFLOAT16)):
        model = proto(graph, 11)
        prepared = ir.from_proto(model)
        assert opset_raising.raise_opset(prepared, options.form)
        text.agree(model, ir.to_proto(prepared), 0.0)


ODD = {
    "no import": ([], None),
    "only another domain": ([("com.microsoft", 1)], None),
    "spelled out": ([("ai.onnx", 11)], 12),
    "old": ([("", 6)], 6),
    "from the future": ([("", 99)], 99),
    "beside others": ([("com.microsoft", 1), ("", 11), ("ai.onnx.ml", 2)], 12),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_imports(name):
    """Whatever a model imports, nothing fails, and only ONNX's own opset is raised."""
    imports, expected = ODD[name]
    model = proto(CLIPPED, 11)
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(*each) for each in imports)
    prepared = ir.from_proto(model)
    opset_raising.raise_opset(prepared, Options().form)
    norms_and_clips.rewrite_clips(prepared, Options().form)
    others = {domain: version for domain, version in imports if domain not in ("", "ai.onnx")}
    found = dict(prepared.opset_imports)
    assert found.pop("", found.pop("ai.onnx", None)) == expected
    assert found == others


FUNCTION = """<ir_version: 8, opset_import: ["" : 11, "local" : 1]>
calls (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w> {{
  c = local.inner (x)
  a = MatMul (c, w)
  b = Clip (a)
  y = MatMul (b, w)
}}
<domain: "local", opset_import: ["" : {opset}]>
inner (v) => (u) {{ u = {call} }}
"""


@pytest.mark.parametrize(
    ("call", "opset", "expected"),
    [
        ("Relu (v)", 11, 12),
        ("Relu (v)", 13, 11),
        ("Upsample (v, v)", 11, 12),
        ("Dropout <ratio = 0.5> (v)", 11, 11),
    ],
)
def test_functions_that_are_kept_count(call, opset, expected):
    """Their nodes too must mean the same, and their import goes along; one of another version stops it."""
    prepared = ir.from_proto(text.unchecked(FUNCTION.format(call=call, opset=opset)))
    opset_raising.raise_opset(prepared, Options(keep_functions=True).form)
    assert prepared.opset_imports[""] == expected
    assert next(iter(prepared.functions.values())).opset_imports[""] == (12 if expected == 12 else opset)


def test_bodies_count():
    """A node in a branch that would mean something else stops the raise; one that gains is worth it."""
    branch = """g (bool c, float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> {{
      a = MatMul (x, w)
      b = If (c) <then_branch = t () => (float[2, 4] p) {{ q = Clip (a) p = MatMul (q, w) }},
                  else_branch = e () => (float[2, 4] r) {{ {other} }}>
      y = MatMul (b, w)
    }}"""
    assert raised(proto(branch.format(other="r = Relu (a)"), 11)) == 12
    assert raised(proto(branch.format(other="r = Dropout <ratio = 0.5> (a)"), 11)) == 11


def prepared_clip(model, options=None):
    """A model with its Clips written as Max and Min, in float32, and what was said of it."""
    prepared = ir.from_proto(model)
    changes = norms_and_clips.rewrite_clips(prepared, (options or Options()).form)
    return ir.to_proto(prepared), changes


@pytest.mark.parametrize(("graph", "opset"), [(STATED, 8), (STATED, 10), (CLIPPED, 11)])
def test_a_clip_that_cannot_be_half_is_max_and_min(graph, opset):
    """Where the opset stays; both are half then, and the Min has the name of the Clip."""
    blocked = graph.replace("y = MatMul (b, w)", "c = Dropout <ratio = 0.5> (b) y = MatMul (c, w)")
    model = proto(blocked, opset)
    result = rewrite(model)
    kinds = {node.op_type: node.name for node in result.model.graph.node}
    assert "Clip" not in kinds
    assert (kinds["Max"], kinds["Min"]) == ("clip__Max", "clip")
    assert _casts(result.model) == 2
    changes = result.report.form_changes
    assert changes == (FormChange(FormChangeKind.MAX_AND_MIN, "clip", into="clip"),)
    onnx.checker.check_model(result.model, full_check=True)
    text.agree(model, result.model)
    assert rewrite(result.model).model == result.model


def test_bfloat16_has_no_clip():
    """At no opset: Max and Min at every one that has bfloat16."""
    result = rewrite(proto(CLIPPED, 17), BFLOAT16)
    assert {"Max", "Min"} <= {node.op_type for node in result.model.graph.node}
    assert _casts(result.model) == 2


SPECIAL = np.array([np.nan, np.inf, -np.inf, -3, -0.0, 0, 1e-45, 3, 6, 7, 3.4e38, -3.4e38], np.float32)


@pytest.mark.parametrize("opset", [8, 10, 11, 13])
@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 6.0), (0.0, 6.0), (None, 6.0), (-2.5, None), (None, None), (-3.4e38, 1e38)]
)
def test_both_give_the_same_bits(opset, low, high):
    """NaN, infinities and missing bounds included; but for the sign of a zero at a bound that is zero."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = proto(*_between_products(opset, low, high))
    made, changes = prepared_clip(model, BFLOAT16 if opset > 11 else None)
    assert len(changes) == 1
    before, after = (_run(onnxruntime, each) for each in (model, made))
    if low == 0:
        before, after = before + np.float32(0), after + np.float32(0)  # -0.0 + 0.0 is 0.0
    assert before.tobytes() == after.tobytes()


def _between_products(opset, low, high):
    given = {"min": low, "max": high}
    if opset < 11:
        stated = ", ".join(f"{name} = {value}" for name, value in given.items() if value is not None)
        call, stored = f"Clip <{stated}> (a)" if stated else "Clip (a)", ""
    else:
        names = {name: f"k{name}" for name, value in given.items() if value is not None}
        made = [f"{names[n]} = Constant <value = float {{{given[n]}}}> ()" for n in names]
        call, stored = f"Clip (a, {names.get('min', '')}, {names.get('max', '')})", " ".join(made)
    graph = f"""g (float[12, 1] x) => (float[12, 1] b, float[12, 1] y) <float[1, 1] w> {{
        {stored} a = MatMul (x, w) b = {call} y = MatMul (b, w) }}"""
    return graph, opset


def _run(onnxruntime, model):
    weights = [t for t in model.graph.initializer if t.name == "w"]
    weights[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((1, 1), np.float32), "w"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(["b"], {"x": SPECIAL.reshape(12, 1)})[0]


LEFT = {
    "pinned": (STATED, Options(pins=Pins(keep_full="clip"))),
    "forced": (STATED, Options(pins=Pins(force_half="cl.*"))),
    "moved": (
        STATED,
        Options(
            lists=Options()
            .operator_lists()
            .override(Options().operator_lists().find("", "Exp").kind, ["Clip"])
        ),
    ),
    "integer": ("g (int64[4] x) => (int64[4] y) { y = Clip (x) }", None),
    "double": ("g (double[4] x) => (double[4] y) { y = Clip <min = 0.0> (x) }", None),
    "alone": ("g (float[4] x) => (float[4] y) { y = Clip <min = 0.0> (x) }", None),
    "no data": ("g (float[4] x) => (float[4] y) { y = Clip () }", None),
    "odd bounds": (STATED.replace("0.0", "[1, 2]"), None),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_clips_stay(name):
    """What the user decides, what is not float32 or not between half nodes, and what is not understood."""
    graph, options = LEFT[name]
    model = proto(graph, 10)
    assert prepared_clip(model, options) == (ir.to_proto(ir.from_proto(model)), ())


def test_a_bound_that_is_given_stays():
    """Its shape may be unknown, and could be broadcast; it may be NaN, which a Clip ignores and a Max does
    not.
    """
    graph = CLIPPED.replace("float[2, 4] x", "float[2, 4] x, float[N] z").replace("a, low, high", "a, z")
    assert prepared_clip(proto(graph, 11))[1] == ()
    assert prepared_clip(proto(graph.replace("float[N] z", "float z"), 11))[1] == ()


def test_bounds_are_stored_once():
    """A Constant for each number, not for each Clip."""
    graph = """g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> {
        a = MatMul (x, w) b = Clip <min = 0.0, max = 6.0> (a)
        c = MatMul (b, w) d = Clip <min = 0.0, max = 1.0> (c)
        y = MatMul (d, w) }"""
    made, changes = prepared_clip(proto(graph, 10))
    assert len(changes) == 2
    assert [node.op_type for node in made.graph.node].count("Constant") == 3
