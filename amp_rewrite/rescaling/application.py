"""Application of exponents to a prepared model in float32, whose outputs keep their bits."""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.analysis.observed import Extremes, Seen
from amp_rewrite.analysis.units import Use
from amp_rewrite.errors import ModelError
from amp_rewrite.model import graph_edits, traversal
from amp_rewrite.model.constants import CONSTANT_INPUTS_BELOW
from amp_rewrite.model.unique_names import UniqueNames
from amp_rewrite.onnx_types.element_types import Types, tensor
from amp_rewrite.rescaling import rows
from amp_rewrite.rescaling.propagation import Exponents
from amp_rewrite.rescaling.system import FREE, System, Variable
from amp_rewrite.rewriting import editing
from amp_rewrite.rewriting.cast_insertion import Placer, Redirection, redirect
from amp_rewrite.rewriting.plan import Rescaled, Scaled


@dataclass(frozen=True, slots=True)
class Applied:
    """What was `rescaled`, and the values afterwards by name: the name in the original, and the exponent."""

    rescaled: Rescaled
    origins: Mapping[str, tuple[str, int]]

    def observations(self, seen: Seen) -> Seen:
        """Return the observations of the rescaled model: those of the original, times powers of two."""
        scaled = {
            name: _scaled_extremes(seen[origin], e)
            for name, (origin, e) in self.origins.items()
            if origin in seen
        }
        return {**seen, **scaled}


def apply(system: System, exponents: Exponents, types: Types) -> Applied:
    """Scale the values of a model, and complete the `types` of its values."""
    values = tuple(itertools.starmap(_described, exponents.items()))
    edits = _Edits(system, exponents, types)
    weights = sum(map(edits.store, edits.stored_values()))
    epsilons = sum(map(edits.set_epsilon, *zip(*system.epsilons, strict=True))) if system.epsilons else 0
    muls = sum(map(edits.insert_mul, edits.pinned_values()))
    redirect(edits.redirections)
    return Applied(Rescaled(values, weights, epsilons, muls), edits.origins)


def _described(variable: Variable, e: int) -> Scaled:
    if isinstance(variable, ir.Value):
        return Scaled(variable.name or "", e)
    node, port = variable
    assert isinstance(node, ir.Node), "outputs of graphs are values"
    value = node.inputs[port]
    return Scaled(value.name if value is not None and value.name else "", e, node.outputs[0].name, port)


def find_exponents(system: System, values: Iterable[Scaled]) -> Exponents | None:
    """Return the exponents of a saved plan; None where the model lacks one of its values."""
    stored = {value.name: value for value in system.stored}
    made = {value.name: value for value in system.made}
    others = {variable.name: variable for variable in system.variables if isinstance(variable, ir.Value)}
    exponents: dict[Variable, int] = {}
    for each in values:
        reader = made.get(each.reader) if each.reader is not None else None
        node = reader.producer() if reader is not None else None
        variable = others.get(each.value) if each.reader is None else node and Use(node, each.port)
        if variable is None or (node is not None and each.value not in stored):
            return None
        exponents[variable] = each.exponent
    return exponents


def _scaled_extremes(extremes: Extremes, e: int) -> Extremes:
    """Return the extremes of a scaled value, whose elements were not counted."""
    low, high = math.ldexp(extremes.low, -e), math.ldexp(extremes.high, -e)
    return (
        replace(extremes, low=low, high=high, counted=0, beyond=0, flushed=0, not_finite=0) if e else extremes
    )


