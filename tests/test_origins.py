"""Which nodes of a model stand behind a node that onnxruntime executes."""

import onnx
import pytest

from amp_rewrite.placement import saved_graph
from tests import text


def load(tmp_path, name, source):
    """A model given as text, read as a saved graph."""
    onnx.save(text.unchecked(source), tmp_path / name)
    return saved_graph.read(tmp_path / name)


FOUND = {
    "fused": (
        "{ [m] p = MatMul (x, w) [s] y = Mul (p, c) }",
        "{ [new] y = com.microsoft.FusedMatMul <alpha = 0.5> (x, w) }",
        {"new": ("s", "m")},
    ),
    "kept": (
        "{ [m] p = MatMul (x, w) [s] y = Mul (p, c) }",
        "{ [m] p = MatMul (x, w) [s] y = Mul (p, c) }",
        {"m": ("m",), "s": ("s",)},
    ),
    "read elsewhere": (
        "{ [a] p = Add (x, w) [b] q = Erf (p) [c] r = Mul (q, p) [d] y = Add (r, p) }",
        "{ [a] p = Add (x, w) [g] r = com.microsoft.Gelu (p) [d] y = Add (r, p) }",
        {"a": ("a",), "g": ("c", "b"), "d": ("d",)},
    ),
    "inserted": (
        "{ [m] y = MatMul (x, w) }",
        "{ [copy] t = MemcpyToHost (x) [m] y = MatMul (t, w) }",
        {"copy": (), "m": ("m",)},
    ),
    "renamed behind a mover": (
        "{ [m] p = MatMul (x, w) [b] y = Add (p, c) }",
        "{ [new] g = Gemm (x, w, c) [back] y = Reshape (g, s) }",
        {"new": ("b", "m"), "back": ()},
    ),
    "renamed behind a Cast": (
        "{ [m] p = MatMul (x, w) [b] y = Mul (p, c) }",
        "{ [new] g = com.microsoft.FusedMatMul (x, w) [up] y = Cast <to = 10> (g) }",
        {"new": ("b", "m"), "up": ()},
    ),
    "moved past a Transpose": (
        "{ [t] p = Transpose (x) [r] q = Relu (p) [n] y = Neg (q) }",
        "{ [r_token_3] a = Relu (x) [t_token_4] b = Transpose (a) [n] y = Neg (b) }",
        {"r_token_3": ("r",), "t_token_4": ("t",), "n": ("n",)},
    ),
    "folded": (
        "{ [f] p = Neg (w) [m] y = MatMul (x, p) }",
        "<float16[2, 2] p> { [m] y = MatMul (x, p) }",
        {"m": ("m",)},
    ),
}
HEAD = "g (float16[2, 2] x) => (float16[2, 2] y) "


@pytest.mark.parametrize("name", FOUND)
def test_executed_nodes_have_origins(tmp_path, name):
    """By the values that they output, else by their names."""
    before, after, expected = FOUND[name]
    stored = "<float16[2, 2] w, float16[2, 2] c, int64[2] s>"
    head = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
    model = load(tmp_path, "model.onnx", f"{head} {HEAD} {stored} {before}").model
    executed = load(
        tmp_path, "saved.onnx", f"{head} {HEAD} {stored if '<float' not in after else ''} {after}"
    )
    found = saved_graph.find_origins(executed, model)
    assert {node.name: tuple(one.name for one in of) for node, of in found.items()} == expected
    fused = {node.name for node, of in found.items() if saved_graph.is_fused(node, of)}
    assert fused == expected.keys() & {"new", "g"}


def test_a_deep_chain_is_found(tmp_path):
    """Ten thousand fused nodes in a row need no stack."""
    depth = 10_000
    node = onnx.helper.make_node
    chain = [node("Neg", [f"v{i}"], [f"v{i + 1}"], f"n{i}") for i in range(depth)]
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in ("v0", f"v{depth}")]
    for name, nodes in (("a", chain), ("b", [node("Abs", ["v0"], [f"v{depth}"], "all")])):
        graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
        onnx.save(onnx.helper.make_model(graph), tmp_path / name)
    found = saved_graph.find_origins(saved_graph.read(tmp_path / "b"), saved_graph.load(tmp_path / "a"))
    ((_, of),) = found.items()
    assert len(of) == depth
