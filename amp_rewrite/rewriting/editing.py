"""Carries out a Plan on the model that it was made for: the only stage that changes a model, with tidy."""

from __future__ import annotations

import functools
from collections.abc import Collection

import onnx
import onnx_ir as ir

from amp_rewrite.analysis.ranges import fill_of
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW, StoredTensor, numbers
from amp_rewrite.model.tensor_blocks import Conversion, ConvertedTensor
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import attribute_types
from amp_rewrite.onnx_types.attribute_types import FIRST_TYPED_CAST
from amp_rewrite.onnx_types.element_types import Types, element_type_name, tensor
from amp_rewrite.rewriting import cast_insertion
from amp_rewrite.rewriting.cast_insertion import Placer, graph_of, redirect
from amp_rewrite.rewriting.plan import Plan, PlannedCast, Retyped, Storage, TensorChange

LAZY_FROM = 1 << 20
"""Stored tensors of this many bytes and more are converted when they are written, not before."""


def apply(plan: Plan, model: ir.Model, held: Collection[ir.Graph], types: Types) -> tuple[ir.Node, ...]:
    """Changes `model`, which has these graphs, and `types` with it, as the plan says.

    Returns a node for each of its Casts.
    """
    if plan.casts:
        _import_casts(model)
    names = UniqueNames(held)
    if len(held) > 1:
        names.rename_shadowing(model.graph)
    editor = _Editor(plan.half, model, types, names)
    for storing in plan.tensors:
        editor.store(storing)
    for value in plan.values:
        editor.retype(value)
    for retyped in plan.attributes:
        editor.set_attribute(retyped)
    return tuple(map(editor.cast, plan.casts))


def _import_casts(model: ir.Model) -> None:
    """A model of other domains alone imports the default one for its Casts, as new as its IR admits.

    One that has nodes of the default domain and forgets to import it gets none: runtimes take what is newest.
    """
    imports = model.graph.opset_imports
    if "" in imports or "ai.onnx" in imports or any(not node.domain for node in model.graph.all_nodes()):
        return
    oldest = onnx.helper.find_min_ir_version_for
    versions = range(_NEWEST_CAST_NEEDED, FIRST_TYPED_CAST - 1, -1)
    admitted = (v for v in versions if oldest([onnx.helper.make_opsetid("", v)]) <= model.ir_version)
    imports[""] = next(admitted, FIRST_TYPED_CAST)


_NEWEST_CAST_NEEDED = 13  # the first opset whose Cast knows bfloat16


