"""Layers of networks as the ONNX nodes that exporters emit, with random weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MASKED = float(np.finfo(np.float32).min)
"""The fill value of masks in PyTorch."""


class Layers:
    """A graph builder; each method adds nodes and returns the name of their output."""

    def __init__(self, seed: int = 0):
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._random = np.random.default_rng(seed)
        self._numbers: dict[str, int] = {}

    def model(self, name: str) -> onnx.ModelProto:
        """The model so far: opset 17 and IR 8, old enough for any runtime in use."""
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, ir_version=8, opset_imports=opsets, producer_name="amp-rewrite")

    def input(self, name: str, shape: Iterable[int | str], dtype: int = TensorProto.FLOAT) -> str:
        """An input of the model."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, value: str, name: str, shape: Iterable[int | str]) -> None:
        """A float32 output of the model."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"/{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """Adds a node; returns its first output, and the others are named `<first>_1` and so on."""
        made = self._name(operator)
        names = [made, *(f"{made}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(operator, list(inputs), names, name=f"/{made}", **attributes))
        return made

    def constant(self, values: object, dtype: type = np.float32) -> str:
        """A stored tensor of these values."""
        return self._store(np.asarray(values, dtype))

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """A stored tensor of normal random numbers, by default scaled as in He et al. (2015)."""
        fan = math.prod(shape[1:]) if len(shape) > 1 else 1
        factor = np.float32(math.sqrt(2 / fan) if scale is None else scale)
        return self._store(self._random.standard_normal(shape, np.float32) * factor)

    def around(self, size: int, middle: float) -> str:
        """A stored vector of positive numbers around `middle`: scales and variances."""
        drawn = self._random.uniform(0.8, 1.2, size).astype(np.float32)
        return self._store(drawn * np.float32(middle))

    def _store(self, array: np.ndarray) -> str:
        name = self._name("weight")
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def _name(self, kind: str) -> str:
        number = self._numbers[kind] = self._numbers.get(kind, -1) + 1
        return f"{kind}_{number}"

    def linear(self, x: str, wide: int, out: int, *, scale: float = 0.02) -> str:
        """MatMul and Add, as linear layers on three axes are exported."""
        product = self.add("MatMul", x, self.weight(wide, out, scale=scale))
        return self.add("Add", self.weight(out, scale=0.02), product)

    def conv(self, x: str, wide: int, out: int, size: int, *, stride: int = 1, group: int = 1) -> str:
        """A convolution with a bias."""
        weight = self.weight(out, wide // group, size, size)
        return self._conv(x, weight, self.weight(out, scale=0.02), stride=stride, group=group)

    def normed(
        self, x: str, wide: int, out: int, size: int, *, stride: int = 1, group: int = 1, scale: float = 1.0
    ) -> str:
        """A convolution without a bias, and a BatchNormalization."""
        weight = self.weight(out, wide // group, size, size)
        made = self._conv(x, weight, stride=stride, group=group)
        statistics = (self.weight(out, scale=0.1), self.weight(out, scale=0.1), self.around(out, 1.0))
        return self.add("BatchNormalization", made, self.around(out, scale), *statistics, epsilon=1e-5)

    def _conv(self, x: str, *weights: str, stride: int, group: int) -> str:
        size = self.weights[-1 if len(weights) == 1 else -2].dims[-1]
        shape = {"kernel_shape": [size] * 2, "pads": [size // 2] * 4, "strides": [stride] * 2}
        return self.add("Conv", x, *weights, group=group, **shape)

    def norm(self, x: str, wide: int) -> str:
        """LayerNormalization along the last axis."""
        scale, bias = self.around(wide, 1.0), self.weight(wide, scale=0.02)
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def group_norm(self, x: str, wide: int, groups: int) -> str:
        """Group normalisation as PyTorch exports it: an InstanceNormalization of reshaped groups."""
        grouped = self.add("Reshape", x, self.constant([0, groups, -1], np.int64))
        ones, zeros = self.constant(np.ones(groups)), self.constant(np.zeros(groups))
        normed = self.add("InstanceNormalization", grouped, ones, zeros, epsilon=1e-5)
        back = self.add("Reshape", normed, self.add("Shape", x))
        scaled = self.add("Mul", back, self._per_channel(self.around(wide, 1.0)))
        return self.add("Add", scaled, self._per_channel(self.weight(wide, scale=0.02)))

    def _per_channel(self, vector: str) -> str:
        return self.add("Unsqueeze", vector, self.constant([1, 2], np.int64))

    def silu(self, x: str) -> str:
        """x * sigmoid(x)."""
        return self.add("Mul", x, self.add("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """GELU by the error function, in the five nodes that PyTorch exports."""
        erf = self.add("Erf", self.add("Div", x, self.constant(math.sqrt(2))))
        product = self.add("Mul", x, self.add("Add", erf, self.constant(1.0)))
        return self.add("Mul", product, self.constant(0.5))

    def gelu_tanh(self, x: str) -> str:
        """GELU by tanh, with the Pow that exports of GPT-2 contain."""
        cube = self.add("Mul", self.add("Pow", x, self.constant(3.0)), self.constant(0.044715))
        inner = self.add("Mul", self.add("Add", x, cube), self.constant(math.sqrt(2 / math.pi)))
        one = self.add("Add", self.add("Tanh", inner), self.constant(1.0))
        return self.add("Mul", self.add("Mul", x, self.constant(0.5)), one)

    def heads(self, x: str, heads: int, size: int) -> str:
        """[batch, length, heads * size] -> [batch, heads, length, size]."""
        split = self.add("Reshape", x, self.constant([0, -1, heads, size], np.int64))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])

    def attend(self, query: str, key: str, value: str, wide: int, *, mask: str | None = None) -> str:
        """Attention on split heads, with output [batch, length, wide]; a mask is added to the scores."""
        size = wide // HEADS[wide]
        turned = self.add("Transpose", key, perm=[0, 1, 3, 2])
        scores = self.add("Div", self.add("MatMul", query, turned), self.constant(math.sqrt(size)))
        masked = scores if mask is None else self.add("Add", scores, mask)
        seen = self.add("MatMul", self.add("Softmax", masked, axis=-1), value)
        joined = self.add("Transpose", seen, perm=[0, 2, 1, 3])
        return self.add("Reshape", joined, self.constant([0, -1, wide], np.int64))

    def attention(self, x: str, wide: int, *, mask: str | None = None) -> str:
        """Self-attention with its four products."""
        parts = [self.heads(self.linear(x, wide, wide), HEADS[wide], wide // HEADS[wide]) for _ in range(3)]
        return self.linear(self.attend(*parts, wide, mask=mask), wide, wide)

    def mask(self, attended: str) -> str:
        """int64 [batch, length] of ones and zeros -> the additive mask, as BERT is exported."""
        wide = self.add("Unsqueeze", attended, self.constant([1, 2], np.int64))
        inverse = self.add("Sub", self.constant(1.0), self.add("Cast", wide, to=TensorProto.FLOAT))
        return self.add("Mul", inverse, self.constant(MASKED))

    def global_pool(self, x: str) -> str:
        """The mean over the image, [batch, channels]."""
        return self.add("Flatten", self.add("GlobalAveragePool", x), axis=1)

    def classify(self, x: str, wide: int, classes: int) -> str:
        """A Gemm with its weight transposed, as classifiers are exported."""
        return self.add("Gemm", x, self.weight(classes, wide), self.weight(classes, scale=0.02), transB=1)


HEADS = {32: 2, 64: 4, 256: 4, 512: 8, 768: 12}
"""How many heads a width is split into."""
