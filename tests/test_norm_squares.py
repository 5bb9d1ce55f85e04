"""The product of data with themselves in a norm is written as their power of 2, which onnxruntime fuses."""

import pytest

from amp_rewrite import certify, pipeline
from amp_rewrite.explaining import sentences
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import text

NORM = """<ir_version: 8, opset_import: ["" : {opset}]>
g (float[2,4] x) => (float[2,4] y) <float[4,4] w, float[4] weight> {{
  e = Constant <value = float {{1e-6}}> ()
  one = Constant <value = float {{1.0}}> ()
  a = MatMul (x, w)
  c = ReduceMean <axes = [-1]> (a)
  d = Sub (a, c)
  [square] q = {square}
  m = ReduceMean <axes = [-1]> (q)
  p = Add (m, e)
  s = Sqrt (p)
  {divide}
  z = {weight}
  y = {end}
}}"""


def norm(
    square="Mul (d, d)", divide="n = Div (d, s)", weight="Mul (n, weight)", end="MatMul (z, w)", opset=13
):
    """A norm of centred data between two products."""
    parts = {"square": square, "divide": divide, "weight": weight, "end": end}
    return text.model(NORM.format(opset=opset, **parts))


def operators(model):
    """The operators of a model, but for Casts and constants."""
    return [node.op_type for node in model.graph.node if node.op_type not in ("Cast", "Constant")]


@pytest.mark.parametrize(
    "divide", ["n = Div (d, s)", "i = Div (one, s) n = Mul (d, i)", "i = Reciprocal (s) n = Mul (i, d)"]
)
def test_it_is_a_power(divide):
    """Under the name of the node and of its output; it is reported and proved; results stay close."""
    model = norm(divide=divide)
    result = pipeline.rewrite(model)
    named = {node.name: node for node in result.model.graph.node}
    assert (named["square"].op_type, list(named["square"].output)) == ("Pow", ["q"])
    change = FormChange(FormChangeKind.SQUARE, "square")
    assert change in result.report.form_changes
    assert sentences.of(change).startswith("written as a power of 2, which")
    assert certify(model, result.model).proved
    text.agree(model, result.model)
    assert pipeline.rewrite(result.model).model == result.model


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"square": "Mul (d, a)"}, Options()),
        ({"divide": "n = Div (a, s)"}, Options()),
        ({"weight": "Add (n, weight)"}, Options()),
        ({"weight": "Mul (n, x)"}, Options()),
        ({"end": "MatMul (q, w)"}, Options()),
        ({}, Options(pins=Pins(keep_full="square"))),
        ({}, Options(lists="tensorflow", follow=False)),
        ({}, Options(lists=Options().operator_lists().override(Kind.INFER, ["Mul"]))),
    ],
)
def test_it_stays(changed, options):
    """Where no runtime would fuse it, it has other readers, or is the user's to decide."""
    assert "Pow" not in operators(pipeline.rewrite(norm(**changed), options).model)
