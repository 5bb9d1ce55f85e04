"""Application of exponents to a prepared model in float32, whose outputs keep their bits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.observed import Extremes, Seen
from amp_rewrite.analysis.units import Use
from amp_rewrite.model import graph_edits
from amp_rewrite.onnx_types.element_types import Types, tensor
from amp_rewrite.rescaling.regions import Exponents
from amp_rewrite.rescaling.system import FREE, System, Variable, epsilon_of
from amp_rewrite.rewriting import editing
from amp_rewrite.rewriting.instrument import Inserter, redirect
from amp_rewrite.rewriting.plan import Rescaled, Scaled

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True, slots=True)
class Applied:
    """What was `rescaled`, and the values afterwards by name: the name in the original, and the exponent.

    `undo` are the steps back. It `is_needed` where half would flush values without.
    """

    rescaled: Rescaled
    origins: Mapping[str, tuple[str, int]]
    undo: Sequence[Callable[[], object]] = ()
    is_needed: bool = False

    def revert(self) -> None:
        """Give the model back its stored values, epsilons and nodes."""
        for step in self.undo:
            step()

    def observations(self, observed: Seen) -> Seen:
        """Return the observations of the rescaled model: those of the original, times powers of two."""
        origins = ((name, observed.get(origin), e) for name, (origin, e) in self.origins.items())
        return {**observed, **{name: _times(each, e) for name, each, e in origins if each is not None}}


def _times(extremes: Extremes, e: int) -> Extremes:
    """Return the extremes of a scaled value, whose elements were not counted."""
    low, high = math.ldexp(extremes.low, -e), math.ldexp(extremes.high, -e)
    return replace(extremes, low=low, high=high, counted=0, beyond=0, flushed=0, not_finite=0)


def find(system: System, values: Iterable[Scaled]) -> Exponents:
    """Return the exponents of values by their names; raise LookupError for those of other models."""
    by_key = {key: variable for variable in system.variables for key in _keys(system, variable)}
    return {by_key[each.value, each.reader, each.port]: each.exponent for each in values}


def _keys(system: System, variable: Variable) -> Iterator[tuple[str, str | None, int]]:
    """Yield what identifies a variable in a plan: a computed value, or each use of a stored one."""
    value = system.value(variable)
    name, is_stored = value.name or "", value in system.constants
    uses = (variable,) if isinstance(variable, Use) else map(Use._make, value.uses()) if is_stored else ()
    if not is_stored:
        yield name, None, 0
    for use in uses:
        if isinstance(use.holder, ir.Node):
            yield name, use.holder.outputs[0].name, use.port


def apply(system: System, exponents: Exponents, types: Types) -> Applied:
    """Scale the values of a model, and complete the `types` of its values."""
    exponents = {each: e for each, e in exponents.items() if not _is_zero(system, each)}
    values = tuple(Scaled(*key, e) for variable, e in exponents.items() for key in _keys(system, variable))
    edits = _Edits(system, exponents, types)
    sources = {source: None for variable in exponents if (source := system.source(variable)) is not None}
    weights = sum(map(edits.rescale, sources))
    epsilons = sum(edits.set_epsilon(node, exponents.get(data, 0)) for node, data in system.norms)
    computed = [each for each in exponents if isinstance(each, ir.Value) and each not in sources]
    muls = sum(edits.insert_mul(value, exponents[value]) for value in computed)
    redirect([(uses, product) for uses, _, product in edits.redirections])
    undo = (
        partial(redirect, [(uses, value) for uses, value, _ in edits.redirections]),
        *reversed(edits.undo),
    )
    products, norms = tuple(edits.products), tuple(edits.norms)
    rescaled = Rescaled(values, weights, epsilons, muls, products=products, norms=norms)
    return Applied(rescaled, edits.origins, undo)


def _is_zero(system: System, variable: Variable) -> bool:
    """Return whether a stored value has no number but 0, which is so at any exponent."""
    return system.source(variable) is not None and system.limits(variable) is FREE


class _Edits(Inserter):
    """The edits of a model; `origins` as of Applied. `redirections` are uses of a value, it, and what they
    read afterwards; `undo` takes back all else, the last step first.
    """

    def __init__(self, system: System, exponents: Exponents, types: Types) -> None:
        super().__init__(system.model)
        self._system, self._exponents, self._types = system, exponents, types
        self.redirections: list[tuple[Sequence[Use], ir.Value, ir.Value]] = []
        self.undo: list[Callable[[], object]] = []
        self.products: list[str] = []
        self.norms: list[tuple[str, int]] = []
        self.origins: dict[str, tuple[str, int]] = {}
        self._powers: dict[int, ir.Value] = {}

    def rescale(self, value: ir.Value) -> int:
        """Scale a stored value in place, or in a copy for each exponent; return the number of edits."""
        uses: dict[int, list[Use]] = defaultdict(list)
        shared, constant = self._exponents.get(value, 0), self._system.constants[value]
        for use in (Use(*use) for use in value.uses()):
            uses[self._exponents.get(use, shared)].append(use)
        for e, users in uses.items():
            conversion = partial(editing.scale_block, e=e)
            if len(uses) == 1:
                self.undo.append(partial(graph_edits.store, constant, constant.tensor))
                graph_edits.store(
                    constant, editing.converted(conversion, _FLOAT, constant, constant.tensor.name)
                )
            elif e:
                name = self.names.of_value(value, "rescaled")
                copy = self._register(name, editing.converted(conversion, _FLOAT, constant, name))
                self.redirections.append((users, value, copy))
        return sum(map(bool, uses))

    def _register(self, name: str, data: ir.TensorProtocol) -> ir.Value:
        value = self.store(name, data)
        self.undo.append(partial(graph_edits.unregister, value, self.root))
        self._types[value] = tensor(_FLOAT)
        return value

    def set_epsilon(self, node: ir.Node, e: int) -> bool:
        """Scale the epsilon of a norm; return whether it changes."""
        epsilon = np.float32(epsilon_of(node))
        if e and epsilon:
            self.norms.append((node.outputs[0].name or "", e))
            self.undo.append(
                partial(node.attributes.__setitem__, "epsilon", ir.AttrFloat32("epsilon", float(epsilon)))
            )
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", float(np.ldexp(epsilon, -2 * e)))
        return bool(e and epsilon)

    def insert_mul(self, value: ir.Value, e: int) -> bool:
        """Insert the Mul of a value that is produced, or read, at exponent 0; return whether there is one."""
        name, pinned = value.name or "", self._system.reads.get(value, [])
        is_produced = value in self._system.produced
        uses = [use for each in value.uses() if (use := Use(*each)) not in pinned] if is_produced else pinned
        self.origins[name] = name, 0 if is_produced else e
        if uses:
            self._multiply(value, uses, -e if is_produced else e, name, e if is_produced else 0)
        return bool(uses)

    def _multiply(self, value: ir.Value, uses: Sequence[Use], power: int, origin: str, e: int) -> None:
        """Insert a Mul by a power of two behind a value, whose product these uses read."""
        product = ir.Value(
            name=self.names.of_value(value, "rescaled"), type=tensor(_FLOAT), shape=value.shape
        )
        name = self.names.of_node(product.name or "")
        mul = ir.Node("", "Mul", [value, self._power(power)], outputs=[product], name=name)
        self._types[product] = tensor(_FLOAT)
        self.origins[product.name or ""] = origin, e
        self.undo.append(partial(graph_edits.remove, [mul]))
        if any(use.holder is self.root for use in uses):
            self.undo.append(partial(_swap_names, product, value))
            _swap_names(product, value)
            one, other = product.name or "", value.name or ""
            self.origins[one], self.origins[other] = self.origins[other], self.origins[one]
        self.products.append(product.name or "")
        self.behind(value, [mul])
        self.redirections.append((uses, value, product))

    def _power(self, power: int) -> ir.Value:
        """Return the stored scalar 2**power."""
        if power not in self._powers:
            name = self.names.new_value(f"two_to_{power}")
            power_of_two = ir.Tensor(np.asarray(2.0**power, np.float32), name=name)
            self._powers[power] = self._register(name, power_of_two)
        return self._powers[power]


def _swap_names(one: ir.Value, other: ir.Value) -> None:
    one.name, other.name = other.name, one.name
