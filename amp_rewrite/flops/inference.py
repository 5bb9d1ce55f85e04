"""onnx's shape inference of single nodes: equal questions are asked once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from amp_rewrite.onnx_types import worker, worker_process

REMEMBERED = 4096
"""So many answers are kept: the layers of a network ask the same again and again."""

Pairs = tuple[tuple[str, bytes], ...]
"""Serialised messages by name."""


@dataclass(frozen=True, slots=True)
class Question:
    """A node as one of a schema's version, with the types of what it reads and the small values among it."""

    node: bytes
    domain: str
    version: int
    types: Pairs
    data: Pairs
    imports: tuple[tuple[str, int], ...]


@functools.lru_cache(maxsize=REMEMBERED)
def ask(question: Question) -> Mapping[str, onnx.TypeProto]:
    """The types of the node's outputs by name; none where onnx cannot say, or dies of the question."""
    found = worker.ask(
        worker_process.infer_node,
        question.node,
        question.domain,
        question.version,
        dict(question.types),
        dict(question.data),
        dict(question.imports),
    )
    return {name: onnx.TypeProto.FromString(kind) for name, kind in (found or {}).items()}