@dataclass(slots=True)
class _Edits:
    """The edits of a model; `origins` as of Applied."""

    system: System
    exponents: Exponents
    types: Types
    redirections: list[Redirection] = field(default_factory=list[Redirection])
    origins: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    _names: UniqueNames = field(init=False)
    _placer: Placer = field(default_factory=Placer)
    _powers: dict[int, ir.Value] = field(default_factory=dict[int, ir.Value])

    def __post_init__(self) -> None:
        self._names = UniqueNames(traversal.graphs(self.system.model.graph))

    def stored_values(self) -> Iterable[ir.Value]:
        """Return the stored values that change; zeros have any exponent."""
        sources = dict.fromkeys(filter(None, map(self.system.source, self.exponents)))
        return [value for value in sources if self.system.limits(value) is not FREE]

    def store(self, value: ir.Value) -> int:
        """Scale a stored value in place, or in a copy for each exponent; return the number of edits."""
        uses: dict[int, list[Use]] = defaultdict(list)
        shared = self.exponents.get(value, 0)
        for node, port in value.uses():
            uses[self.exponents.get(Use(node, port), shared)].append(Use(node, port))
        stored = self.system.stored[value]
        for e, users in uses.items():
            conversion = functools.partial(_scaled, e=e)
            if len(uses) == 1:
                graph_edits.store(
                    stored, editing.converted(conversion, ir.DataType.FLOAT, stored, stored.tensor.name)
                )
            elif e:
                name = self._names.of_value(value, "rescaled")
                copy = editing.converted(conversion, ir.DataType.FLOAT, stored, name)
                self.redirections.append((users, self._register(name, copy)))
        return sum(map(bool, uses))

    def _register(self, name: str, stored: ir.TensorProtocol) -> ir.Value:
        model, kind = self.system.model, tensor(ir.DataType.FLOAT)
        value = ir.Value(name=name, type=kind, shape=ir.Shape(stored.shape.numpy()), const_value=stored)
        graph_edits.register(value, model.graph, as_input=model.ir_version < CONSTANT_INPUTS_BELOW)
        self.types[value] = kind
        return value

    def set_epsilon(self, node: ir.Node, data: Any) -> bool:
        """Scale the epsilon of a norm; return whether it changes."""
        e, epsilon = self.exponents.get(data, 0), np.float32(rows.epsilon(node))
        if e and epsilon:
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", float(np.ldexp(epsilon, -2 * e)))
        return bool(e and epsilon)

    def pinned_values(self) -> Iterator[ir.Value]:
        """Yield the values with an exponent; those that are stored have no name of their own."""
        for variable in self.exponents:
            if isinstance(variable, ir.Value) and variable not in self.system.stored:
                yield variable

    def insert_mul(self, value: ir.Value) -> int:
        """Insert the Mul of a value that is produced, or read, at exponent 0; return the number of Muls."""
        e, system = self.exponents[value], self.system
        pinned = system.reads.get(value, ())
        if value not in system.produced:
            self.origins[value.name or ""] = value.name or "", e
            return self._insert(value, pinned, -e) if pinned else 0
        others = [Use(*use) for use in value.uses() if Use(*use) not in {*pinned}]
        return self._insert(value, others, e) if others else 0

    def _insert(self, value: ir.Value, uses: Iterable[Use], e: int) -> int:
        """Insert a Mul by 2**-e behind a value, for these uses."""
        kind = tensor(ir.DataType.FLOAT)
        output, name = ir.Value(type=kind, shape=value.shape), value.name or ""
        self.types[output] = kind
        mul = ir.Node(
            "",
            "Mul",
            [value, self._power(-e)],
            outputs=[output],
            name=self._names.of_node(f"{name}__rescaled"),
        )
        output.name = self._names.of_value(value, "rescaled")
        self.origins[output.name] = name, e if value in self.system.produced else 0
        if any(use.holder is self.system.model.graph for use in uses):
            output.name, value.name = name, output.name
            self.origins[value.name], self.origins[name] = self.origins[name], self.origins[value.name]
        self._placer.behind([mul], value)
        self.redirections.append((uses, output))
        return 1

    def _power(self, k: int) -> ir.Value:
        """Return the stored scalar 2**k."""
        if k not in self._powers:
            name = self._names.new_value(f"two_to_{k}")
            self._powers[k] = self._register(name, ir.Tensor(np.array(2.0**k, np.float32), name=name))
        return self._powers[k]


def _scaled(block: NDArray[Any], e: int) -> NDArray[Any]:
    """Return stored values times 2**-e; raise ModelError where bits would be lost."""
    scaled = np.asarray(np.ldexp(block, -e), block.dtype)
    if not np.array_equal(np.ldexp(scaled, e), block, equal_nan=True):
        raise ModelError("a stored value loses bits when it is scaled", remedy="rewrite with --no-rescale")
    return scaled
