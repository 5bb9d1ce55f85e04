"""`ranges.check` against the slow definitions of `range_oracle.py`, on random small models."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite.analysis import ranges, unit_building
from amp_rewrite.model import constants
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.onnx_types import shape_inference
from tests import range_oracle
from tests.range_oracle import Expected
from tests.text import model

FILLS = ([1e9], [-1e9], [-3.4e38], [-1e9, 0.0], [-1e5, 1e5])
CONSTANTS = (
    [1e-12], [1e-12], [-1e-12], [1e-9, 1.0], [1e-7], [3e-6], [0.01], [0.5], [1.0], [1.0],
    [30000.0], [0.001], [-0.5, 40000.0], [4096.0], [-9000.0], [1e6], *FILLS,
)  # fmt: skip
ARITIES = {
    "Abs": 1, "Identity": 1, "Log": 1, "Neg": 1, "Reciprocal": 1, "Relu": 1, "Softmax": 1, "Sqrt": 1,
    "Add": 2, "Div": 2, "Max": 2, "Min": 2, "Mul": 2, "Pow": 2, "Sub": 2, "Concat": 2,
    "Clip": 3, "Sum": 3,
}  # fmt: skip


@dataclass(frozen=True)
class Flavour:
    """From what a model is drawn: rarely does chance lead a mask to a Softmax from among all operators."""

    operators: tuple[str, ...]
    constants: tuple[list[float], ...] = CONSTANTS
    softmax: bool = False


FLAVOURS = (
    Flavour((*ARITIES, "Where", "Greater", "ConstantOfShape")),
    Flavour(("Add", "Abs", "Sqrt", "Max", "Sum", "Div", "Div", "Reciprocal", "Identity", "Sub")),
    Flavour(("Add", "Sub", "Neg", "Mul", "Div", "Where", "Greater", "ConstantOfShape"), FILLS, softmax=True),
)


def _drawn(source: random.Random) -> onnx.ModelProto:
    """A model of a few nodes that read one another and some constants; late values most."""
    flavour = source.choice(FLAVOURS)
    tensors = [_constant(source, flavour, f"c{i}") for i in range(source.randint(1, 3))]
    names = ["x", *(tensor.name for tensor in tensors)]
    nodes: list[onnx.NodeProto] = []
    for i in range(source.randint(2, 8)):
        nodes.append(_node(source, flavour, names, f"v{i}"))
        if nodes[-1].op_type != "Greater":
            names.append(f"v{i}")
    if flavour.softmax:
        unread = set(names) - {name for node in nodes for name in node.input}
        ends = [helper.make_node("Softmax", [name], [f"p{name}"]) for name in sorted(unread)]
        nodes += ends
        names += [end.output[0] for end in ends]
    leaving = {names[-1], *source.sample(names, source.choice((0, 0, 1)))} - {"x"}
    return _model(nodes, tensors, sorted(leaving) or ["x"])


def _model(
    nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto], leaving: list[str]
) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, [2]), info("k", TensorProto.BOOL, [2])]
    outputs = [info(name, TensorProto.FLOAT, None) for name in leaving]
    shape = numpy_helper.from_array(np.array([2]), "shape")
    graph = helper.make_graph(nodes, "random", inputs, outputs, [*tensors, shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _constant(source: random.Random, flavour: Flavour, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(source.choice(flavour.constants), np.float32), name)


def _node(source: random.Random, flavour: Flavour, names: list[str], output: str) -> onnx.NodeProto:
    operator = source.choice(flavour.operators)
    if operator == "ConstantOfShape":
        value = numpy_helper.from_array(np.array(source.choice(flavour.constants)[:1], np.float32), "fill")
        return helper.make_node(operator, ["shape"], [output], value=value)
    count = ARITIES.get(operator, 2)
    read = source.choices(names, weights=range(1, len(names) + 1), k=count)
    more: dict[str, Any] = {"axis": 0} if operator == "Concat" else {}
    return helper.make_node(operator, ["k", *read] if operator == "Where" else read, [output], **more)


def _found(proto: onnx.ModelProto) -> Expected:
    """What `ranges.check` finds, in the oracle's words."""
    whole = ir.from_proto(proto)
    graph = unit_building.build(whole, shape_inference.types(whole))
    found = ranges.check(graph, constants.find(whole), FLOAT16)
    outputs = [unit.node.outputs[0].name or "" for unit in graph.units]
    masks = {
        value.name or "": frozenset(outputs[unit] for unit in found.masks.units([value]))
        for value in found.masks.clamped
    }
    return Expected(frozenset(outputs[unit] for unit in found.findings), masks)


def _compare(seed: int, count: int) -> list[Expected]:
    source = random.Random(seed)
    protos = [_drawn(source) for _ in range(count)]
    expected = [range_oracle.ranges(proto) for proto in protos]
    for proto, one in zip(protos, expected, strict=True):
        assert _found(proto) == one, onnx.printer.to_text(proto)
    return expected


@pytest.mark.parametrize("seed", range(4))
def test_random_models(seed: int) -> None:
    """Findings and masks are those that an enumeration of all paths gives."""
    expected = _compare(seed, 150)
    assert sum(bool(one.masks) for one in expected) > 5, "masks must be among them"
    assert sum(bool(one.stays) for one in expected) > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 6))
def test_very_many_random_models(seed: int) -> None:
    """The same, many times as many."""
    _compare(seed, 2000)


def test_the_oracle_knows_an_epsilon_and_a_mask() -> None:
    """By hand: both ways from the epsilon to the division stay, and the mask's way does not."""
    proto = model(
        """g (float[4] x, bool[4] k) => (float[4] p, float[4] d) <float e = {1e-12}, float fill = {-1e9}> {
            a = Add (x, e) b = Abs (a) q = Sqrt (a) s = Add (b, q) d = Div (x, s)
            n = Neg (x) w = Where (k, n, fill) p = Softmax (w)
        }"""
    )
    assert range_oracle.ranges(proto) == Expected(frozenset("abqsd"), {"fill": frozenset("wp")})