class _Editor:
    def __init__(self, half: Half, model: ir.Model, types: Types, names: UniqueNames) -> None:
        self._half = half
        self._types = types
        self._root = model.graph
        self._listed = model.ir_version < CONSTANT_INPUTS_BELOW
        self._names = names
        self._placer = Placer()

    def retype(self, value: ir.Value) -> None:
        """The value is half from now on, where it stands."""
        self._types[value] = with_element(self._types[value], self._half.dtype)
        if value.type is not None:
            value.type = self._types[value]

    def store(self, storing: TensorChange) -> None:
        """Keeps a stored tensor in the form that is planned."""
        if storing.storage is Storage.BOTH:
            self._store_beside(storing)
            if storing.saturates:
                _replace(storing.stored, self._saturated(storing.stored))
        elif storing.storage is Storage.SATURATED:
            _replace(storing.stored, self._saturated(storing.stored))
        else:
            name = storing.stored.tensor.name
            _replace(storing.stored, self._converted(storing, name))
            self.retype(storing.stored.value)

    def _store_beside(self, storing: TensorChange) -> None:
        """A second tensor, in half, for the places that read half."""
        value = storing.stored.value
        name = self._names.of_value(value, self._half.name)
        converted = self._converted(storing, name)
        if storing.stored.node is None:
            beside = ir.Value(
                name=name,
                type=tensor(self._half.dtype),
                shape=value.shape,
                const_value=converted,
            )
            self._register(beside, graph_of(value))
        else:
            name_of_node = self._names.of_node(name)
            node = ir.node("Constant", [], {"value": converted}, name=name_of_node)
            beside = node.outputs[0]
            beside.name = name
            graph_of(value).insert_after(storing.stored.node, node)
        self._types[beside] = tensor(self._half.dtype)
        redirect(storing.uses, beside)

    def _register(self, stored: ir.Value, graph: ir.Graph) -> None:
        graph.register_initializer(stored)
        if self._listed:
            graph.inputs.append(stored)

    def _converted(self, storing: TensorChange, name: str | None) -> ir.TensorProtocol:
        saturate = bool(storing.saturates)
        change = functools.partial(rounding.convert, half=self._half, saturate=saturate, nan=storing.nan)
        return _tensor(change, self._half.dtype, storing.stored, name)

    def _saturated(self, stored: StoredTensor) -> ir.TensorProtocol:
        change = functools.partial(rounding.saturated, half=self._half)
        return _tensor(change, ir.DataType.FLOAT, stored, stored.tensor.name)

    def set_attribute(self, retyped: Retyped) -> None:
        """Has the attribute that types an output name the planned type, or goes without it."""
        node, dtype = retyped.node, retyped.dtype
        typed = attribute_types.of(node)
        assert typed is not None, "only nodes that an attribute types are planned"
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
        """Puts the Cast behind the maker of its value, and has the planned places read it."""
        value, element = cast.value, element_type_name(cast.dtype)
        name = self._names.of_node(f"{value.name or 'value'}__{element}")
        node = cast_insertion.cast(value, cast.dtype, name)
        made = node.outputs[0]
        self._types[made] = tensor(cast.dtype)
        if self._root in [site.holder for site in cast.uses]:
            self._leave(value, made)
        else:
            made.name = self._names.of_value(value, element)
        self._placer.behind([node], value)
        redirect(cast.uses, made)
        return node

    def _leave(self, value: ir.Value, made: ir.Value) -> None:
        """`made` is the output of the model that `value` was: it takes over all that callers know of it."""
        dtype = self._types[value].dtype
        assert dtype is not None, "only tensors are cast"
        made.name, value.name = value.name, self._names.of_value(value, element_type_name(dtype))
        made.doc_string, value.doc_string = value.doc_string, None
        for known, ours in ((made.metadata_props, value.metadata_props), (made.meta, value.meta)):
            known.update(ours)
            ours.clear()


def with_element(kind: ir.TypeProtocol, dtype: ir.DataType) -> ir.TypeProtocol:
    """The same type with another element type; the old one, which may be shared, stays as it is."""
    if type(kind) is ir.TensorType:
        return tensor(dtype)
    if isinstance(kind, ir.SequenceType):
        return ir.SequenceType(with_element(kind.elem_type, dtype))
    if isinstance(kind, ir.OptionalType):
        return ir.OptionalType(with_element(kind.elem_type, dtype))
    return tensor(dtype)


def _replace(stored: StoredTensor, converted: ir.TensorProtocol) -> None:
    """Puts another tensor where one is stored."""
    if stored.node is None:
        stored.value.const_value = converted
        return
    stored.node.attributes.clear()
    stored.node.attributes["value"] = ir.AttrTensor("value", converted)


def _tensor(
    change: Conversion, dtype: ir.DataType, stored: StoredTensor, name: str | None
) -> ir.TensorProtocol:
    """What is stored, changed: now if it is small, and when it is written if not."""
    like = stored.tensor
    if like.nbytes >= LAZY_FROM:
        return ConvertedTensor(like, change, dtype, name)
    return ir.Tensor(
        change(numbers(like)),
        dtype=dtype,
        name=name,
        doc_string=like.doc_string,
        metadata_props=dict(like.metadata_props),
    )
