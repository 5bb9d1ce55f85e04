"""Raises the opset of a model, by number alone, to one at which more of it can be half.

onnxruntime's CUDA provider has a half Clip from opset 12 on, most operators in bfloat16 from 13 on, and Conv
from 22 on. The number changes nothing that a model computes where every node means the same at both versions
(onnx_types.version_changes); the IR version stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_rewrite.model import traversal
from amp_rewrite.onnx_types import element_types, schema, version_changes
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.form import Form
from amp_rewrite.policy.targets import Target
from amp_rewrite.preparing import half_ports
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.half_ports import Call, HalfPorts

NEWEST = 24
"""The newest opset to which anything is raised: by a newer one, no operator gains a half kernel."""


def raise_opset(model: ir.Model, form: Form) -> tuple[FormChange, ...]:
    """Raises the opset to that at which most float32 nodes can be half, and of those to the lowest.

    It stays where nothing gains, where nothing could be half all the same (no node that can is on the list
    `allow`), where a node would mean something else, and where one would lose its kernel on the target.
    """
    imports = model.graph.opset_imports
    domain = "" if "" in imports else "ai.onnx"
    old = imports.get(domain, NEWEST)
    if not form.raise_opset or not version_changes.OLDEST <= old < NEWEST or not _uniform(model, domain):
        return ()
    new = next(_Raising(model, old, form).best(), None)
    if new is None:
        return ()
    for held in (model, *model.functions.values()):
        if domain in held.opset_imports:
            held.opset_imports[domain] = new
    return (FormChange(FormChangeKind.OPSET_RAISED, before=old, after=new),)


def _uniform(model: ir.Model, domain: str) -> bool:
    """Whether the functions that are left import the same opset, and none is named like an operator."""
    version = model.opset_imports[domain]
    functions = model.functions.values()
    return all(f.domain not in ("", "ai.onnx") for f in functions) and all(
        f.opset_imports.get(domain, version) == version for f in functions
    )


class _Raising:
    def __init__(self, model: ir.Model, old: int, form: Form) -> None:
        self._model, self._old, self._target = model, old, form.target
        self._half = HalfPorts(form)
        held = [node for nodes in traversal.nodes(model.graph).values() for node in nodes]
        held += [node for function in model.functions.values() for node in function.all_nodes()]
        self._calls: dict[Call, list[ir.Node]] = {}
        for node in (node for node in held if not node.domain):
            self._calls.setdefault(half_ports.call(node), []).append(node)

    def best(self) -> Iterator[int]:
        """The versions to which the opset can be raised, the best first."""
        versions = range(self._old + 1, NEWEST + 1)
        gaining = [v for v in versions if any(self._gained(call, v) for call in self._calls)]
        if not gaining:
            return
        types = element_types.infer(self._model)
        gains = {version: self._gain(version, types) for version in gaining}
        for version in sorted(gains, key=lambda version: (-gains[version], version)):
            if gains[version] and self._keeps_kernels(version) and self._is_free(version, types):
                yield version

    def _gained(self, call: Call, version: int) -> frozenset[int]:
        return self._half.of(call, version) - self._half.of(call, self._old)

    def _gain(self, version: int, types: Types) -> int:
        """How many float32 nodes can be half that could not; 0 where none that can would start anything."""
        if not any(self._half.starts(call.operator) and self._half.of(call, version) for call in self._calls):
            return 0
        gained = ((nodes, self._gained(call, version)) for call, nodes in self._calls.items())
        return sum(
            half_ports.has_float32(node, ports, types) for nodes, ports in gained if ports for node in nodes
        )

    def _keeps_kernels(self, version: int) -> bool:
        """Whether no operator loses its kernels, and no port the half that it can be."""
        return not any(
            _lost(call.operator, self._old, version, self._target)
            or self._half.of(call, self._old) - self._half.of(call, version)
            for call in self._calls
        )

    def _is_free(self, version: int, types: Types) -> bool:
        nodes = (node for nodes in self._calls.values() for node in nodes)
        return all(version_changes.same(node, self._old, version, types, _rank) for node in nodes)


def _lost(operator: str, old: int, new: int, target: Target) -> bool:
    before, after = (schema.find("", operator, version) for version in (old, new))
    return (
        before is not None
        and after is not None
        and target.serves("", operator, before.since)
        and not target.serves("", operator, after.since)
    )


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)
