"""Application of a Plan to its model."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.ranges import fill_of
from amp_rewrite.errors import ModelError
from amp_rewrite.model import graph_edits
from amp_rewrite.model.constants import (
    Conversion,
    ConvertedTensor,
    StoredTensor,
    dims,
    numbers,
)
from amp_rewrite.model.graph_edits import UniqueNames, graph_of
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import control_flow, element_types, schema
from amp_rewrite.onnx_types.element_types import Types, element_type_name, tensor
from amp_rewrite.onnx_types.schema import FIRST_TYPED_CAST
from amp_rewrite.rewriting import instrument
from amp_rewrite.rewriting.instrument import Inserter, Redirection, redirect
from amp_rewrite.rewriting.plan import Plan, PlannedCast, Retyped, Storage, TensorChange

LAZY_FROM = 1 << 20
"""The size in bytes from which stored tensors are converted when they are written, not before."""


def apply(plan: Plan, model: ir.Model, graphs: Collection[ir.Graph], types: Types) -> tuple[ir.Node, ...]:
    """Apply the plan to `model`, which has these graphs, and to the `types` of its values.

    Returns a node for each Cast of the plan.
    """
    if plan.casts:
        _import_casts(model)
    names = UniqueNames(graphs)
    if len(graphs) > 1:
        names.rename_shadowing(model.graph)
    editor = _Editor(plan.half, model, types, names, _graphs_with_output_names(model.graph, graphs))
    for change in plan.tensors:
        editor.change(change)
    for value in plan.values:
        editor.retype(value)
    for retyped in plan.attributes:
        editor.set_attribute(retyped)
    cast_nodes = tuple(map(editor.cast, plan.casts))
    redirect(editor.redirections)
    return cast_nodes


def _graphs_with_output_names(root: ir.Graph, graphs: Collection[ir.Graph]) -> frozenset[ir.Graph]:
    """Return the graphs whose outputs are referenced by name: the model's, and bodies of custom operators,
    such as onnxruntime's BeamSearch, which looks for `logits`.
    """
    holders = (node for graph in graphs for node in graph if control_flow.may_have_bodies(node))
    foreign = (control_flow.bodies(node) for node in holders if control_flow.bindings(node) is None)
    return frozenset((root, *itertools.chain.from_iterable(foreign)))


def _import_casts(model: ir.Model) -> None:
    """Import the default domain for the Casts of a model that has none of its operators, as new as the
    IR version of the model allows.

    A model that uses the default domain without an import stays as it is: runtimes take the newest version.
    """
    imports = model.graph.opset_imports
    if "" in imports or "ai.onnx" in imports or any(not node.domain for node in model.graph.all_nodes()):
        return
    oldest = onnx.helper.find_min_ir_version_for
    versions = range(_NEWEST_CAST_NEEDED, FIRST_TYPED_CAST - 1, -1)
    admitted = (v for v in versions if oldest([onnx.helper.make_opsetid("", v)]) <= model.ir_version)
    imports[""] = next(admitted, FIRST_TYPED_CAST)


_NEWEST_CAST_NEEDED = 13  # the first opset whose Cast supports bfloat16


class _Editor(Inserter):
    def __init__(
        self, half: Half, model: ir.Model, types: Types, names: UniqueNames, named_graphs: frozenset[ir.Graph]
    ) -> None:
        super().__init__(model, names)
        self._half = half
        self._types = types
        self._named = named_graphs
        self.redirections: list[Redirection] = []

    def retype(self, value: ir.Value) -> None:
        """Change the element type of a value to half."""
        self._types[value] = element_types.with_element(self._types[value], self._half.dtype)
        if value.type is not None:
            value.type = self._types[value]

    def change(self, change: TensorChange) -> None:
        """Change a stored tensor as planned."""
        if change.storage is Storage.BOTH:
            self._store_beside(change)
            if change.saturates:
                graph_edits.store(change.stored, self._saturated(change.stored))
        elif change.storage is Storage.SATURATED:
            graph_edits.store(change.stored, self._saturated(change.stored))
        else:
            name = change.stored.tensor.name
            graph_edits.store(change.stored, self._converted(change, name))
            self.retype(change.stored.value)

    def _store_beside(self, change: TensorChange) -> None:
        """Store a copy in half for the uses in half."""
        value = change.stored.value
        name = self.names.of_value(value, self._half.name)
        converted = self._converted(change, name)
        if change.stored.node is None:
            beside = self.store(name, converted, graph_of(value))
        else:
            name_of_node = self.names.of_node(name)
            node = ir.node("Constant", [], {"value": converted}, name=name_of_node)
            beside = node.outputs[0]
            beside.name = name
            graph_of(value).insert_after(change.stored.node, node)
        self._types[beside] = tensor(self._half.dtype)
        self.redirections.append((change.uses, beside))

    def _converted(self, change: TensorChange, name: str | None) -> ir.TensorProtocol:
        saturate = bool(change.saturates)
        conversion = functools.partial(rounding.convert, half=self._half, saturate=saturate, nan=change.nan)
        if change.lifts:
            conversion = functools.partial(rounding.lifted, half=self._half)
        return converted(conversion, self._half.dtype, change.stored, name)

    def _saturated(self, source: StoredTensor) -> ir.TensorProtocol:
        conversion = functools.partial(rounding.saturated, half=self._half)
        return converted(conversion, ir.DataType.FLOAT, source, source.tensor.name)

    def set_attribute(self, retyped: Retyped) -> None:
        """Set the attribute that determines the type of an output to the planned type, or remove it."""
        node, dtype = retyped.node, retyped.dtype
        typed = schema.of(node)
        assert typed is not None, "only nodes with a type attribute are planned"
        if typed.attribute == "value":
            node.attributes["value"] = ir.AttrTensor("value", self._fill(retyped))
        elif dtype is None:
            del node.attributes[typed.attribute]
        else:
            node.attributes[typed.attribute] = ir.AttrInt64(typed.attribute, int(dtype))

    def _fill(self, retyped: Retyped) -> ir.TensorProtocol:
        array = fill_of(retyped.node)
        if retyped.dtype == ir.DataType.FLOAT:
            return ir.Tensor(rounding.saturated(array, self._half), dtype=retyped.dtype)
        converted = rounding.convert(array, self._half, saturate=bool(retyped.saturates))
        return ir.Tensor(converted, dtype=self._half.dtype)

    def cast(self, cast: PlannedCast) -> ir.Node:
        """Insert a planned Cast, whose uses `redirections` moves to its output."""
        value, element = cast.value, element_type_name(cast.dtype)
        name = self.names.of_node(f"{value.name or 'value'}__{element}")
        node = instrument.cast(value, cast.dtype, name)
        output = node.outputs[0]
        self._types[output] = tensor(cast.dtype)
        if not self._named.isdisjoint(use.holder for use in cast.uses):
            self._move_output(value, output)
        else:
            output.name = self.names.of_value(value, element)
        self.behind(value, [node])
        self.redirections.append((cast.uses, output))
        return node

    def _move_output(self, value: ir.Value, output: ir.Value) -> None:
        """Make `output` an output of its graph in place of `value`, with its name and metadata."""
        dtype = self._types[value].dtype
        assert dtype is not None, "only tensors are cast"
        output.name, value.name = value.name, self.names.of_value(value, element_type_name(dtype))
        output.doc_string, value.doc_string = value.doc_string, None
        for destination, ours in ((output.metadata_props, value.metadata_props), (output.meta, value.meta)):
            destination.update(ours)
            ours.clear()


def converted(
    conversion: Conversion, dtype: ir.DataType, source: StoredTensor, name: str | None
) -> ir.TensorProtocol:
    """Return a stored tensor after a conversion: done now for a small one, on writing for a large one."""
    like = source.tensor
    if math.prod(dims(like)) * like.dtype.itemsize >= LAZY_FROM:
        return ConvertedTensor(like, conversion, dtype, name)
    return ir.Tensor(
        conversion(numbers(like)),
        dtype=dtype,
        name=name,
        doc_string=like.doc_string,
        metadata_props=dict(like.metadata_props),
    )


def scale_block(block: NDArray[Any], e: int) -> NDArray[Any]:
    """Return stored values times 2**-e; raise ModelError where bits would be lost."""
    result = np.asarray(np.ldexp(block, -e), block.dtype)
    if not np.array_equal(np.ldexp(result, e), block, equal_nan=True):
        raise ModelError(
            "a stored value loses bits when it is scaled", remedy="rewrite without `Options.rescale`"
        )
    return result
