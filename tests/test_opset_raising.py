"""Odd imports, the bits of Max and Min, and Clips that stay; `opset_raising.cases` has the rest."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_rewrite.policy.options import Options
from amp_rewrite.preparing import norms_and_clips, opset_raising
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


ODD = {
    "no import": ([], None),
    "only another domain": ([("com.microsoft", 1)], None),
    "from the future": ([("", 99)], 99),
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
        ("Relu (v)", 13, 11),
        ("Upsample (v, v)", 11, 12),
    ],
)
def test_functions_that_are_kept_count(call, opset, expected):
    """Their nodes too must mean the same, and their import goes along; one of another version stops it."""
    prepared = ir.from_proto(text.unchecked(FUNCTION.format(call=call, opset=opset)))
    opset_raising.raise_opset(prepared, Options(keep_functions=True).form)
    assert prepared.opset_imports[""] == expected
    assert next(iter(prepared.functions.values())).opset_imports[""] == (12 if expected == 12 else opset)


def prepared_clip(model, options=None):
    """A model with its Clips written as Max and Min, in float32, and what was said of it."""
    prepared = ir.from_proto(model)
    changes = norms_and_clips.rewrite_clips(prepared, (options or Options()).form)
    return ir.to_proto(prepared), changes


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
