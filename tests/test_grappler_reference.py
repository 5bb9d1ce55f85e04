"""Colours of random graphs with TensorFlow's list against its pass, written anew from its description."""

import random

import onnx
import onnx.parser
import pytest

import amp_rewrite
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Options, Pins

LIST = operator_lists.load("tensorflow")
OPTIONS = Options(lists=LIST, target="any")
OPERATORS = {
    1: "Add Exp Identity MatMul Mul Neg Pow Relu Sigmoid Sin Softmax Sqrt Sub Tanh Transpose".split(),
    2: "Add Div MatMul Max Mul PRelu Pow Sub".split(),
}
"""Operators of all four lists and of none, for one operand, which counts twice, and for two."""
UNARY = frozenset("Exp Identity Neg Relu Sigmoid Sin Softmax Sqrt Tanh Transpose".split())
STORED = ("1e-12", "7e4", "-1e9", "0.1", "3.0")
"""Numbers that our own rules look at."""

Nodes = dict[str, tuple[str, list[str]]]
"""The operator of each node, and the values that it reads: they bear its name."""


def _random_graph(seed: int) -> Nodes:
    draw = random.Random(seed)
    values, nodes = ["x", "w", *(f"c{i}" for i in range(len(STORED)))], Nodes()
    for i in range(draw.randint(4, 24)):
        count = draw.choice((1, 1, 2))
        operator = draw.choice(OPERATORS[count])
        reads = [draw.choice(values[-8:] if draw.random() < 0.8 else values) for _ in range(count)]
        nodes[f"n{i}"] = operator, reads * (1 if count == 2 or operator in UNARY else 2)
        values.append(f"n{i}")
    return nodes


def _model(nodes: Nodes) -> onnx.ModelProto:
    stored = ", ".join(f"float[2,2] c{i} = {{{', '.join([text] * 4)}}}" for i, text in enumerate(STORED))
    body = "".join(f"[{name}] {name} = {op}({', '.join(reads)})\n" for name, (op, reads) in nodes.items())
    outputs = ", ".join(f"float[2,2] {name}" for name in _fetched(nodes))
    return onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]>'
        f"g (float[2,2] x, float[2,2] w) => ({outputs}) <{stored}> {{{body}}}"
    )


def _fetched(nodes: Nodes) -> list[str]:
    read = {value for _, reads in nodes.values() for value in reads}
    return [name for name in nodes if name not in read]


def _allowed(nodes: Nodes) -> set[str]:
    """The nodes that become half, by TensorFlow's passes in their order; fetched ones are preserved."""
    fetched = _fetched(nodes)
    kinds = {name: entry.kind if (entry := LIST.find("", op)) else None for name, (op, _) in nodes.items()}
    before = {name: [value for value in reads if value in nodes] for name, (_, reads) in nodes.items()}
    after = {name: [other for other in nodes if name in before[other]] for name in nodes}
    both = {name: before[name] + after[name] for name in nodes}

    def of(*asked: Kind) -> set[str]:
        return {name for name, kind in kinds.items() if kind in asked}

    listed = of(Kind.ALLOW) - {*fetched}
    sensitive = of(Kind.INFER, Kind.DENY)
    reaching = _flood(sensitive, before, of(Kind.CLEAR))
    denied = _flood(of(Kind.DENY), after, reaching)
    free = of(Kind.INFER, Kind.CLEAR) - denied - {*fetched}
    downstream = _flood(listed, after, free)
    between = _flood(listed, before, downstream)
    return _flood(between, both, of(Kind.CLEAR) - denied - {*fetched})


def _flood(roots: set[str], edges: dict[str, list[str]], entered: set[str]) -> set[str]:
    found, waiting = set(roots), [*roots]
    while waiting:
        new = [each for each in edges[waiting.pop()] if each in entered and each not in found]
        found.update(new)
        waiting += new
    return found


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    """No rule, bound or prediction of ours changes a colour."""
    nodes = _random_graph(seed)
    analysis = amp_rewrite.analyze(_model(nodes), _pinned(nodes))
    painting = analysis.painting
    half = {unit.node.name for unit in analysis.graph.units if painting.is_half(unit.index)}
    assert half == _allowed(nodes)


def _pinned(nodes: Nodes) -> Options:
    return Options(lists=LIST, target="any", pins=Pins(keep_full=tuple(_fetched(nodes))))
