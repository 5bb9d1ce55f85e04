"""Which nodes have bodies, and which are followed; what is half inside and outside are cases."""

import onnx
import onnx_ir as ir
import pytest

from amp_rewrite.onnx_types import control_flow
from tests.text import model, unchecked


@pytest.mark.parametrize("scanned", [-(2**63), -1, 3, 2**31, 2**63 - 1])
def test_a_scan_that_does_not_fit_its_body_has_no_bindings(scanned):
    """A Scan with an impossible number of inputs is rejected without delay."""
    proto = unchecked(
        f"""g (float[4] s, float[3,4] x) => (float[4] y) {{ y = Scan (s, x) <num_scan_inputs = {scanned},
        body = b (float[4] t, float[4] e) => (float[4] u) {{ u = Add (t, e) }}> }}"""
    )
    assert control_flow.bindings(ir.from_proto(proto).graph[0]) is None


def test_other_nodes_have_no_bindings():
    """A node of another domain, or without control flow, has none, even if it has a body."""
    proto = model(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[4] x) => (float[4] y) {
        a = Relu (x) y = my.Loop (a) <body = b (float[4] s) => (float[4] t) { t = Neg (s) }> }"""
    )
    graph = ir.from_proto(proto).graph
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
