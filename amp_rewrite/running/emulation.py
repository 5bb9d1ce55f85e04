"""A half model as a float32 model that computes the same numbers: what is half is rounded to half.

onnxruntime's CPU provider runs most half nodes in float32 and does not round between them, so that
300 * 300 is 90000 there, and infinite on a GPU. Casts that stand in the model are kept. So every value
that is half gets a Cast to half and back behind the node that makes it: storage is rounded, sums inside
a node are in float32, as tensor cores do it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite import arguments
from amp_rewrite.analysis.operators import MOVERS, effective_op
from amp_rewrite.analysis.units import Use
from amp_rewrite.errors import ModelError
from amp_rewrite.model import inlining, loading, tensor_blocks, writing
from amp_rewrite.model.traversal import graphs
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types import attribute_types, element_types
from amp_rewrite.rewriting import cast_insertion, editing
from amp_rewrite.rewriting.cast_insertion import Placer, redirect
from amp_rewrite.running import container_casts, sessions
from amp_rewrite.running.sessions import Device

_KEEP_ROUNDED = MOVERS | frozenset("Abs Constant ConstantOfShape MaxPool Neg Relu Sign".split())
"""What these make of rounded values is rounded: no Casts are needed behind them."""


_COMMUTE = frozenset("Abs Flatten Identity MaxPool Neg Relu Reshape Squeeze Transpose Unsqueeze".split())
"""Rounding before these and rounding behind them is the same: they move numbers, or keep their order."""


def emulate(source: loading.ModelSource, *, late: bool = False) -> onnx.ModelProto:
    """A float32 model that rounds wherever `source` computes in float16 or bfloat16.

    Inputs and outputs keep their types: a weight that can be overridden or is an output stays half, a
    sequence is cast element by element, and an optional where there is something in it. With `late`, a value
    that only goes through nodes which commute with rounding is rounded behind them: the same numbers, and the
    runtime can fuse a Conv with its Relu. `source` is a path, bytes, a ModelProto, an onnx_ir.Model or an
    onnx_graphsurgeon.Graph with half in it, whoever wrote it; it is not changed.

    Raises ModelError, also where no node can cast what crosses the border: an optional of halves below opset
    16, or a sequence of them below opset 13. Raises OptionError for a `late` that is no truth value.
    """
    return writing.to_proto(_emulation(source, late=arguments.flag("late", late)))


def _emulation(source: loading.ModelSource, *, late: bool) -> loading.Loaded:
    loaded = loading.load(source)
    inlining.inline(loaded.model)
    _Emulator(loaded.model, late=late).run()
    return loaded


@contextlib.contextmanager
def emulated(model: sessions.Runnable, device: Device, *, late: bool = False) -> Generator[sessions.Runnable]:
    """What to run for a half model on a device: the model itself on CUDA, its emulation on the CPU.

    An emulation that is too large for one protobuf lies in a temporary folder for as long as it is needed.
    """
    if device is Device.CUDA:
        yield model
        return
    loaded = _emulation(model, late=late)
    if not loaded.external and loaded.size < writing.PROTOBUF_LIMIT // 4:
        yield writing.to_proto(loaded)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "emulated.onnx"
        writing.save(loaded, path)
        yield path


def rounded_name(name: str) -> str:
    """What an emulation calls a half value after rounding, unless that name was taken."""
    return f"{name}__{_HALF}__{_ROUNDED}"


_HALF, _ROUNDED = "half", "rounded"


class _Emulator:
    def __init__(self, model: ir.Model, *, late: bool) -> None:
        self._late = late
        self._unrounded: set[ir.Value] = set()
        self._root = model.graph
        self._types = element_types.infer(model)
        self._opset = element_types.newest(model.graph.opset_imports)
        self._names = UniqueNames(graphs(model.graph))
        self._placer = Placer()
        self._leaving: dict[ir.Value, list[Use]] = {}
        for graph in graphs(model.graph):
            for port, value in enumerate(graph.outputs):
                self._leaving.setdefault(value, []).append(Use(graph, port))

    def run(self) -> None:
        """Every half value becomes float32 and is rounded; inputs and outputs stay half outside."""
        halves = {v: t.dtype for v, t in self._types.items() if t.dtype in HALF_TYPES}
        for graph in list(graphs(self._root)):
            for node in graph:
                _widen_attributes(node)
        for value, dtype in halves.items():
            if value.name:  # an optional output that is not wanted has no name
                self._treat(value, dtype)

    def _treat(self, value: ir.Value, dtype: ir.DataType) -> None:
        node = value.producer()
        if value in self._root.inputs or (node is None and self._leaves(value)):
            self._read_as_float32(value, value)
        elif node is None and value.const_value is not None:
            value.const_value = _widened(value.const_value)
            self._widen(value)
        elif node is not None and node.op_type == "Cast":
            self._read_as_float32(value, value)
        elif node is None:
            self._widen(value)
        elif not isinstance(self._types[value], ir.TensorType):
            self._widen(value)
            if self._leaves(value):
                self._give_away(value, dtype)
        else:
            self._round(value, dtype, node)

    def _leaves(self, value: ir.Value) -> bool:
        """Whether a value is an output of the model."""
        return any(site.holder is self._root for site in self._leaving.get(value, ()))

    def _widen(self, value: ir.Value) -> None:
        if value.type is not None:
            value.type = editing.with_element(self._types[value], ir.DataType.FLOAT)

    def _round(self, value: ir.Value, dtype: ir.DataType, node: ir.Node) -> None:
        """Casts a node's output to half, and back for its readers; the model gives the half away."""
        self._widen(value)
        kept = effective_op(node) in _KEEP_ROUNDED and node.domain == ""
        exact = kept and self._unrounded.isdisjoint(node.inputs)
        if exact and not self._leaves(value):
            return
        if self._late and value not in self._leaving and self._is_rounded_later(value):
            self._unrounded.add(value)
            return
        half = self._give_away(value, dtype)
        if not exact:
            self._read_as_float32(value, half)

    def _give_away(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Casts a value to half; that takes its name and its place where it is an output of the model."""
        half = self._cast(value, dtype, _HALF)
        if self._leaves(value):
            value.name, half.name = half.name, value.name
            outer = [site for site in self._leaving[value] if site.holder is self._root]
            redirect(outer, half)
            self._leaving[value] = [s for s in self._leaving[value] if s not in outer]
        return half

    def _is_rounded_later(self, value: ir.Value) -> bool:
        """Whether all who read a value commute with rounding, and give it on as they get it."""
        uses = value.uses()
        return bool(uses) and all(
            node.op_type in _COMMUTE and node.domain == "" and port == 0 for node, port in uses
        )

    def _read_as_float32(self, value: ir.Value, half: ir.Value) -> None:
        """Casts `half` to float32, and has all who read `value` read that."""
        reads = [Use(node, port) for node, port in value.uses() if node is not half.producer()]
        reads += [s for s in self._leaving.get(value, ()) if s.holder is not self._root]
        if reads:
            redirect(reads, self._cast(half, ir.DataType.FLOAT, _ROUNDED))

    def _cast(self, value: ir.Value, dtype: ir.DataType, suffix: str) -> ir.Value:
        name = self._names.of_value(value, suffix)
        kind = self._types.get(value)  # a Cast of ours is not among them
        if kind is None or isinstance(kind, ir.TensorType):
            nodes = [cast_insertion.cast(value, dtype, self._names.of_node(name))]
        else:
            nodes = self._container(value, kind, dtype)
        cast = nodes[-1].outputs[0]
        cast.name, cast.shape = name, value.shape
        self._placer.behind(nodes, value)
        return cast

    def _container(self, value: ir.Value, kind: ir.TypeProtocol, dtype: ir.DataType) -> list[ir.Node]:
        """Nodes that cast a sequence or an optional of the other element type."""
        since = container_casts.SINCE[type(kind)]
        if self._opset < since:
            raise ModelError(
                f"cannot be emulated: no node can cast '{value.name}', which is of the type {kind}",
                where="the given model",
                remedy=f"give it tensors there, or opset {since} or later (onnx.version_converter)",
            )
        was = kind if dtype == ir.DataType.FLOAT else editing.with_element(kind, ir.DataType.FLOAT)
        return container_casts.nodes(value, was, dtype, self._names)


def _widen_attributes(node: ir.Node) -> None:
    """Attributes that hold half tensors hold float32, and those that name a half type name float32."""
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            if attribute.as_tensor().dtype in HALF_TYPES:
                node.attributes[name] = ir.AttrTensor(name, _widened(attribute.as_tensor()))
        elif attribute.type == ir.AttributeType.TYPE_PROTO and not attribute.is_ref():
            kind = attribute.value.type
            if kind.dtype in HALF_TYPES:
                wide = editing.with_element(kind, ir.DataType.FLOAT)
                held = ir.TypeAndShape(wide, attribute.value.shape)
                node.attributes[name] = ir.Attr(name, ir.AttributeType.TYPE_PROTO, held)
    typed = attribute_types.of(node)
    if typed is None or not typed.settable or node.op_type in ("Cast", "ConstantOfShape"):
        return
    if attribute_types.declared(node, typed) in HALF_TYPES:
        wide_type = int(ir.DataType.FLOAT)
        node.attributes[typed.attribute] = ir.AttrInt64(typed.attribute, wide_type)


def _widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype not in HALF_TYPES:
        return tensor
    if tensor.nbytes < editing.LAZY_FROM:
        return ir.Tensor(_to_float32(tensor.numpy()), name=tensor.name)
    return tensor_blocks.ConvertedTensor(tensor, _to_float32, ir.DataType.FLOAT, tensor.name)


def _to_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    return array.astype(np.float32)
