"""The kernels of a runtime, as it registers them: the joint types of an operator's variables."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.schema import Signature
from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.record import Trait

Takes = Mapping[str, frozenset[str]]
"""One kernel: the float types that it takes for each type variable; variables not named have any type."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """An operator's kernels for the versions from `since` until `until`; None where the end is open."""

    since: int
    until: int | None
    takes: tuple[Takes, ...]

    def serve(self, version: int) -> bool:
        """Return whether the kernels apply to a node of that version.

        An open end promises nothing for a newer version (onnxruntime's `KernelRegistry::VerifyKernelDef`).
        """
        return version == self.since or (self.until is not None and self.since <= version <= self.until)


@dataclass(frozen=True, slots=True)
class Support:
    """The kernels that a runtime has for one operator at one version."""

    takes: tuple[Takes, ...]

    def has(self, variable: str, half: str) -> bool:
        """Return whether a variable can be half, by a kernel for it or one that names half elsewhere only."""
        return any(half in kernel.get(variable, _any(kernel)) for kernel in self.takes)

    def joined(self, half: str) -> tuple[frozenset[str], ...]:
        """Return groups of variables that are half together or not at all, though the schema allows more."""
        groups: list[set[str]] = []
        for pair in self._pairs(half):
            touched = [group for group in groups if group & pair]
            groups = [group for group in groups if not group & pair] + [pair.union(*touched)]
        return tuple(map(frozenset, groups))

    def _pairs(self, half: str) -> Iterator[set[str]]:
        variables = sorted({variable for kernel in self.takes for variable in kernel})
        for one, other in itertools.combinations(variables, 2):
            both = [(kernel.get(one, _NONE), kernel.get(other, _NONE)) for kernel in self.takes]
            together = any(half in a and half in b for a, b in both)
            apart = any((half in a and _FLOAT in b) or (half in b and _FLOAT in a) for a, b in both)
            if together and not apart:
                yield {one, other}


_NONE = frozenset[str]()
_FLOAT = "float"


def _any(kernel: Takes) -> frozenset[str]:
    return frozenset[str]().union(*kernel.values())


Table = Mapping[str, tuple[Kernels, ...]]
"""Kernels by operator, as lists write it."""


@functools.cache
def load(name: str) -> Table:
    """Return a table that comes with this package; `benchmarks/kernels.py` writes them."""
    table = json.loads((_TABLES / f"{name}.json").read_text(encoding="utf-8"))
    return {operator: tuple(map(_kernels, spans)) for operator, spans in table["operators"].items()}


_TABLES = Path(__file__).with_name("kernel_tables")


def _kernels(span: Mapping[str, Any]) -> Kernels:
    takes = ({variable: frozenset(kinds) for variable, kinds in kernel.items()} for kernel in span["types"])
    return Kernels(span["since"], span["until"], tuple(takes))


def support(
    table: Table, domain: str, operator: str, signature: Signature, half: str, *, expands: bool = True
) -> Support | None:
    """Return the kernels for an operator; None where a runtime that `expands` runs it as its ONNX function.

    onnxruntime expands the function where no provider has a kernel; its operators then need kernels. They are
    unknown for a function that depends on the node, which counts only for an operator without any kernels.
    Clip in bfloat16 would be a Less, for which there is no kernel.
    """
    spans = table.get(schema.written(domain, operator), ())
    takes = tuple(kernel for span in spans if span.serve(signature.since) for kernel in span.takes)
    is_own = any(half in _any(kernel) for kernel in takes) or (takes and signature.depends_on_node)
    if is_own or not expands or not _expands(table, operator, signature, half):
        return Support(takes)
    return None


def serves(table: Table, domain: str, operator: str, version: int) -> bool:
    """Return whether there are kernels of any types for a version of an operator."""
    return any(span.serve(version) for span in table.get(schema.written(domain, operator), ()))


def _expands(table: Table, operator: str, signature: Signature, half: str) -> bool:
    if signature.depends_on_node:
        # onnxruntime 1.31.1 has no kernels for Greater, Pad or Log in bfloat16, which these need
        return half != "bfloat16" or operator not in (
            "Bernoulli",
            "CenterCropPad",
            "NegativeLogLikelihoodLoss",
            "SoftmaxCrossEntropyLoss",
        )
    parts = signature.body - _TYPED
    return bool(parts) and all(_is_there(table, part, half) for part in parts)


_TYPED = {("", name) for name in having(Trait.CASTS) | {"Constant"}}
"""Operators in functions whose types follow from their neighbours'."""


def _is_there(table: Table, part: tuple[str, str], half: str) -> bool:
    """Return whether any version of an operator has a half kernel."""
    spans = table.get(schema.written(*part), ())
    return any(half in _any(kernel) for span in spans for kernel in span.takes)
