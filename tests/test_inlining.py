import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from amp_rewrite import rewrite
from amp_rewrite.options import Level, Options
from tests import text

GRAPH = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w> { %s }
"""
PRODUCT = """<domain: "my", opset_import: ["" : 17]> f (a, b) => (c) { t = MatMul(a, b)  c = Relu(t) }"""
CALL = GRAPH % "y = my.f(x, w)"


def operators(model):
    """The operators of the main graph, in order."""
    return [node.op_type for node in model.graph.node]


def loads(model):
    """A result is valid in full, and gives what the original gives."""
    onnx.checker.check_model(model, full_check=True)
    return model


def test_calls_become_nodes():
    """A function's body stands where it was called, and is coloured like everything else."""
    proto = text.model(CALL + PRODUCT)
    made = loads(rewrite(proto).model)
    assert operators(made) == ["Cast", "MatMul", "Relu", "Cast"]
    assert not made.functions
    text.agree(proto, made)


def test_a_function_may_be_called_twice():
    """Every call gets nodes and values of its own."""
    proto = text.model(GRAPH % "z = my.f(x, w)  y = my.f(z, w)" + PRODUCT)
    made = loads(rewrite(proto).model)
    assert operators(made) == ["Cast", "MatMul", "Relu", "MatMul", "Relu", "Cast"]
    text.agree(proto, made)


def test_functions_may_call_functions():
    """Nested calls are taken apart to the last."""
    outer = '<domain: "my", opset_import: ["" : 17, "my" : 1]> h (a, b) => (c) { c = my.f(a, b) }'
    proto = text.model(GRAPH % "y = my.h(x, w)" + outer + PRODUCT)
    assert operators(loads(rewrite(proto).model)) == ["Cast", "MatMul", "Relu", "Cast"]


def test_attributes_are_put_in():
    """A reference to a function's attribute becomes what the call says, or else the default."""
    body = """<domain: "my", opset_import: ["" : 17]>
    f <k, alpha: float = 0.25> (a, b) => (c) {
        t = MatMul(a, b)  r = LeakyRelu <alpha: float = @alpha> (t)
        e = Constant <value_float: float = @k> ()  c = Mul(r, e)
    }"""
    proto = text.model(GRAPH % "y = my.f <k = 0.5> (x, w)" + body)
    made = loads(rewrite(proto).model)
    leaky = next(node for node in made.graph.node if node.op_type == "LeakyRelu")
    assert leaky.attribute[0].f == 0.25
    text.agree(proto, made)


def test_domains_of_a_function_are_imported():
    """What only a function imported, the model imports afterwards."""
    body = """<domain: "my", opset_import: ["" : 17, "com.microsoft" : 1]>
    f (a, b) => (c) { c = com.microsoft.FusedMatMul(a, b) }"""
    made = rewrite(text.model(CALL + body)).model
    assert {entry.domain: entry.version for entry in made.opset_import}["com.microsoft"] == 1
    assert operators(made) == ["Cast", "FusedMatMul", "Cast"]


def test_calls_in_subgraphs_become_nodes():
    """A call inside of a branch is taken apart too."""
    graph = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[4, 4] x, bool k) => (float[4, 4] y) <float[4, 4] w> {
        y = If (k) <
            then_branch = t () => (float[4, 4] p) { p = my.f(x, w) },
            else_branch = e () => (float[4, 4] q) { q = Identity(x) }
        >
    }"""
    made = loads(rewrite(text.model(graph + PRODUCT)).model)
    assert not made.functions
    assert "MatMul" in "".join(text.nodes(made))


def test_a_function_may_be_called_with_several_types():
    """What a function says of the types inside holds for one call, and not for the next."""
    graph = """<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
    g (float[4,4] x, double[4,4] d) => (float[4,4] y, double[4,4] z) { y = my.f(x, x)  z = my.f(d, d) }
    <domain: "my", opset_import: ["" : 21]> f (a, b) => (c) <float[4,4] t> { t = MatMul(a, b) c = Relu(t) }"""
    proto = text.model(graph)
    made = loads(rewrite(proto).model)
    assert not made.functions
    text.agree(proto, made)


LEFT_OUT = """<domain: "my", opset_import: ["" : 17]> f (a, b) => (c, d) { c = MatMul(a, b)  d = Relu(c) }"""


@pytest.mark.parametrize("call", ['y, "" = my.f(x, w)', '"", y = my.f(x, w)'])
def test_an_output_that_a_call_leaves_out(call):
    """The nodes of the body make it all the same, and read it."""
    proto = text.model(GRAPH % call + LEFT_OUT)
    made = loads(rewrite(proto).model)
    assert {"MatMul", "Relu"} < set(operators(made))
    assert all(name for node in made.graph.node for name in node.output)
    text.agree(proto, made)


def test_outputs_that_a_call_does_not_even_mention():
    """A call may stop at the last output that is wanted, whatever onnx's checker has against that."""
    proto = text.model(GRAPH % 'y, "" = my.f(x, w)' + LEFT_OUT)
    del proto.graph.node[0].output[1]
    result = rewrite(proto, Options(check=False))
    assert result.report.warnings == ()
    assert {"MatMul", "Relu"} < set(operators(loads(result.model)))


