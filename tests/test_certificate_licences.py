"""The certificate: each licence, by what it allows and by what looks like it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

from amp_rewrite import certify


def model(text, opset=17, ir_version=8):
    """A model by the text of its graph; `other` is a domain that nobody knows."""
    imports = f'["": {opset}, "com.microsoft": 1, "other": 1]'
    return parser.parse_model(f"<ir_version: {ir_version}, opset_import: {imports}> g {text}")


SCORES = "(float[2,2] x, bool[2,2] k, int64[2,2] n) => (y) <float fill = {-3.4e38}, float zero = {0}> { %s }"
MASKS = {
    "Add": "f = Where (k, fill, zero) a = Add (x, f) y = Softmax (a)",
    "Where": "a = Where (k, x, fill) b = Transpose (a) y = Softmax (b)",
    "Max": "a = Max (x, fill) y = Softmax (a)",
    "a product with integers": "c = Cast <to = 1> (n) f = Mul (c, fill) a = Add (x, f) y = Softmax (a)",
    "a written-out softmax": """a = Where (k, x, fill) m = ReduceMax <axes = [-1]> (a) s = Sub (a, m)
        e = Exp (s) t = ReduceSum (e) y = Div (e, t)""",
    "a body": """y = If (q) <then_branch = t () => (u) { a = Where (k, x, fill) u = Softmax (a) },
        else_branch = e () => (v) { v = Identity (x) }>""",
}
NO_MASKS = {
    "a product with floats": "f = Mul (x, fill) y = Softmax (f)",
    "a product": "y = Mul (x, fill)",
    "a threshold": "y = Less (x, fill)",
    "a default where nothing is": "y = Where (k, x, fill)",
    "a count": "y = Div (x, fill)",
    "what is also compared": "a = Where (k, x, fill) l = Less (a, zero) b = Where (l, x, a) y = Softmax (b)",
    "a logarithm": "a = Where (k, x, fill) y = LogSoftmax (a)",
    "what leaves a body": """a = If (q) <then_branch = t () => (u) { u = Where (k, x, fill) },
        else_branch = e () => (v) { v = Identity (x) }> y = Softmax (a)""",
    "what an operator of nobody's reads": "f = other.Op (fill) a = Add (x, f) y = Softmax (a)",
}


@pytest.mark.parametrize("half", ["float32", "float16"])
@pytest.mark.parametrize("case", [*MASKS, *NO_MASKS])
def test_only_masks_are_clamped(case, half):
    """A value beyond half's range may be clamped where softmaxes alone see of it that it is large."""
    text = SCORES.replace("bool[2,2] k", "bool[2,2] k, bool q") % (MASKS | NO_MASKS)[case]
    original, result = model(text, 12), model(text.replace("-3.4e38", "-32752"), 12)
    if half == "float16":
        result.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(-32752, np.float16), "fill"))
    found = certify(original, result)
    assert found.proved == (case in MASKS), found
