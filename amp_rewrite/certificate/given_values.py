"""Numbers what a model is given: its inputs, and what its graphs store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amp_rewrite.certificate import tensors, value_kinds
from amp_rewrite.certificate.numbered import Numbered

_OVERRIDABLE = 4
"""From this IR version on, the caller may give another value for an initializer that is an input."""


def add_inputs(made: Numbered) -> None:
    """Numbers the inputs of a model, and names what it stores."""
    graph = made.proto.graph
    made.initial = stored = tensors.initial(graph)
    is_fixed = made.proto.ir_version < _OVERRIDABLE
    for info in graph.input:
        if not (is_fixed and info.name in stored):
            kind = value_kinds.of_type(info.type)
            if kind is None and info.name in stored:
                kind = value_kinds.of_tensor(stored[info.name])
            made.inputs[info.name] = made.visible[info.name] = made.add(info.name, None, kind)


def add_stored(made: Numbered, stored: Mapping[str, Any], names: dict[str, int]) -> None:
    """Numbers what a graph stores, but for the defaults of its inputs, which have `names` already."""
    given = frozenset(names)
    for name, tensor in stored.items():
        if name not in given:
            names[name] = made.add(name, None, value_kinds.of_tensor(tensor))
            made.stored[names[name]] = tensor
