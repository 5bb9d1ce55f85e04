"""Copies of a model with a movement that changes no number between two of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.text import graphs

_Moved = Callable[[str, str, int], list[onnx.NodeProto]]


def _swapped(value: str, made: str, rank: int) -> list[onnx.NodeProto]:
    """Two Transposes of the last two axes."""
    order = [*range(rank - 2), rank - 1, rank - 2] if rank > 1 else list(range(rank))
    steps = ((value, f"{made}_turned"), (f"{made}_turned", made))
    return [helper.make_node("Transpose", [before], [after], perm=order) for before, after in steps]


def _squeezed(value: str, made: str, _rank: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Unsqueeze", [value, "neutral_start"], [f"{made}_longer"]),
        helper.make_node("Squeeze", [f"{made}_longer", "neutral_start"], [made]),
    ]


def _one(operator: str, *inputs: str) -> _Moved:
    return lambda value, made, _rank: [helper.make_node(operator, [value, *inputs], [made])]


MOVES: Mapping[str, _Moved] = {
    "Identity": _one("Identity"),
    "Dropout": _one("Dropout"),
    "Reshape": _one("Reshape", "neutral_shape"),
    "Transpose": _swapped,
    "Slice": _one("Slice", "neutral_start", "neutral_end", "neutral_start"),
    "Squeeze": _squeezed,
}


def copies(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Copies of a model, each with one of MOVES between two nodes of its main graph or a body, and a name
    that says where; scalars stay as they are.
    """
    inferred = onnx.shape_inference.infer_shapes(proto)
    infos = [info for g in graphs(inferred.graph) for info in (*g.value_info, *g.output)]
    ranks = {
        info.name: len(info.type.tensor_type.shape.dim)
        for info in infos
        if info.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    for at, graph in enumerate(graphs(proto.graph)):
        made = {name for node in graph.node for name in node.output}
        for index, node in enumerate(graph.node):
            for port, value in enumerate(node.input):
                for move in MOVES if value in made and ranks.get(value) else ():
                    yield (
                        f"{move} of {value} for {node.output[0]}",
                        _moved(proto, (at, index, port), move, ranks[value]),
                    )


def _moved(proto: onnx.ModelProto, where: tuple[int, int, int], move: str, rank: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    at, index, port = where
    graph = list(graphs(copy.graph))[at]
    node = graph.node[index]
    added = MOVES[move](node.input[port], "neutral", rank)
    node.input[port] = "neutral"
    for offset, each in enumerate(added):
        graph.node.insert(index + offset, each)
    stored = {"neutral_shape": [0] * rank, "neutral_start": [0], "neutral_end": [2**31 - 1]}
    for name, numbers in stored.items():
        copy.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
    return copy
