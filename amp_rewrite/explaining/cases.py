"""Decisions as text, in the format of tests/cases: what a user sees of a model can become a test as it is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import onnx
import onnx.printer

from amp_rewrite.explaining import sentences
from amp_rewrite.model.proto_traversal import graphs
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.rewriting.decisions import Decisions


def claims(decisions: Decisions) -> str:
    """Return the nodes that are float32 by their reasons, and those that are half, as claims of a case."""
    reasons: dict[str, list[str]] = {}
    halves: list[str] = []
    for name, unit in _parts(decisions):
        is_half = decisions.all[unit].is_half
        reason = "" if is_half else sentences.first_step(decisions, unit).reason
        (halves if is_half else reasons.setdefault(reason, [])).append(name)
    full = [f"{' '.join(names)}: {reason}" for reason, names in reasons.items()]
    return " ; ".join((*full, *([f"half {' '.join(halves)}"] if halves else [])))


def _parts(decisions: Decisions) -> Iterator[tuple[str, int]]:
    """Yield each node by the name of its first output, with a unit of its colour.

    Where the units of a node differ, each has the type variable behind a slash. What a schema fixes to
    float32 beside half does not count.
    """
    units: dict[object, list[int]] = {}
    for unit, node in enumerate(decisions.nodes):
        units.setdefault(node, []).append(unit)
    for group in units.values():
        free = [unit for unit in group if decisions.all[unit].evidence.authority is not Authority.SCHEMA]
        first = decisions.all[group[0]]
        name = _quoted(next(iter(first.outputs), first.node or first.operator))
        different = {decisions.all[unit].is_half for unit in free}
        if len(different) < 2:
            yield name, (free or group)[0]
        else:
            yield from ((f"{name}/{decisions.all[unit].variable}", unit) for unit in free)


def _quoted(name: str) -> str:
    return f'"{name}"' if re.search(r"[\s;|]", name) else name


def case(model: onnx.ModelProto, title: str, claimed: str) -> str:
    """Return the paragraph of a case: a sentence, the model, and a row with claims.

    The model loses what decides nothing: metadata, inferred types, and the numbers of all but small tensors.
    """
    short = onnx.ModelProto()
    short.CopyFrom(model)
    for field in ("metadata_props", "doc_string", "producer_name", "producer_version"):
        short.ClearField(field)
    for graph in graphs(short.graph):
        graph.ClearField("value_info")
        graph.ClearField("doc_string")
        for tensor in filter(_is_omitted, tuple(graph.initializer)):
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.value_info.append(info)
            graph.initializer.remove(tensor)
    text = re.sub(r"\n\s*\n", "\n", onnx.printer.to_text(short)).strip()
    return f"# {title}\n{text}\n    as it is | | {claimed}"


def _is_omitted(tensor: onnx.TensorProto) -> bool:
    return math.prod(tensor.dims) > _LARGEST or tensor.data_location == onnx.TensorProto.EXTERNAL


_LARGEST = 64
"""The number of elements up to which a tensor is written with its numbers."""
