"""New nodes in a main graph: constants, and operators with one output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.model import constants, graph_edits, traversal
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types.element_types import tensor
from amp_rewrite.rewriting.cast_insertion import Placer

FLOAT, BOOL, INT64 = ir.DataType.FLOAT, ir.DataType.BOOL, ir.DataType.INT64
SCALAR = ir.Shape(())


class NodeBuilder:
    """Adds nodes to the main graph of a model, and keeps what it added in `nodes`.

    Nodes stand behind the producer of a value where one is given, else at the end of the graph.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = graph = model.graph
        self._lists_stored = model.ir_version < constants.CONSTANT_INPUTS_BELOW
        self.nodes: list[ir.Node] = []
        self._names = UniqueNames(traversal.graphs(graph))
        self._placer = Placer()

    def name(self, wanted: str) -> str:
        """A name for a value that none has yet: the wanted one, or that with a number."""
        return self._names.new_value(wanted)

    def input(self, wanted: str, dtype: ir.DataType) -> ir.Value:
        """A new scalar input of the model, the last."""
        value = ir.Value(name=self.name(wanted), type=tensor(dtype), shape=SCALAR)
        self.graph.inputs.append(value)
        return value

    def output(self, value: ir.Value, wanted: str) -> None:
        """Makes a new value the last output of the model, by the wanted name."""
        value.name = self.name(wanted)
        self.graph.outputs.append(value)

    def scalar(self, wanted: str, number: float, dtype: ir.DataType) -> ir.Value:
        """A stored scalar."""
        name = self.name(wanted)
        stored = ir.tensor(np.asarray(number, dtype.numpy()), name=name)
        value = ir.Value(name=name, type=tensor(dtype), shape=SCALAR, const_value=stored)
        graph_edits.register(value, self.graph, listed=self._lists_stored)
        return value

    def node(
        self,
        operator: str,
        inputs: Sequence[ir.Value],
        name: str,
        *,
        dtype: ir.DataType = FLOAT,
        shape: ir.Shape | None = SCALAR,
        attributes: Mapping[str, Any] | None = None,
        behind: ir.Value | None = None,
    ) -> ir.Value:
        """The output of a new node, of a type and a shape; `behind` is the value behind whose producer it
        stands.
        """
        made = ir.Value(name=self.name(name), type=tensor(dtype), shape=shape)
        held = [ir.convenience.convert_attribute(key, value) for key, value in (attributes or {}).items()]
        node = ir.Node("", operator, inputs, held, outputs=(made,), name=self._names.of_node(f"{made.name}"))
        self.nodes.append(node)
        if behind is None:
            self.graph.append(node)
        else:
            self._placer.behind([node], behind)
        return made

    def cast(self, value: ir.Value, was: ir.DataType, to: ir.DataType, behind: ir.Value) -> ir.Value:
        """The value in another type; itself where it has that."""
        if was == to:
            return value
        return self.node(
            "Cast",
            (value,),
            f"{value.name}__as_{to.name.lower()}",
            dtype=to,
            shape=value.shape,
            attributes={"to": int(to)},
            behind=behind,
        )