def test_a_function_that_has_the_name_of_an_operator_stays():
    """Which of the two a call means is up to the runtime: it stays a call, in float32; others are inlined."""
    graph = """<ir_version: 8, opset_import: ["" : 17, "my" : 1, "com.microsoft" : 1]>
    g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { h = my.f(x, w)  y = com.microsoft.Gelu(h) }
    <domain: "com.microsoft", opset_import: ["" : 17]> Gelu (v) => (u) { u = Relu(v) }"""
    proto = text.model(graph + PRODUCT)
    result = rewrite(proto, Options(level=Level.UNSAFE_FORCE_ALL))
    assert operators(loads(result.model)) == ["Cast", "MatMul", "Relu", "Cast", "Gelu"]
    assert [function.name for function in result.model.functions] == ["Gelu"]
    assert result.report.warnings == (
        "functions stay float32: there are operators of the same name (com.microsoft:Gelu)",
    )
    text.agree(proto, result.model)


def test_what_a_kept_function_makes_of_sequences_is_unknown():
    """What reads it stays float32, although all that it gives is a tensor."""
    graph = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[4,4] x) => (float[8,4] y) <float[4,4] w> {
        m = MatMul (x, w)
        s = my.pair (m, x)
        y = ConcatFromSequence <axis = 0> (s)
    }
    <domain: "my", opset_import: ["" : 17]> pair (a, b) => (c) { c = SequenceConstruct (a, b) }"""
    proto = text.model(graph)
    made = rewrite(proto, Options(keep_functions=True, level=Level.UNSAFE_FORCE_ALL)).model
    assert operators(loads(made)) == ["Cast", "MatMul", "Cast", "pair", "ConcatFromSequence"]
    text.agree(proto, made)


def test_kept_functions_stay_float32():
    """When functions are to be kept, calls are opaque: what is around them is rewritten, they are not."""
    proto = text.model(GRAPH % "h = MatMul(x, w)  y = my.f(h, w)" + PRODUCT)
    made = loads(rewrite(proto, Options(keep_functions=True)).model)
    assert operators(made)[-1] == "f"
    assert made.functions == ir.to_proto(ir.from_proto(proto)).functions
    assert text.types(made)["w__float16"] == "FLOAT16"
    text.agree(proto, made)


def test_a_model_that_does_not_change_keeps_its_functions():
    """Inlining alone is no change: where nothing becomes half, the model comes out as it came in."""
    body = '<domain: "my", opset_import: ["" : 17]> f (a, b) => (c) { t = Exp(a)  c = Pow(t, b) }'
    proto = text.model(CALL + body)
    assert rewrite(proto).model == proto


@pytest.mark.parametrize("opset", [14, 16, 18, 21])
def test_a_function_of_another_opset_with_the_same_operators_is_inlined(opset):
    """MatMul and Relu are in opsets 14 to 21 what they are in the model's 17."""
    proto = text.model(CALL + PRODUCT.replace('"" : 17', f'"" : {opset}'))
    made = loads(rewrite(proto).model)
    assert {"MatMul", "Relu"} <= set(operators(made))
    assert made.opset_import == proto.opset_import
    text.agree(proto, made)


@pytest.mark.parametrize(
    ("imports", "reason"),
    [('"" : 12', "version 17 in the model but version 12"), ('"" : 17, "my" : 1', "Cyclic")],
)
def test_what_cannot_be_inlined_stays(imports, reason):
    """Functions of an opset with other operators, or that call themselves, stay; a warning says why."""
    call = "c = my.f(t, b)" if "my" in imports else "c = Relu(t)"
    body = f'<domain: "my", opset_import: [{imports}]> f (a, b) => (c) {{ t = MatMul(a, b)  {call} }}'
    proto = onnx.parser.parse_model(GRAPH.replace("<float[4, 4] w>", "") % "y = my.f(x, x)" + body)
    result = rewrite(proto)
    assert result.model == proto
    (warning,) = result.report.warnings
    assert reason in warning
    assert "\n" not in warning


def test_a_function_that_reads_what_its_caller_has():
    """ONNX forbids it and onnxruntime takes it: the caller's value is read, in the type that it has now."""
    body = '<domain: "my", opset_import: ["" : 17]> f (v) => (u) { u = Add(v, a) }'
    proto = text.unchecked(GRAPH % "a = MatMul(x, w)  y = my.f(a)" + body)
    made = rewrite(proto).model
    assert operators(made) == ["Cast", "MatMul", "Add", "Cast"]
    onnx.checker.check_model(made, full_check=True)


def test_a_sparse_initializer_beside_functions():
    """It is no value that onnx-ir knows of; the functions are inlined all the same, and it is there again."""
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
