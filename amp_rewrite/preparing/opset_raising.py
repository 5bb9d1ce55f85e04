"""Raising of a model's opset number to one at which more nodes can be half, or setting it as asked.

onnxruntime's CUDA provider has a half Clip from opset 12 on, most operators in bfloat16 from 13 on, and Conv
from 22 on. The number changes nothing that a model computes where every node means the same at both versions
(onnx_types.version_changes); the IR version stays.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import onnx
import onnx_ir as ir

from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.model import traversal
from amp_rewrite.onnx_types import element_types, schema, version_changes
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.operators.versions import CHANGES, Spared
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.policy.options import Form
from amp_rewrite.policy.targets import Target
from amp_rewrite.preparing import half_ports, value_sizes
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from amp_rewrite.preparing.half_ports import HalfPorts, KernelKey, Outlook

NEWEST = 24
"""The newest opset to which a model is raised: no operator gains a half kernel at a newer one."""


@dataclass(frozen=True, slots=True)
class NewerOpset:
    """An opset at which more is half, and at which some nodes lose their kernels on the target, so that it
    is for the user to ask for: `nodes` counts those that are half in addition, and `lost` names the operator
    of each that has no kernel then.
    """

    version: int
    nodes: int
    lost: tuple[str, ...]

    @property
    def loss(self) -> str:
        """What the target lacks, in words."""
        return f"no kernels for {', '.join(f'{n} {operator}' for operator, n in Counter(self.lost).items())}"


def raise_opset(model: ir.Model, form: Form) -> tuple[tuple[FormChange, ...], NewerOpset | None]:
    """Raise the opset to the one with the best outlook (half_ports), the lowest of several; return with the
    change the newer one that is better, but at which nodes lose their kernels.

    It stays if none is better, if the semantics of a node would change, or if a node would lose its kernels
    on the target. Nothing newer is offered where the user decides.
    """
    domain, old = _imported(model)
    if form.opset is not None:
        return _set_opset(model, form, form.opset), None
    if not form.raise_opset or not version_changes.OLDEST <= old < NEWEST or not _uniform(model, domain):
        return (), None
    new, newer = _Raising(model, old, form).choose()
    if new == old:
        return (), newer
    _import(model, domain, new)
    return (FormChange(FormChangeKind.OPSET_RAISED, before=old, after=new),), newer


def without_kernels(model: ir.Model, form: Form, changes: Iterable[FormChange]) -> frozenset[ir.Node]:
    """Return the nodes that lose their kernels on the target at the opset that the user asked for."""
    asked = (change for change in changes if change.kind is FormChangeKind.OPSET_SET)
    return frozenset(
        node
        for change in asked
        for node in traversal.every_node(model.graph)
        if not node.domain and _loses_kernels(node.op_type, change.before, change.after, form.target)
    )


def _imported(model: ir.Model) -> tuple[str, int]:
    """Return the name of the default domain in a model, and its opset."""
    imports = model.graph.opset_imports
    domain = "" if "" in imports else "ai.onnx"
    return domain, imports.get(domain, NEWEST)


def _import(model: ir.Model, domain: str, version: int) -> None:
    for container in (model, *model.functions.values()):
        if domain in container.opset_imports:
            container.opset_imports[domain] = version


def _set_opset(model: ir.Model, form: Form, new: int) -> tuple[FormChange, ...]:
    """Set the opset to `new`; raise ModelError, which names a node, where that would change what it means."""
    domain, old = _imported(model)
    if new == old or domain not in model.opset_imports:
        return ()
    newest = onnx.defs.onnx_opset_version()
    if max(old, new) > newest:
        problem = f"`Options.opset`: the installed onnx knows opsets up to {newest}, not {max(old, new)}"
        raise OptionError(problem, remedy="ask for an older one")
    problem = ""
    if not _uniform(model, domain):
        problem = "its functions import opsets of their own"
    elif node := _Raising(model, old, form).first_changed(new):
        problem = f"{node.op_type} '{pinned_as(node)}' may mean something else there"
    if problem:
        raise ModelError(
            f"does not stay the same from opset {old} to {new}: {problem}",
            where="the given model",
            remedy="leave out `Options.opset`, or ask for another",
        )
    _import(model, domain, new)
    return (FormChange(FormChangeKind.OPSET_SET, before=old, after=new),)


def _uniform(model: ir.Model, domain: str) -> bool:
    """Return whether all remaining functions import the same opset, and none is named like an operator."""
    version = model.opset_imports[domain]
    functions = model.functions.values()
    return all(f.domain not in ("", "ai.onnx") for f in functions) and all(
        f.opset_imports.get(domain, version) == version for f in functions
    )


class _Raising:
    def __init__(self, model: ir.Model, old: int, form: Form) -> None:
        self._model, self._old, self._target = model, old, form.target
        self._half = HalfPorts(form)
        self._main = traversal.nodes(model.graph)
        inner = (node for function in model.functions.values() for node in function.all_nodes())
        main = itertools.chain.from_iterable(self._main.values())
        self._nodes = [node for node in (*main, *inner) if not node.domain]
        self._calls = {half_ports.call(node, old) for node in self._nodes}

    def choose(self) -> tuple[int, NewerOpset | None]:
        """Return the version with the best outlook of those that keep all kernels, the present one if none is
        better, and a newer one with a better outlook.
        """
        old = self._old
        versions = [version for version in range(old + 1, NEWEST + 1) if self._frees(version)]
        types = element_types.infer(self._model) if versions else {}
        outlooks = {version: self._outlook(version, types) for version in (old, *versions)}

        def better(than: int, keeps: Callable[[int], bool]) -> Iterator[int]:
            for version in sorted(outlooks, key=lambda version: (-outlooks[version].gain, version)):
                is_better = version > than and outlooks[version].gain > outlooks[than].gain
                if is_better and keeps(version) and self.first_changed(version, types) is None:
                    yield version

        new = next(better(old, self._keeps_kernels), old)
        for version in better(new, lambda _: True):
            lost = [n.op_type for n in self._nodes if _loses_kernels(n.op_type, new, version, self._target)]
            more = len(outlooks[version].half) - len(outlooks[new].half)
            return new, NewerOpset(version, more, tuple(lost))
        return new, None

    def _frees(self, version: int) -> bool:
        """Return whether a node can be half at a version, but not at the one before."""
        return any(
            self._ports(call, version) - self._ports(call, version - 1) - self._ports(call, self._old)
            for call in self._calls
        )

    def _ports(self, call: KernelKey, version: int) -> frozenset[int]:
        return self._half.of(call._replace(version=version))

    def _keeps_kernels(self, version: int) -> bool:
        """Return whether no operator loses its kernels, and no port its support for half."""
        return not any(
            _loses_kernels(call.operator, self._old, version, self._target)
            or self._ports(call, self._old) - self._ports(call, version)
            for call in self._calls
        )

    def _outlook(self, version: int, types: Types) -> Outlook:
        imported = element_types.versions(self._model.opset_imports)
        return half_ports.predict_outlook(
            self._main, types, self._half, lambda domain: imported(domain) if domain else version
        )

    def first_changed(self, version: int, types: Types | None = None) -> ir.Node | None:
        """Return a node whose semantics may change; those whose check needs ranks come last."""
        value_types = element_types.infer(self._model) if types is None else types
        inferred = functools.cache(partial(value_sizes.infer, self._model, value_types))

        def rank_of(value: ir.Value) -> int | None:
            shape = inferred().of(value) if value.shape is None else value.shape
            return None if shape is None else len(shape)

        ordered = sorted(self._nodes, key=lambda node: node.op_type in _BY_RANK)
        is_same = partial(
            version_changes.same, old=self._old, new=version, types=value_types, rank_of=rank_of
        )
        return next((node for node in ordered if not is_same(node) or self._ends(node, version)), None)

    def _ends(self, node: ir.Node, version: int) -> bool:
        """Return whether the runtime alone knows the operator of a node, and not at a version."""
        is_known = schema.of_onnx("", node.op_type, version) is not None
        return not is_known and _loses_kernels(node.op_type, self._old, version, self._target)


_BY_RANK = [
    name
    for name, changes in CHANGES.items()
    if any(change.spares is Spared.OF_LAST_AXIS for change in changes)
]
"""Operators of which a change spares nodes by their rank."""


def _loses_kernels(operator: str, old: int, new: int, target: Target) -> bool:
    before, after = (schema.find("", operator, version) for version in (old, new))
    return (
        before is not None
        and after is not None
        and target.serves("", operator, before.since)
        and not target.serves("", operator, after.since)
    )
