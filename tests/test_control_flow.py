"""Control flow and its bindings; `control_flow.cases` has what is half inside and outside."""

import onnx
import onnx_ir as ir
import pytest

from amp_rewrite.onnx_types import control_flow
from tests.text import model, unchecked

LOOP = """g (float[4,4] x, int64 n, bool c) => (float[4,4] y, float[k,4,4] ys) <float[4,4] w> {
    y, ys = Loop (n, c, x) <body = b (int64 i, bool ci, float[4,4] s)
        => (bool co, float[4,4] t, float[4,4] u) {
        co = Identity (ci)
        [next] t = MatMul (s, w)
        u = Relu (t)
    }>
}"""


# ---- what a binding is


def bindings(text):
    """The bindings of the first control-flow node of a graph, as their ports."""
    graph = _graph(text)
    node = next(node for node in graph if node.op_type in ("If", "Loop", "Scan", "SequenceMap"))
    found = control_flow.bindings(node)
    assert found is not None
    return [
        (str(b.var), b.inputs, b.outputs, [i for _, i in b.enters], [i for _, i in b.leaves]) for b in found
    ]


def _graph(text):
    return ir.from_proto(model(text)).graph


def test_the_borders_of_a_loop():
    """Trip count and condition are not bound; a scan output has no input."""
    assert bindings(LOOP) == [("V[0]", (2,), (0,), [2], [1]), ("V[1]", (), (1,), [], [2])]


def test_the_borders_of_a_branch():
    """A branch result is the same output of both branches."""
    text = """g (bool c, float[1] x) => (float[1] y) {
        y = If (c) < then_branch = t () => (float[1] p) { p = Neg (x) },
                     else_branch = f () => (float[1] q) { q = Abs (x) } >
    }"""
    assert bindings(text) == [("V[0]", (), (0,), [], [0, 0])]


@pytest.mark.parametrize("scanned", [-(2**63), -1, 3, 2**31, 2**63 - 1])
def test_a_scan_that_does_not_fit_its_body_has_no_bindings(scanned):
    """A Scan with an impossible number of inputs is rejected without delay."""
    proto = unchecked(
        f"""g (float[4] s, float[3,4] x) => (float[4] y) {{
            y = Scan (s, x) <num_scan_inputs = {scanned}, body = b (float[4] t, float[4] e)
                => (float[4] u) {{ u = Add (t, e) }}>
        }}"""
    )
    assert control_flow.bindings(ir.from_proto(proto).graph[0]) is None


def test_other_nodes_have_no_bindings():
    """A node of another domain, or without control flow, has none, even if it has a body."""
    graph = _graph(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4] x) => (float[4] y) {
            a = Relu (x)
            y = my.Loop (a) <body = b (float[4] s) => (float[4] t) { t = Neg (s) }>
        }"""
    )
    assert [control_flow.bindings(node) for node in graph] == [None, None]
    assert [len(list(control_flow.bodies(node))) for node in graph] == [0, 1]


def test_no_other_operator_of_the_default_domain_has_bodies():
    """`bodies` looks at no other operator of the default domain: none has a graph attribute."""
    kinds = (onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS)
    holding = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and any(a.type in kinds for a in schema.attributes.values())
    }
    assert holding == {"If", "Loop", "Scan", "SequenceMap"}
