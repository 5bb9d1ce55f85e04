"""Parts of a written-out norm are written as onnxruntime fuses them.

A Reciprocal becomes a division, the product of data with themselves their power of 2.
"""

import pytest

from amp_rewrite import certify, pipeline
from amp_rewrite.explaining import sentences
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import text

NORM = """<ir_version: 8, opset_import: ["" : 13]>
g (float[2,4] x) => (float[2,4] y) <float[4,4] w, float[4] weight> {{
  two = Constant <value = float {{2.0}}> ()
  e = Constant <value = float {{1e-6}}> ()
  one = Constant <value = float {{1.0}}> ()
  a = MatMul (x, w)
  c = ReduceMean <axes = [-1]> (a)
  d = Sub (a, c)
  [square] q = {square}
  m = ReduceMean <axes = [-1]> (q)
  p = {add}
  s = Sqrt (p)
  {divide}
  z = {weight}
  y = {end}
}}"""
CENTRED = {
    "square": "Mul (d, d)",
    "add": "Add (m, e)",
    "divide": "n = Div (d, s)",
    "weight": "Mul (n, weight)",
    "end": "MatMul (z, w)",
}
BY_SIZE = {
    "square": "Pow (a, two)",
    "add": "Add (m, e)",
    "divide": "[invert] r = Reciprocal (s) n = Mul (a, r)",
    "weight": "Identity (n)",
    "end": "MatMul (n, w)",
}
INFER = {name: Options().operator_lists().override(Kind.INFER, [name]) for name in ("Mul", "Reciprocal")}


def norm(parts):
    """A norm between two products."""
    return text.model(NORM.format(**parts))


def operators(model):
    """The operators of a model."""
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize(
    ("parts", "name", "operator", "output", "kind", "words"),
    [
        *(
            ({**CENTRED, "divide": divide}, "square", "Pow", "q", FormChangeKind.SQUARE, "a power of 2")
            for divide in (
                "n = Div (d, s)",
                "i = Div (one, s) n = Mul (d, i)",
                "i = Reciprocal (s) n = Mul (i, d)",
            )
        ),
        *(
            ({**BY_SIZE, "add": add}, "invert", "Div", "r", FormChangeKind.RECIPROCAL, "a division")
            for add in ("Add (m, e)", "Add (e, m)")
        ),
    ],
)
def test_it_is_written_in_another_form(parts, name, operator, output, kind, words):
    """Under the name of the node and of its output; it is reported and proved; results stay close."""
    model = norm(parts)
    result = pipeline.rewrite(model)
    node = {node.name: node for node in result.model.graph.node}[name]
    assert (node.op_type, list(node.output)) == (operator, [output])
    assert "Reciprocal" not in operators(result.model)
    change = FormChange(kind, name)
    assert change in result.report.form_changes
    assert sentences.of(change).startswith(f"written as {words}, which")
    assert certify(model, result.model).proved
    text.agree(model, result.model)
    assert pipeline.rewrite(result.model).model == result.model


@pytest.mark.parametrize(
    ("parts", "options", "stays"),
    [
        ({**CENTRED, "square": "Mul (d, a)"}, Options(), "Mul"),
        ({**CENTRED, "divide": "n = Div (a, s)"}, Options(), "Mul"),
        ({**CENTRED, "weight": "Add (n, weight)"}, Options(), "Mul"),
        ({**CENTRED, "weight": "Mul (n, x)"}, Options(), "Mul"),
        ({**CENTRED, "end": "MatMul (q, w)"}, Options(), "Mul"),
        (CENTRED, Options(pins=Pins(keep_full="square")), "Mul"),
        (CENTRED, Options(lists="tensorflow", follow=False), "Mul"),
        (CENTRED, Options(lists=INFER["Mul"]), "Mul"),
        ({**BY_SIZE, "add": "Add (q, e)", "end": "MatMul (r, w)"}, Options(), "Reciprocal"),
        ({**BY_SIZE, "end": "Add (n, r)"}, Options(), "Reciprocal"),
        (BY_SIZE, Options(pins=Pins(keep_full="invert")), "Reciprocal"),
        (BY_SIZE, Options(lists="tensorflow", follow=False), "Reciprocal"),
        (BY_SIZE, Options(lists=INFER["Reciprocal"]), "Reciprocal"),
    ],
)
def test_it_stays(parts, options, stays):
    """Where no runtime would fuse it, it has other readers, or is the user's to decide."""
    found = operators(pipeline.rewrite(norm(parts), options).model)
    assert stays in found
    assert stays == "Reciprocal" or "Pow" not in found
