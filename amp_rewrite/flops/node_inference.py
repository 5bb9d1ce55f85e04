"""Types and shapes of one node's outputs by onnx's inference, and small values by its reference evaluator.

onnx's shape inference of whole models gives up on a Reshape whose shape is computed. Node by node, with a
number for every dimension, values that are computed from shapes are known too, and so nearly every shape.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import defs

from amp_rewrite.flops import type_protos
from amp_rewrite.onnx_types import schema as schemas
from amp_rewrite.onnx_types import worker, worker_process
from amp_rewrite.process import fork_safe

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class KnownValue:
    """What is known of an input of a node."""

    type: onnx.TypeProto | None = None
    data: Array | None = None


_CACHED = 4096
"""How many results are cached: the layers of a network repeat the same requests."""

_Pairs = tuple[tuple[str, bytes], ...]
"""Serialised messages by name."""


@dataclass(frozen=True, slots=True)
class _InferenceRequest:
    """A node under one version of its schema, with the types of its inputs and the contents of small ones."""

    node: bytes
    domain: str
    version: int
    types: _Pairs
    data: _Pairs
    imports: tuple[tuple[str, int], ...]


@functools.lru_cache(maxsize=_CACHED)
def _infer(request: _InferenceRequest) -> Mapping[str, onnx.TypeProto]:
    """The types of the node's outputs by name; empty where onnx cannot infer them, or crashes."""
    found = worker.call(
        worker_process.infer_node,
        request.node,
        request.domain,
        request.version,
        dict(request.types),
        dict(request.data),
        dict(request.imports),
    )
    return {name: onnx.TypeProto.FromString(kind) for name, kind in (found or {}).items()}


def types(
    node: ir.Node, reads: Sequence[KnownValue | None], imports: Mapping[str, int], like: str = ""
) -> tuple[onnx.TypeProto | None, ...]:
    """The type of every output as onnx infers it; None where it cannot.

    `reads` has None for an omitted input. `like` names an ONNX operator to treat the node as. Where the
    schema of the model's opset infers no shape (opset 1 infers few, and negative axes are known only from
    opset 11 on), the newest schema of the operator is tried too, if the node is valid for it.
    """
    domain, operator = "" if like else node.domain, like or node.op_type
    declared = schemas.of_onnx(domain, operator, imports.get(domain, 1))
    found = _types(node, reads, imports, declared)
    if all(type_protos.dims(kind) is not None for kind in found):
        return found
    newest = schemas.of_onnx(domain, operator, 1 if domain else defs.onnx_opset_version())
    newer = _types(node, reads, imports, newest)
    return tuple(type_protos.refined(mine, other) for mine, other in zip(found, newer, strict=True))


def _types(
    node: ir.Node,
    reads: Sequence[KnownValue | None],
    imports: Mapping[str, int],
    schema: defs.OpSchema | None,
) -> tuple[onnx.TypeProto | None, ...]:
    nothing = (None,) * len(node.outputs)
    if schema is None:
        return nothing
    proto = _as_of(schema, node)
    taken = frozenset(proto.input)
    known = {f"i{i}": read for i, read in enumerate(reads) if read is not None and f"i{i}" in taken}
    if any(read.type is None for read in known.values()):
        return nothing
    found = _infer(_request(proto, schema, known, imports))
    return tuple(found.get(f"o{i}") for i in range(len(node.outputs)))


def _request(
    proto: onnx.NodeProto, schema: defs.OpSchema, known: Mapping[str, KnownValue], imports: Mapping[str, int]
) -> _InferenceRequest:
    kinds = ((name, read.type) for name, read in known.items())
    arrays = ((name, read.data) for name, read in known.items())
    tensors = ((name, onnx.numpy_helper.from_array(data)) for name, data in arrays if data is not None)
    return _InferenceRequest(
        proto.SerializeToString(deterministic=True),
        schema.domain,
        schema.since_version,
        tuple((name, kind.SerializeToString(deterministic=True)) for name, kind in kinds if kind is not None),
        tuple((name, tensor.SerializeToString()) for name, tensor in tensors),
        tuple(imports.items()),
    )


def values(
    node: ir.Node, reads: Sequence[KnownValue | None], imports: Mapping[str, int]
) -> tuple[Array | None, ...]:
    """The outputs of a node whose inputs are all known, by onnx's evaluator; None where that fails."""
    feeds = {f"i{i}": read.data for i, read in enumerate(reads) if read is not None}
    graph = onnx.helper.make_graph(
        [_named(node)],
        "one",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in feeds],
        [onnx.helper.make_value_info(f"o{i}", onnx.TypeProto()) for i in range(len(node.outputs))],
    )
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    reference = fork_safe.import_module("onnx.reference")  # slow to import, and few models need it
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            outputs = reference.ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # an operator version without a reference, or values that do not fit
        return (None,) * len(node.outputs)
    return tuple(
        np.asarray(array) if isinstance(array, (np.ndarray, np.generic)) else None for array in outputs
    )


def _named(node: ir.Node) -> onnx.NodeProto:
    """The node with generic names: its inputs are i0, i1, ..., its outputs o0, o1, ..."""
    proto = ir.serde.serialize_node(node)
    del proto.input[:], proto.output[:]
    proto.input.extend(f"i{i}" if value is not None else "" for i, value in enumerate(node.inputs))
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    return proto


def _as_of(schema: defs.OpSchema, node: ir.Node) -> onnx.NodeProto:
    """The node as that schema has it: inputs and attributes that the schema lacks are left out."""
    proto = _named(node)
    proto.name = ""  # so that equal nodes make equal requests
    del proto.metadata_props[:]
    proto.op_type, proto.domain = schema.name, schema.domain
    del proto.input[schema.max_input :]
    kept = [attribute for attribute in proto.attribute if attribute.name in schema.attributes]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    return proto
