"""The Reciprocal of a norm's root is written as a division, which onnxruntime fuses."""

import pytest

from amp_rewrite import pipeline
from amp_rewrite.explaining import sentences
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import text

NORM = """<ir_version: 8, opset_import: ["" : {opset}]>
g (float[2,4] x) => (float[2,4] y) <float[4,4] w> {{
  two = Constant <value = float {{2.0}}> ()
  e = Constant <value = float {{1e-6}}> ()
  a = MatMul (x, w)
  q = Pow (a, two)
  m = ReduceMean <axes = [-1]> (q)
  p = {add}
  s = Sqrt (p)
  [invert] r = Reciprocal (s)
  n = Mul (a, r)
  y = {end}
}}"""


def norm(add="Add (m, e)", end="MatMul (n, w)", opset=13):
    """A norm between two products."""
    return text.model(NORM.format(add=add, end=end, opset=opset))


def operators(model):
    """The operators of a model, but for Casts and constants."""
    return [node.op_type for node in model.graph.node if node.op_type not in ("Cast", "Constant")]


@pytest.mark.parametrize("add", ["Add (m, e)", "Add (e, m)"])
def test_it_is_a_division(add):
    """Under the name of the node, and of its output; the report names it; results stay close."""
    model = norm(add)
    result = pipeline.rewrite(model)
    assert "Reciprocal" not in operators(result.model)
    named = {node.name: node for node in result.model.graph.node}
    assert (named["invert"].op_type, list(named["invert"].output)) == ("Div", ["r"])
    assert result.report.form_changes == (FormChange(FormChangeKind.RECIPROCAL, "invert"),)
    assert sentences.of(result.report.form_changes[0]).startswith("written as a division, which")
    text.agree(model, result.model)
    assert pipeline.rewrite(result.model).model == result.model


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"end": "MatMul (r, w)", "add": "Add (q, e)"}, Options()),
        ({"end": "Add (n, r)"}, Options()),
        ({}, Options(pins=Pins(keep_full="invert"))),
        ({}, Options(lists="tensorflow", follow=False)),
        ({}, Options(lists=Options().operator_lists().override(Kind.INFER, ["Reciprocal"]))),
    ],
)
def test_it_stays(changed, options):
    """Where it is of no norm, has other readers, or is the user's to decide."""
    assert "Reciprocal" in operators(pipeline.rewrite(norm(**changed), options).model)
