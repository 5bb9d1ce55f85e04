"""Generated graphs of any size, like exports of PyTorch: a sequence of transformer blocks."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

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
