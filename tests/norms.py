"""Norms that are written out, in every spelling, as models: between two products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

FLOAT = onnx.TensorProto.FLOAT
SHAPE = (2, 4, 8)


@dataclass(frozen=True)
class Spelling:
    """How a norm is written.

    `kind` is centred (LayerNormalization), mean (RMSNormalization) or sum (LpNormalization). `square` is pow,
    mul or reduction (ReduceSumSquare, ReduceL2); `root` is what the data are divided by, or multiplied with.
    `bound` keeps that from zero. `beside` is what else reads the data, `source` what makes them.
    """

    kind: str = "centred"
    square: str = "pow"
    root: str = "sqrt-div"
    bound: str = "add"
    axes: tuple[int, ...] = (-1,)
    swapped: bool = False
    twice: bool = False
    weight: bool = True
    bias: bool = True
    beside: str = ""
    source: str = "product"
    opset: int = 17

    def __str__(self) -> str:
        plain = Spelling()
        said = (f"{f.name}={getattr(self, f.name)}" for f in fields(self) if self != plain)
        return " ".join(each for each in said if not each.endswith(f"={getattr(plain, each.split('=')[0])}"))


OPSETS = (11, 12, 13, 15, 16, 17, 18, 20, 22)
KINDS = ("centred", "mean", "sum")
CHOICES = {
    "square": ("mul", "reduction"),
    "root": ("sqrt-inverse-mul", "sqrt-reciprocal-mul", "inverse-sqrt-mul", "pow-mul", "pow-div"),
    "bound": ("max", "clip", "expanded"),
    "axes": ((2,), (-2, -1), (1,)),
    "swapped": (True,),
    "twice": (True,),
    "weight": (False,),
    "bias": (False,),
    "beside": ("output", "softmax", "norm", "residual"),
    "source": ("input", "table"),
}


def spellings(*opsets: int) -> Iterator[Spelling]:
    """Every kind at every opset, and every other choice with each kind at some, also as exporters do."""
    for kind in KINDS:
        yield from (Spelling(kind, opset=opset) for opset in OPSETS)
        for name, others in CHOICES.items():
            for other in others:
                yield from (replace(Spelling(kind, opset=opset), **{name: other}) for opset in opsets)
    for opset in opsets:  # as PyTorch's older and newer exporter, and TensorFlow's, have them
        yield Spelling("mean", root="sqrt-inverse-mul", swapped=True, bias=False, opset=opset)
        yield Spelling("mean", root="sqrt-reciprocal-mul", swapped=True, bias=False, opset=opset)
        yield Spelling("centred", "mul", "sqrt-reciprocal-mul", opset=opset)
        yield Spelling("sum", "reduction", bound="clip", weight=False, bias=False, opset=opset)


def model(spelling: Spelling) -> onnx.ModelProto:
    """The model of a norm."""
    return _Writer(spelling).model()


class _Writer:
    def __init__(self, spelling: Spelling) -> None:
        self._way = spelling
        self._nodes: list[onnx.NodeProto] = []
        self._stored: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def model(self) -> onnx.ModelProto:
        way, width = self._way, SHAPE[-1]
        data = self._data()
        value = self._normalised(data)
        if way.weight:
            value = self._node("Mul", *self._pair(value, self._numbers(0.5 + self._random.random(width))))
        if way.bias:
            value = self._node("Add", *self._pair(value, self._numbers(self._random.random(width) - 0.5)))
        given = [helper.make_tensor_value_info("x", FLOAT, SHAPE)]
        if way.source == "table":
            given = [helper.make_tensor_value_info("x", onnx.TensorProto.INT64, SHAPE[:2])]
        made = [self._product(value), *self._beside(data)]
        shown = [helper.make_tensor_value_info(name, FLOAT, SHAPE) for name in made]
        graph = helper.make_graph(self._nodes, "g", given, shown, self._stored)
        imports = [helper.make_opsetid("", way.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def _data(self) -> str:
        if self._way.source == "table":
            return self._node("Gather", self._numbers(self._random.standard_normal((8, SHAPE[-1]))), "x")
        return "x" if self._way.source == "input" else self._product("x")

    def _normalised(self, data: str) -> str:
        way, value, other = self._way, data, data
        if way.kind == "centred":
            mean = self._reduced("ReduceMean", data)
            value = other = self._node("Sub", data, mean)
            if way.twice:
                other = self._node("Sub", data, mean)
        return self._quotient(other, self._bounded(self._squares(value)))

    def _squares(self, value: str) -> str:
        """The mean or the sum of the squares."""
        way = self._way
        if way.square == "reduction" and way.kind == "sum":
            return self._reduced("ReduceSumSquare", value)
        if way.square == "reduction":  # a mean as a sum over a number of elements
            size = np.prod([SHAPE[axis] for axis in way.axes])
            return self._node("Div", self._reduced("ReduceSumSquare", value), self._numbers(size))
        square = ("Mul", value, value) if way.square == "mul" else ("Pow", value, self._numbers(2))
        return self._reduced("ReduceSum" if way.kind == "sum" else "ReduceMean", self._node(*square))

    def _bounded(self, value: str) -> str:
        least = self._numbers(1e-5)
        if self._way.bound == "clip":
            return self._node("Clip", value, least)
        if self._way.bound == "max":
            return self._node("Max", *self._pair(value, least))
        value = self._node("Add", *self._pair(value, least))
        if self._way.bound != "expanded":
            return value
        return self._node("Expand", value, self._whole(SHAPE))

    def _quotient(self, value: str, squares: str) -> str:
        root, one = self._way.root, self._numbers(1)
        if root == "pow-mul":
            return self._scaled(value, self._node("Pow", squares, self._numbers(-0.5)))
        if root == "pow-div":
            return self._node("Div", value, self._node("Pow", squares, self._numbers(0.5)))
        if root == "inverse-sqrt-mul":
            return self._scaled(value, self._node("Sqrt", self._node("Div", one, squares)))
        norm = self._node("Sqrt", squares)
        if root == "sqrt-div":
            return self._node("Div", value, norm)
        if root == "sqrt-reciprocal-mul":
            return self._scaled(value, self._node("Reciprocal", norm))
        return self._scaled(value, self._node("Div", one, norm))

    def _scaled(self, value: str, factor: str) -> str:
        return self._node("Mul", *self._pair(value, factor))

    def _beside(self, data: str) -> list[str]:
        """What else the model shows of the data."""
        if self._way.beside == "output":
            return [self._node("Identity", data)]
        if self._way.beside == "softmax":
            return [self._node("Exp", data)]
        if self._way.beside == "norm":
            return [self._product(self._normalised(data))]
        return [self._product(self._node("Add", data, "x"))] if self._way.beside == "residual" else []

    def _product(self, value: str) -> str:
        width = SHAPE[-1]
        return self._node("MatMul", value, self._numbers(self._random.standard_normal((width, width)) * 0.3))

    def _reduced(self, operator: str, value: str) -> str:
        axes = self._way.axes
        since = 13 if operator == "ReduceSum" else 18
        if self._way.opset < since:
            return self._node(operator, value, axes=list(axes), keepdims=1)
        return self._node(operator, value, self._whole(axes), keepdims=1)

    def _pair(self, value: str, other: str) -> tuple[str, str]:
        return (other, value) if self._way.swapped else (value, other)

    def _node(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def _numbers(self, numbers: NDArray[np.generic] | float) -> str:
        return self._tensor(np.asarray(numbers, np.float32))

    def _whole(self, numbers: tuple[int, ...]) -> str:
        return self._tensor(np.asarray(numbers, np.int64))

    def _tensor(self, array: NDArray[np.generic]) -> str:
        name = f"c{len(self._stored)}"
        self._stored.append(numpy_helper.from_array(array, name))
        return name
