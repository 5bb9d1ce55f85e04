"""Inputs and outputs that are state: which pair up, and half for them alone."""

import pytest
from onnx import TensorProto

from amp_rewrite import Options, rewrite, verify
from amp_rewrite.model import loading, states
from amp_rewrite.onnx_types import element_types
from tests import text

CACHE = """g (float[64,64] x, float[n,64] past_0_key, float[64,64] h) =>
    (float[64,64] logits, float[m,64] present_0_key, float[64,64] h_out) <float[64,64] w, float[64,64] v> {
    a = MatMul(x, w)
    b = Add(a, h)
    h_out = Relu(b)
    k = MatMul(h_out, v)
    present_0_key = Concat<axis = 0>(past_0_key, k)
    t = Transpose(present_0_key)
    s = MatMul(h_out, t)
    logits = MatMul(s, present_0_key)
}"""


def ports(model):
    """The element types of inputs and outputs by name."""
    graph = model.graph
    return {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}


def halves(model):
    """The names of the inputs and outputs in half."""
    return {name for name, kind in ports(model).items() if kind == TensorProto.FLOAT16}


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        ("h", "h_out"),
        ("h_in", "h_out"),
        ("in_cache0", "out_cache0"),
        ("state", "new_state"),
        ("state", "stateN"),
        ("h0", "hn"),
        ("past_key_values_3_value", "present_3_value"),
        ("past_key_self_0", "present_key_self_0"),
        ("x", None),
    ],
)
def test_what_pairs_up(given, returned):
    """Names of exporters, but nothing by type alone, and never another type or size."""
    for kind, shape, pairs in (("float", 4, True), ("int64", 4, False), ("float", 5, False)):
        body = f"g (float[4] {given}, {kind}[{shape}] z) => ({kind}[{shape}] {returned or 'y'})"
        name = returned or "y"
        graph = loading.load(text.unchecked(f"{body} {{ {name} = Identity(z) }}")).model
        borders = states.borders(graph.graph, element_types.infer(graph))
        wanted = {f"{given} -> {returned}"} if pairs and returned else set()
        assert set(map(str, states.by_name(borders))) == wanted


STATE = {"past_0_key", "present_0_key", "h", "h_out"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"io": "state"}, STATE),
        ({"io": "state", "keep_io": "h.*"}, {"past_0_key", "present_0_key"}),
        ({"io": "half", "keep_io": "logits"}, STATE | {"x"}),
        ({"io": "half", "keep_io": ["[hx]", "p.*"]}, {"h_out", "logits"}),
        ({"io": "half", "keep_io": "past_0_key"}, STATE - {"past_0_key"} | {"x", "logits"}),
    ],
)
def test_what_becomes_half(options, expected):
    """The state alone, and not what `keep_io` names; a name is itself before it is an expression."""
    result = rewrite(text.model(CACHE), Options(**options))
    assert halves(result.model) == expected
    assert result.report.state is None
    assert verify(text.model(CACHE), result.model, io=options["io"]).signature == ()
    assert len(verify(text.model(CACHE), result.model).signature) == len(expected)


def test_the_report_counts_what_it_would_save():
    """Exactly the Casts that --io state does without."""
    kept, halved = (rewrite(text.model(CACHE), Options(io=io)).report for io in ("keep", "state"))
    assert kept.casts_added - halved.casts_added == kept.state.casts > 0
    assert [str(pair) for pair in kept.state.pairs] == ["past_0_key -> present_0_key", "h -> h_out"]
    assert kept.to_json()["state"]["casts"] == kept.state.casts
