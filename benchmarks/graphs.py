"""Generated graphs of any size: blocks as PyTorch exports them, and graphs of many equal parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

WIDTH = 32
HEADS = 4


class Transformer:
    """Blocks as the TorchScript exporter emits them: decomposed norms, shapes and scalars as Constants."""

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self._random = np.random.default_rng(seed)
        value = "x"
        while len(self.nodes) < nodes:
            value = self._block(value)
        self._output = value

    def model(self) -> onnx.ModelProto:
        """The model: float32, opset 17, IR 8, with the batch and the length symbolic."""
        shape = ["batch", "length", WIDTH]
        graph = helper.make_graph(
            self.nodes,
            "transformer",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(self._output, TensorProto.FLOAT, shape)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _block(self, value: str) -> str:
        attended = self._add(value, self._attention(self._norm(value)))
        return self._add(attended, self._feed_forward(self._norm(attended)))

    def _norm(self, value: str) -> str:
        mean = self._node("ReduceMean", value, axes=[-1])
        centred = self._node("Sub", value, mean)
        square = self._node("Pow", centred, self._constant(np.float32(2)))
        variance = self._node("ReduceMean", square, axes=[-1])
        safe = self._node("Add", variance, self._constant(np.float32(1e-5)))
        normal = self._node("Div", centred, self._node("Sqrt", safe))
        return self._add(self._node("Mul", normal, self._weight(WIDTH)), self._weight(WIDTH))

    def _attention(self, value: str) -> str:
        query, key, data = (self._heads(self._linear(value, WIDTH)) for _ in range(3))
        turned = self._node("Transpose", key, perm=[0, 1, 3, 2])
        scores = self._node("MatMul", query, turned)
        root = self._constant(np.float32((WIDTH // HEADS) ** 0.5))
        weights = self._node("Softmax", self._node("Div", scores, root), axis=-1)
        mixed = self._node("Transpose", self._node("MatMul", weights, data), perm=[0, 2, 1, 3])
        flat = self._node("Reshape", mixed, self._constant(np.array([0, 0, WIDTH])))
        return self._linear(flat, WIDTH)

    def _heads(self, value: str) -> str:
        shape = self._constant(np.array([0, 0, HEADS, WIDTH // HEADS]))
        return self._node("Transpose", self._node("Reshape", value, shape), perm=[0, 2, 1, 3])

    def _feed_forward(self, value: str) -> str:
        wide = self._linear(value, 2 * WIDTH)
        scaled = self._node("Div", wide, self._constant(np.float32(2**0.5)))
        gate = self._add(self._node("Erf", scaled), self._constant(np.float32(1)))
        half = self._node("Mul", self._node("Mul", wide, gate), self._constant(np.float32(0.5)))
        return self._linear(half, WIDTH, rows=2 * WIDTH)

    def _linear(self, value: str, columns: int, rows: int = WIDTH) -> str:
        return self._add(self._node("MatMul", value, self._weight(rows, columns)), self._weight(columns))

    def _add(self, left: str, right: str) -> str:
        return self._node("Add", left, right)

    def _node(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = f"/blocks/{operator}_{len(self.nodes)}"
        made = f"{name}_output_0"
        self.nodes.append(helper.make_node(operator, inputs, [made], name, **attributes))
        return made

    def _constant(self, value: np.generic | np.ndarray) -> str:
        return self._node("Constant", value=numpy_helper.from_array(np.asarray(value)))

    def _weight(self, *shape: int) -> str:
        name = f"weight_{len(self.weights)}"
        array = self._random.standard_normal(shape).astype(np.float32) * 0.1
        self.weights.append(numpy_helper.from_array(array, name))
        return name


SIDE = 8
"""Rows and columns of the matrices in the families below."""


def _model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    functions: Sequence[FunctionProto] = (),
    flags: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model of square matrices with one weight `w`; `flags` are Boolean inputs."""
    square = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIDE, SIDE]) for name in inputs]
    scalars = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in flags]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", SIDE]) for name in outputs]
    weight = numpy_helper.from_array(np.eye(SIDE, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "adversarial", [*square, *scalars], given, [weight])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid("local", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


def transformer(nodes: int) -> onnx.ModelProto:
    """A sequence of transformer blocks."""
    return Transformer(nodes).model()


def variadic(nodes: int, operator: str) -> onnx.ModelProto:
    """One variadic node whose n inputs each get a Cast: products are half, what joins them is float32."""
    count = nodes // 2
    made = [helper.make_node("MatMul", ["x", "w"], [f"m{i}"]) for i in range(count)]
    made += [helper.make_node("Exp", [f"m{i}"], [f"e{i}"]) for i in range(count)]
    attributes = {"axis": 0} if operator == "Concat" else {}
    joined = helper.make_node(
        operator, [f"{'e' if i % 2 else 'm'}{i}" for i in range(count)], ["c"], **attributes
    )
    return _model([*made, joined, helper.make_node("MatMul", ["c", "w"], ["y"])])


def masks(nodes: int) -> onnx.ModelProto:
    """A chain of n masks before one softmax, each with a fill of its own."""
    count = nodes // 2
    made = [helper.make_node("Constant", [], [f"k{i}"], value_float=-1e9 - 1e6 * i) for i in range(count)]
    made.append(helper.make_node("MatMul", ["x", "w"], ["v0"]))
    made += [helper.make_node("Where", [f"f{i}", f"k{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    made.append(helper.make_node("Softmax", [f"v{count}"], ["s"]))
    made.append(helper.make_node("MatMul", ["s", "w"], ["y"]))
    return _model(made, flags=[f"f{i}" for i in range(count)])


def inputs(nodes: int) -> onnx.ModelProto:
    """A Concat of n inputs of the model, each of which gets a Cast before a product."""
    names = [f"x{i}" for i in range(nodes)]
    joined = helper.make_node("Concat", names, ["c"], axis=0)
    return _model([joined, helper.make_node("MatMul", ["c", "w"], ["y"])], names)


def fan_out(nodes: int) -> onnx.ModelProto:
    """One value with n readers, every other one in half, and a sum of what these return."""
    operators = ("MatMul", "Exp")
    made = [helper.make_node("MatMul", ["x", "w"], ["v"])]
    for i in range(nodes):
        operator = operators[i % 2]
        made.append(helper.make_node(operator, ["v", "w"] if operator == "MatMul" else ["v"], [f"r{i}"]))
    names = [f"r{i}" for i in range(nodes)]
    return _model(made, outputs=names)


def ladder(nodes: int) -> onnx.ModelProto:
    """Two chains with a rung at every step: 2^n paths lead from one end to the other."""
    left, right, made = "x", "x", []
    for i in range(nodes // 4):
        made.append(helper.make_node("MatMul", [left, "w"], [f"a{i}"]))
        made.append(helper.make_node("Exp" if i % 3 == 0 else "Tanh", [right], [f"b{i}"]))
        made.append(helper.make_node("Add", [f"a{i}", f"b{i}"], [f"l{i}"]))
        made.append(helper.make_node("Sub", [f"a{i}", f"b{i}"], [f"r{i}"]))
        left, right = f"l{i}", f"r{i}"
    return _model([*made, helper.make_node("Add", [left, right], ["y"])])


def loop_states(nodes: int) -> onnx.ModelProto:
    """A Loop that carries n / 3 values; its body changes each by a product and an exponential or a Relu."""
    count = nodes // 3
    inside = [helper.make_node("Identity", ["on"], ["on_after"])]
    for i in range(count):
        inside.append(helper.make_node("MatMul", [f"s{i}", "w"], [f"p{i}"]))
        inside.append(helper.make_node("Exp" if i % 2 else "Relu", [f"p{i}"], [f"t{i}"]))
    states = [helper.make_tensor_value_info(f"s{i}", TensorProto.FLOAT, [SIDE, SIDE]) for i in range(count)]
    after = [helper.make_tensor_value_info(f"t{i}", TensorProto.FLOAT, [SIDE, SIDE]) for i in range(count)]
    body = helper.make_graph(
        inside,
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            *states,
        ],
        [helper.make_tensor_value_info("on_after", TensorProto.BOOL, []), *after],
    )
    ends = [f"e{i}" for i in range(count)]
    steps = numpy_helper.from_array(np.array(3), "steps")
    loop = helper.make_node("Loop", ["steps", "", *["x"] * count], ends, body=body)
    joined = helper.make_node("Sum", ends, ["y"])
    return _model([helper.make_node("Constant", [], ["steps"], value=steps), loop, joined])


def if_chain(nodes: int) -> onnx.ModelProto:
    """If after If, with a product in one branch and an exponential in the other."""
    value, made = "x", []
    for i in range(nodes // 3):
        branches = {}
        for branch, operator in (("then_branch", "MatMul"), ("else_branch", "Exp")):
            name = f"{branch}{i}"
            arguments = [value, "w"] if operator == "MatMul" else [value]
            given = helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIDE, SIDE])
            branches[branch] = helper.make_graph(
                [helper.make_node(operator, arguments, [name])], name, [], [given]
            )
        made.append(helper.make_node("If", ["go"], [f"i{i}"], **branches))
        value = f"i{i}"
    return _model([*made, helper.make_node("Relu", [value], ["y"])], flags=["go"])


def calls(nodes: int) -> onnx.ModelProto:
    """A chain of calls of one function of four nodes."""
    inside = [
        helper.make_node("MatMul", ["a", "b"], ["p"]),
        helper.make_node("Exp", ["p"], ["q"]),
        helper.make_node("Add", ["q", "a"], ["r"]),
        helper.make_node("Tanh", ["r"], ["c"]),
    ]
    layer = helper.make_function("local", "Layer", ["a", "b"], ["c"], inside, [helper.make_opsetid("", 17)])
    value, made = "x", []
    for i in range(nodes // 4):
        made.append(helper.make_node("Layer", [value, "w"], [f"v{i}"], domain="local"))
        value = f"v{i}"
    return _model([*made, helper.make_node("Relu", [value], ["y"])], functions=[layer])


def nested_calls(nodes: int) -> onnx.ModelProto:
    """Functions in functions: each level calls the one below twice, down to a function of two nodes."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    bottom = [helper.make_node("MatMul", ["a", "b"], ["p"]), helper.make_node("Tanh", ["p"], ["c"])]
    functions = [helper.make_function("local", "Level0", ["a", "b"], ["c"], bottom, opsets)]
    levels = max(1, round(np.log2(nodes / 2)))
    for level in range(1, levels):
        inside = [
            helper.make_node(f"Level{level - 1}", ["a", "b"], ["p"], domain="local"),
            helper.make_node(f"Level{level - 1}", ["p", "b"], ["c"], domain="local"),
        ]
        functions.append(helper.make_function("local", f"Level{level}", ["a", "b"], ["c"], inside, opsets))
    top = f"Level{levels - 1}"
    made = [
        helper.make_node(top, ["x", "w"], ["m"], domain="local"),
        helper.make_node(top, ["m", "w"], ["y"], domain="local"),
    ]
    return _model(made, functions=functions)


def many_functions(nodes: int) -> onnx.ModelProto:
    """A function for every four nodes, each called once."""
    opsets = [helper.make_opsetid("", 17)]
    functions, made, value = [], [], "x"
    for i in range(nodes // 4):
        inside = [
            helper.make_node("MatMul", ["a", "b"], ["p"]),
            helper.make_node("Exp", ["p"], ["q"]),
            helper.make_node("Add", ["q", "a"], ["r"]),
            helper.make_node("Tanh", ["r"], ["c"]),
        ]
        functions.append(helper.make_function("local", f"Layer{i}", ["a", "b"], ["c"], inside, opsets))
        made.append(helper.make_node(f"Layer{i}", [value, "w"], [f"v{i}"], domain="local"))
        value = f"v{i}"
    return _model([*made, helper.make_node("Relu", [value], ["y"])], functions=functions)


FAMILIES: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "transformer": transformer,
    "Concat": functools.partial(variadic, operator="Concat"),
    "Sum": functools.partial(variadic, operator="Sum"),
    "Max": functools.partial(variadic, operator="Max"),
    "inputs": inputs,
    "masks": masks,
    "fan-out": fan_out,
    "ladder": ladder,
    "loop states": loop_states,
    "If chain": if_chain,
    "calls": calls,
    "nested calls": nested_calls,
    "functions": many_functions,
}
"""Graphs of about n nodes, by what they have much of."""
