"""Written-out shares: what is nowhere negative over its own sum, which may be as large as it likes."""

import pytest

from amp_rewrite import analyze, rewrite
from amp_rewrite.analysis.idioms import norms, sums
from amp_rewrite.policy.options import Options
from tests import text

SHARE = """g (float[2, 8, 64] x) => (float[2, 8, 64] y)
    <float[64, 64] w, float[64, 64] v, int64[1] last = {{2}}, int64[1] all = {{64}}, float one = {{1}},
    float low = {{0.001}}, float below = {{-0.001}}> {{
    [first] h = MatMul (x, w) {positive} {total} [share] d = Div (p, t) [scale] z = Mul (h, d)
    [second] y = MatMul (z, v) }}"""
POSITIVE = {
    "softmax": "p = Softmax (h)",
    "sigmoid": "p = Sigmoid (h)",
    "gates": "s = Sigmoid (h) r = Sub (one, s) m = Softmax (h) a = Mul (r, m) b = Mul (s, m) p = Add (a, b)",
    "moved": "q = Relu (h) p = Identity (q)",
    "chosen": "s = Softmax (h) p, i = TopK (s, all)",
}
TOTAL = {
    "sum": "t = ReduceSum (p, last)",
    "mean": "t = ReduceMean <axes = [2]> (p)",
    "added": "u = ReduceSum (p, last) t = Add (u, low)",
    "above": "u = ReduceSum <keepdims = 0> (p, last) k = Max (low, u) t = Unsqueeze (k, last)",
}
NOT = {
    "sign": ("p = Tanh (h)", TOTAL["sum"]),
    "difference": ("s = Sigmoid (h) r = Relu (h) p = Sub (s, r)", TOTAL["sum"]),
    "other": ("p = Sigmoid (h) o = Relu (h)", "t = ReduceSum (o, last)"),
    "epsilon": (POSITIVE["sigmoid"], "u = ReduceSum (p, last) t = Add (u, below)"),
    "softmax": ("m = ReduceMax <axes = [2]> (h) n = Sub (h, m) p = Exp (n)", TOTAL["sum"]),
}
RESPONSE = """g (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y)
    <float[8, 8, 1, 1] w, float[8, 8, 1, 1] v, float[1, 8, 1, 1] gain, float low = {0.000001}> {
    [first] h = Conv (x, w) [norm] n = ReduceL2 <axes = [2, 3]> (h) [mean] m = ReduceMean <axes = [1]> (n)
    [above] a = Add (m, low) [share] d = Div (n, a) [scale] s = Mul (h, d) [gain] k = Mul (s, gain)
    [add] z = Add (k, h) [second] y = Conv (z, v) }"""


def full(model, options=None):
    """The names of the nodes that stay float32."""
    found = analyze(model, options)
    return {u.node.name or u.node.op_type for u in found.graph.units if not found.painting.is_half(u.index)}


def found(model):
    """The operators of each share that is found."""
    return [
        [node.op_type for node in idiom.inner] for idiom in sums.find_shares(analyze(model).graph, norms.SUM)
    ]


@pytest.mark.parametrize("total", TOTAL)
@pytest.mark.parametrize("positive", POSITIVE)
def test_a_share_ends_what_its_sum_is_denied_for(positive, total):
    """Only the nodes from the sum to the quotient are float32, and the result is close."""
    model = text.model(SHARE.format(positive=POSITIVE[positive], total=TOTAL[total]))
    (operators,) = found(model)
    assert operators[-1] == "Div"
    assert "scale" not in full(model)
    assert "share" in full(model)
    text.agree(model, rewrite(model).model)


@pytest.mark.parametrize("name", NOT)
def test_what_may_be_negative_or_is_of_something_else_is_no_share(name):
    """A sum that may cancel out bounds nothing; a written-out Softmax is an idiom of its own."""
    positive, total = NOT[name]
    assert found(text.model(SHARE.format(positive=positive, total=total))) == []


@pytest.mark.parametrize(("size", "count"), [("32752", 1), ("32753", 0), ("N", 0)])
def test_a_mean_of_very_many_is_none(size, count):
    """A share of a mean may be as large as the number of elements, which half has to hold."""
    body = f"""g (float[1, {size}] x) => (float[1, {size}] y)
        {{ [positive] p = Sigmoid (x) t = ReduceMean <axes = [1]> (p) y = Div (p, t) }}"""
    assert len(found(text.model(body))) == count


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_normalised_response(half):
    """Norms over their mean, as in ConvNeXt V2: what they are multiplied with is half."""
    newer = f'<ir_version: 10, opset_import: ["": 22]> {_with_axes_as_inputs()}'
    model = text.model(RESPONSE if half == "float16" else newer)
    assert full(model, Options(half=half)) == {"norm", "mean", "above", "share"}
    if half == "float16":
        text.agree(model, rewrite(model).model)


def _with_axes_as_inputs():
    """As later opsets have them."""
    spatial = RESPONSE.replace("ReduceL2 <axes = [2, 3]> (h)", "ReduceL2 (h, spatial)")
    both = spatial.replace("ReduceMean <axes = [1]> (n)", "ReduceMean (n, channels)")
    return both.replace("float low", "int64[2] spatial = {2, 3}, int64[1] channels = {1}, float low")


def test_tensorflow_decides_alone():
    """Under its lists and rules nothing is an idiom: what is downstream of the norm stays float32."""
    model = text.model(RESPONSE)
    assert "scale" in full(model, Options(lists="tensorflow", follow=False))
    assert list(sums.find_shares(analyze(model).graph, norms.SUM))
