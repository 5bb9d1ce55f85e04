"""What is said of a part of a norm that is written as onnxruntime fuses it; `idioms.cases` says of which."""

import pytest

from amp_rewrite import rewrite
from amp_rewrite.explaining import sentences
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import text

NORM = """g (float[2,4] x) => (float[2,4] y)
  <float[4,4] w, float[4] v, float e = {{1e-6}}, float two = {{2}}> {{
  a = MatMul (x, w) [square] q = {} m = ReduceMean <axes = [-1]> (q) p = Add (m, e) s = Sqrt (p)
  {} z = Mul (n, v) y = MatMul (z, w) }}"""


@pytest.mark.parametrize(
    ("square", "divide", "change", "words"),
    [
        (
            "Mul (a, a)",
            "n = Div (a, s)",
            FormChange(FormChangeKind.SQUARE, "square"),
            "a power of 2",
        ),
        (
            "Pow (a, two)",
            "[invert] r = Reciprocal (s) n = Mul (a, r)",
            FormChange(FormChangeKind.RECIPROCAL, "invert"),
            "a division",
        ),
    ],
)
def test_it_keeps_its_names(square, divide, change, words):
    """Those of the node and of its output; it is said, and done once."""
    result = rewrite(text.model(NORM.format(square, divide)))
    (node,) = (node for node in result.model.graph.node if node.name == change.node)
    assert list(node.output) == ["q" if node.name == "square" else "r"]
    assert result.report.form_changes == (change,)
    assert sentences.of(change).startswith(f"written as {words}, which")
    assert rewrite(result.model).model == result.model
