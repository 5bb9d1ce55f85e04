"""Other spellings of a model, which mean the same: each changes a copy that it is given, by chance."""

from __future__ import annotations

from random import Random

import onnx
from onnx import helper

from tests.onnx_text import graphs


def respelled(model: onnx.ModelProto, chance: Random) -> onnx.ModelProto:
    """A copy of a model in another spelling: one of them, or several."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for spelling in chance.sample(SPELLINGS, chance.randint(1, len(SPELLINGS))):
        spelling(copy, chance)
    return copy


def reorder_nodes(model: onnx.ModelProto, chance: Random) -> None:
    """The nodes are in a random order in which every value is made before it is read."""
    left, ordered = list(model.graph.node), []
    while left:
        waiting = {name for node in left for name in node.output if name}
        node = chance.choice([node for node in left if waiting.isdisjoint(_read(node))])
        left.remove(node)
        ordered.append(node)
    _replace(model.graph.node, ordered)


def _read(node: onnx.NodeProto) -> set[str]:
    """The names that a node reads, with those that its bodies read."""
    alone = helper.make_graph([node], "alone", [], [])
    return {name for graph in graphs(alone) for inner in graph.node for name in inner.input}


def _replace(elements, others) -> None:
    copies = [type(each).FromString(each.SerializeToString()) for each in others]
    del elements[:]
    elements.extend(copies)


def undeclare(model: onnx.ModelProto, chance: Random) -> None:
    """No type is declared of what nodes make."""
    del chance
    del model.graph.value_info[:]


def reorder_weights(model: onnx.ModelProto, chance: Random) -> None:
    """The stored tensors are in another order."""
    _replace(
        model.graph.initializer, chance.sample(list(model.graph.initializer), len(model.graph.initializer))
    )


def store_in_nodes(model: onnx.ModelProto, chance: Random) -> None:
    """Some stored tensors are those of Constant nodes."""
    leaving = {info.name for info in model.graph.output}
    moved = [each for each in model.graph.initializer if each.name not in leaving and chance.randrange(2)]
    constants = [helper.make_node("Constant", [], [each.name], value=each) for each in moved]
    _replace(model.graph.initializer, [each for each in model.graph.initializer if each not in moved])
    _replace(model.graph.node, [*constants, *model.graph.node])


SPELLINGS = (reorder_nodes, undeclare, reorder_weights, store_in_nodes)
