"""What one node makes of what it reads: types with shapes by onnx's inference, small values by its reference.

onnx's shape inference of whole models gives up on a Reshape whose shape is computed. Node by node, with
every size a number, what is computed from shapes is itself known, and so nearly every shape.
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

from amp_rewrite.flops import protos
from amp_rewrite.onnx_types import schema as schemas
from amp_rewrite.onnx_types import worker, worker_process
from amp_rewrite.process import fork_safe

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Read:
    """What is known of a value that a node reads; both None for an input that is left out."""

    type: onnx.TypeProto | None = None
    data: Array | None = None


_REMEMBERED = 4096
"""So many answers are kept: the layers of a network ask the same again and again."""

_Pairs = tuple[tuple[str, bytes], ...]
"""Serialised messages by name."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A node as one of a schema's version, with the types of what it reads and the small values among it."""

    node: bytes
    domain: str
    version: int
    types: _Pairs
    data: _Pairs
    imports: tuple[tuple[str, int], ...]


@functools.lru_cache(maxsize=_REMEMBERED)
def _ask(question: _Question) -> Mapping[str, onnx.TypeProto]:
    """The types of the node's outputs by name; none where onnx cannot say, or dies of the question."""
    found = worker.call(
        worker_process.infer_node,
        question.node,
        question.domain,
        question.version,
        dict(question.types),
        dict(question.data),
        dict(question.imports),
    )
    return {name: onnx.TypeProto.FromString(kind) for name, kind in (found or {}).items()}


def types(
    node: ir.Node, reads: Sequence[Read | None], imports: Mapping[str, int], like: str = ""
) -> tuple[onnx.TypeProto | None, ...]:
    """The type of every output as onnx infers it; None where it cannot.

    `reads` has None for an input that is left out. `like` names an operator of onnx to take the node for.
    Where the schema of the model's opset says no shape (opset 1 says few, and onnx knows negative axes only
    from 11 on), the newest schema of the operator is asked too, if the node is valid for it.
    """
    domain = "" if like else node.domain
    found = _types(node, reads, imports, _schema(like or node.op_type, imports.get(domain, 1), domain))
    if all(protos.dims(kind) is not None for kind in found):
        return found
    newest = _types(node, reads, imports, _schema(like or node.op_type, None, domain))
    return tuple(protos.refined(mine, other) for mine, other in zip(found, newest, strict=True))


def _schema(operator: str, version: int | None, domain: str) -> defs.OpSchema | None:
    newest = defs.onnx_opset_version() if version is None and not domain else version
    return schemas.of_onnx(domain, operator, newest or 1)


def _types(
    node: ir.Node, reads: Sequence[Read | None], imports: Mapping[str, int], schema: defs.OpSchema | None
) -> tuple[onnx.TypeProto | None, ...]:
    nothing = (None,) * len(node.outputs)
    if schema is None:
        return nothing
    proto = _as_of(schema, node)
    taken = frozenset(proto.input)
    known = {f"i{i}": read for i, read in enumerate(reads) if read is not None and f"i{i}" in taken}
    if any(read.type is None for read in known.values()):
        return nothing
    found = _ask(_question(proto, schema, known, imports))
    return tuple(found.get(f"o{i}") for i in range(len(node.outputs)))


def _question(
    proto: onnx.NodeProto, schema: defs.OpSchema, known: Mapping[str, Read], imports: Mapping[str, int]
) -> _Question:
    kinds = ((name, read.type) for name, read in known.items())
    values = ((name, read.data) for name, read in known.items())
    return _Question(
        proto.SerializeToString(deterministic=True),
        schema.domain,
        schema.since_version,
        tuple((name, kind.SerializeToString(deterministic=True)) for name, kind in kinds if kind is not None),
        tuple((name, _tensor(data).SerializeToString()) for name, data in values if data is not None),
        tuple(imports.items()),
    )


def values(
    node: ir.Node, reads: Sequence[Read | None], imports: Mapping[str, int]
) -> tuple[Array | None, ...]:
    """What the node makes of values that are all known, by onnx's reference; None where that fails."""
    feeds = {f"i{i}": read.data for i, read in enumerate(reads) if read is not None}
    graph = onnx.helper.make_graph(
        [_named(node)],
        "one",
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in feeds],
        [onnx.helper.make_value_info(f"o{i}", onnx.TypeProto()) for i in range(len(node.outputs))],
    )
    model = onnx.helper.make_model(graph, opset_imports=_opsets(imports))
    reference = fork_safe.import_module("onnx.reference")  # which takes time, and few models need it
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            made = reference.ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # the reference lacks a version of an operator, or the values do not fit
        return (None,) * len(node.outputs)
    return tuple(np.asarray(array) if isinstance(array, (np.ndarray, np.generic)) else None for array in made)


def _named(node: ir.Node) -> onnx.NodeProto:
    """The node with names of our own: its inputs are i0, i1, ..., its outputs o0, o1, ..."""
    proto = ir.serde.serialize_node(node)
    del proto.input[:], proto.output[:]
    proto.input.extend(f"i{i}" if value is not None else "" for i, value in enumerate(node.inputs))
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    return proto


def _as_of(schema: defs.OpSchema, node: ir.Node) -> onnx.NodeProto:
    """The node as one of that schema: inputs and attributes that it does not have are left out."""
    proto = _named(node)
    proto.name = ""  # so that equal nodes ask the same
    del proto.metadata_props[:]
    proto.op_type, proto.domain = schema.name, schema.domain
    del proto.input[schema.max_input :]
    kept = [attribute for attribute in proto.attribute if attribute.name in schema.attributes]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    return proto


def _tensor(array: Array) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(array)


def _opsets(imports: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    return [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
