"""Functions inlined: their number, their names; `inlining.cases` has what becomes of calls."""

from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx_ir.passes.common import InlinePass, inliner

from amp_rewrite import analyze, emulate, measure_coverage, rewrite
from amp_rewrite.errors import ModelError
from amp_rewrite.model import inlining
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.options import Options
from tests import text

GRAPH = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w> { %s }
"""
PRODUCT = """<domain: "my", opset_import: ["" : 17]> f (a, b) => (c) { t = MatMul(a, b)  c = Relu(t) }"""
CALL = GRAPH % "y = my.f(x, w)"


def operators(model):
    """The operators of the main graph, in order."""
    return [node.op_type for node in model.graph.node]


LEFT_OUT = """<domain: "my", opset_import: ["" : 17]> f (a, b) => (c, d) { c = MatMul(a, b)  d = Relu(c) }"""


def test_outputs_that_a_call_does_not_even_mention():
    """A call may have fewer outputs than the function, although onnx's checker complains."""
    proto = text.model(GRAPH % 'y, "" = my.f(x, w)' + LEFT_OUT)
    del proto.graph.node[0].output[1]
    result = rewrite(proto, Options(check=False))
    assert text.complaints(result) == ()
    onnx.checker.check_model(result.model, full_check=True)
    assert {"MatMul", "Relu"} < set(operators(result.model))


def test_a_sparse_initializer_beside_functions():
    """It is unknown to onnx-ir; the functions are inlined all the same, and it is preserved."""
    proto = text.unchecked(GRAPH % "a = my.f(x, w)  y = Add(a, s)" + PRODUCT)
    values, indices = np.array([3.0], np.float32), np.array([5])
    values, indices = numpy_helper.from_array(values, "s"), numpy_helper.from_array(indices, "at")
    proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4, 4]))
    result = rewrite(proto)
    assert sorted(operators(result.model)) == ["Add", "Cast", "Cast", "Cast", "MatMul", "Relu"]
    assert [info.name for info in result.model.graph.input] == ["x"]
    assert result.model.graph.sparse_initializer == proto.graph.sparse_initializer
    assert "functions" not in "".join(result.report.warnings)
    text.agree(proto, result.model)


# The number of nodes after inlining


def doubling(depth):
    """A chain of functions, each of which calls the previous one twice."""
    text_of = """<domain: "my", opset_import: ["" : 17, "my" : 1]> f%d (a) => (c) { t = %s (a) c = %s (t) }"""
    bodies = [text_of % (0, "Relu", "Relu")]
    bodies += [text_of % (i, f"my.f{i - 1}", f"my.f{i - 1}") for i in range(1, depth + 1)]
    return text.unchecked(GRAPH % f"m = MatMul (x, w) y = my.f{depth} (m)" + "".join(bodies))


@pytest.mark.parametrize("job", [rewrite, analyze, emulate, measure_coverage])
def test_functions_that_come_to_any_number_are_refused(job):
    """The count precedes inlining; the error names the largest function, the number and a remedy."""
    with pytest.raises(ModelError) as caught:
        job(doubling(30))
    count = 2**31
    assert caught.value.problem == (
        f"the model's functions come to {count + 1:,} nodes when they are inlined, my:f30 alone to "
        f"{count:,}, and 1,000,000 are the limit"
    )
    assert "`Options.keep_functions`" in caught.value.remedy


def test_numbers_beyond_sense():
    """A chain of thousands results in a number with more digits than Python prints."""
    with pytest.raises(ModelError, match=r"come to 2\^2001 or more nodes when"):
        rewrite(doubling(2000))


def test_what_helps_there_helps():
    """Kept functions are not inlined at all, also not by onnx's inference or checker."""
    made = rewrite(doubling(40), Options(keep_functions=True))
    assert operators(made.model) == ["Cast", "MatMul", "Cast", "f40"]
    assert made.report.ok


def test_counted_as_they_are_inlined(monkeypatch):
    """The count is the number of nodes after inlining, including calls in kept functions."""
    graph = """<ir_version: 8, opset_import: ["" : 17, "my" : 1, "com.microsoft" : 1]>
    g (float[4, 4] x, bool k) => (float[4, 4] y) <float[4, 4] w> {
        z = If (k) <
            then_branch = t () => (float[4, 4] p) { p = my.f(x, w) },
            else_branch = e () => (float[4, 4] q) { r = my.f(x, x) q = my.f (r, w) }
        >
        y = com.microsoft.Gelu (z)
    }
    <domain: "com.microsoft", opset_import: ["" : 17, "my" : 1]> Gelu (v) => (u) { u = my.f (v, v) }
    <domain: "my", opset_import: ["" : 17, "my" : 1]> loose (v) => (u) { t = my.f (v, v) u = Neg (t) }
    """
    model = ir.from_proto(text.model(graph + PRODUCT))
    kept = [("com.microsoft", "Gelu", "")]
    counted = element_types.node_count(model, kept)
    inlining.inline(model)
    holders = (model.graph, *model.functions.values())
    assert counted == sum(1 for holder in holders for _ in holder.all_nodes())
    monkeypatch.setattr(element_types, "MOST_NODES", counted - 1)
    with pytest.raises(ModelError):
        element_types.refuse_too_many(ir.from_proto(text.model(graph + PRODUCT)), kept)


def test_large_models_are_their_own_measure(monkeypatch):
    """Calls of functions with one node add nothing: any number of them is accepted."""
    monkeypatch.setattr(element_types, "MOST_NODES", 3)
    one = '<domain: "my", opset_import: ["" : 17]> one (a) => (c) { c = Relu (a) }'
    body = "v0 = Relu (x)" + "".join(f" v{i + 1} = my.one (v{i})" for i in range(8)) + " y = Neg (v8)"
    assert len(operators(rewrite(text.model(GRAPH % body + one)).model)) == 10


NAMES = """<domain: "my", opset_import: ["" : 17, "my" : 1]>
f (a, b) => (c) {
    [n] x_2 = MatMul (a, b)
    [n] k = ReduceMax <keepdims = 0> (x_2)
    q = Cast <to = 9> (k)
    [n_2] x = If (q) <
        then_branch = t () => (p) { [n] p = my.h (x_2) },
        else_branch = e () => (x_3) { [n_2] x_3 = Neg (x_2) }
    >
    c = my.h (x)
}
<domain: "my", opset_import: ["" : 17]> h (a) => (c) { [n] x = Neg (a) c = Relu (x) }"""


def test_names_are_those_of_onnx_ir_s_pass(monkeypatch):
    """The linear-time inlining gives the same names as onnx-ir's own pass."""
    proto = text.model(GRAPH % "[n] x_2 = my.f (x, w) z = my.f (x_2, w) [n_3] y = my.f (z, x)" + NAMES)
    ours = rewrite(proto).model
    monkeypatch.setattr(inlining, "_Inlining", InlinePass)
    assert rewrite(proto).model == ours


def test_names_are_looked_for_once(monkeypatch):
    """With many calls, the search for a free name continues where the last one stopped."""
    looked = []
    monkeypatch.setattr(inliner, "_make_unique_name", partial(_counting, inliner._make_unique_name, looked))
    body = "".join(f"v{i + 1} = my.f (v{i}, w) " for i in range(300))
    rewrite(text.model(GRAPH % f"v0 = Relu (x) {body} y = Neg (v300)" + PRODUCT))
    assert len(looked) == 1200  # a node and a value for each of two nodes
    assert not any(looked)


def _counting(search, looked, name, callstack, used):
    """The pass's own search, recording whether the name itself was taken."""
    looked.append(name in used)
    return search(name, callstack, used)
