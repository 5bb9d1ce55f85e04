"""Rows: the linear equations that operators impose on the exponents of the values at their ports.

With exponent e, v is stored as v * 2**-e. A float32 port in no equation and not free has exponent 0. Rules
hold for the bits too: sums, products, quotients, square roots and maxima commute with powers of two as
long as nothing is subnormal.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from amp_rewrite.model import patterns
from amp_rewrite.onnx_facts.operators import (
    COMPARISONS,
    LINEAR_IN_ALL,
    LINEAR_IN_THE_FIRST,
    NORMS,
    POSITIVE_IN_THE_FIRST,
    PRODUCTS_OF_TWO,
    UNSCALED,
)
from amp_rewrite.onnx_types import schema

Row = Mapping[int, int]
"""Coefficients by port, an input by its position and output k as ~k: their sum, times exponents, is 0."""

_OUT = ~0


@dataclass(frozen=True, slots=True)
class Equations:
    """The rows of a node, the ports that are `free`, and the one whose exponent scales the attribute epsilon:
    to epsilon * 2**(-2 e).
    """

    rows: Sequence[Row] = ()
    free: Collection[int] = ()
    epsilon: int | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """A node, and its ports of float32."""

    node: ir.Node
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    ports: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ports", frozenset((*self.ins, *self.outs)))

    def equal(self, *ports: int) -> list[Row]:
        """Return rows that give these ports one exponent, as far as they are float32."""
        present = [port for port in ports if port in self.ports]
        return [{one: 1, other: -1} for one, other in itertools.pairwise(present)]


_Rule = Callable[[Site], Equations]
PINNED = Equations()


def equations(site: Site) -> Equations:
    """Return the equations of a node; none for an operator without a rule, whose ports have exponent 0."""
    rule = _RULES.get(_operator(site.node))
    return PINNED if rule is None else rule(site)


def _operator(node: ir.Node) -> tuple[str, str]:
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type


def _equal(*ports: int) -> _Rule:
    return lambda site: Equations(site.equal(*ports))


def _together(site: Site) -> Equations:
    return Equations(site.equal(*site.ins, *site.outs))


def _free(*ports: int) -> _Rule:
    return lambda _: Equations(free=ports)


def _product(*addends: int, scale: int = 1) -> _Rule:
    """Return the rule of a product of input 0 and input `scale`, to which others are added."""

    def rule(site: Site) -> Equations:
        return Equations([_sum(site, (_OUT,), (0, scale)), *site.equal(_OUT, *addends)])

    return rule


def _sum(site: Site, left: Sequence[int], right: Sequence[int]) -> Row:
    """Return the row that the exponents on the left have the sum of those on the right."""
    counts = Counter(port for port in left if port in site.ports)
    counts.subtract(port for port in right if port in site.ports)
    return counts


def _without(attribute: str, rule: _Rule) -> _Rule:
    """Return a rule for nodes without this attribute; with one that is not 0 they have none."""

    def guarded(site: Site) -> Equations:
        stated = site.node.attributes.get(attribute)
        return rule(site) if stated is None or (not stated.is_ref() and stated.value == 0) else PINNED

    return guarded


def _pad(site: Site) -> Equations:
    is_constant = schema.text(site.node, "mode", "constant") == "constant"
    return Equations(site.equal(0, *((2,) if is_constant else ()), _OUT))


def _scatter(site: Site) -> Equations:
    return PINNED if patterns.effective_op(site.node) == "Mul" else Equations(site.equal(0, 2, _OUT))


def _clip(site: Site) -> Equations:
    has_attributes = not {"min", "max"}.isdisjoint(site.node.attributes)
    return PINNED if has_attributes else _together(site)


def _power(site: Site) -> Equations:
    """Runtimes compute the second and the third power as products, and others with errors of their own."""
    power = patterns.scalar(site.node.inputs[1])
    return Equations([{_OUT: 1, 0: -int(power)}]) if power in (2, 3) else PINNED


def _batch_norm(site: Site) -> Equations:
    return Equations([*site.equal(0, 3), *site.equal(_OUT, 2), _sum(site, (_OUT,), (0, 1))])


def _norm(site: Site) -> Equations:
    """Return the equations of a norm, whose statistics nobody reads."""
    data, weights = NORMS[_operator(site.node)]
    if not {_OUT, _SUM}.issuperset(site.outs):
        return PINNED
    return Equations([*site.equal(*data, _SUM), *site.equal(*weights, _OUT)], free=data[:1], epsilon=data[0])


_SUM = ~3
"""The output of a norm that is the sum of its data."""

_MS = "com.microsoft"
_POSITIVE = frozenset(POSITIVE_IN_THE_FIRST) - {"GlobalLpPool", "LpPool"}
"""Without those that runtimes compute as powers, with errors of their own."""

_RULES: Mapping[tuple[str, str], _Rule] = {
    **{("", name): _equal(0, _OUT) for name in (*LINEAR_IN_THE_FIRST, *_POSITIVE)},
    **{("", name): _together for name in (*LINEAR_IN_ALL, "Max", "Min")},
    **{("", name): lambda site: Equations(site.equal(*site.ins)) for name in COMPARISONS},
    **{("", name): _free(0) for name in UNSCALED},
    **dict.fromkeys(NORMS, _norm),
    **{key: _product(2) for key in PRODUCTS_OF_TWO},
    ("", "BatchNormalization"): _without("training_mode", _batch_norm),
    ("", "Cast"): lambda site: (
        PINNED if schema.integer(site.node, "to") != ir.DataType.BOOL else Equations(free=(0,))
    ),
    ("", "Clip"): _clip,
    ("", "DequantizeLinear"): _equal(1, _OUT),
    ("", "Div"): lambda site: Equations([_sum(site, (_OUT, 1), (0,))]),
    ("", "Einsum"): lambda site: Equations([_sum(site, (_OUT,), site.ins)]),
    ("", "Pad"): _without("value", _pad),
    ("", "Pow"): _power,
    ("", "QuantizeLinear"): _equal(0, 1),
    ("", "Reciprocal"): lambda _: Equations([{_OUT: 1, 0: 1}]),
    ("", "ReduceSumSquare"): lambda _: Equations([{_OUT: 1, 0: -2}]),
    ("", "Resize"): _without("extrapolation_value", _equal(0, _OUT)),
    ("", "ScatterElements"): _scatter,
    ("", "ScatterND"): _scatter,
    ("", "Split"): lambda site: Equations(site.equal(0, *site.outs)),
    ("", "Sqrt"): lambda _: Equations([{_OUT: 2, 0: -1}]),
    ("", "Where"): _equal(1, 2, _OUT),
    (_MS, "GroupNorm"): _without("activation", _norm),
    (_MS, "MatMulNBits"): _product(5, scale=2),
    (_MS, "RotaryEmbedding"): _equal(0, _OUT),
}
"""Rules by the definitions of ONNX and of onnxruntime's operators; each was compared in bits with runs."""


def epsilon(node: ir.Node) -> float:
    """Return the epsilon of a norm, by default that of its schema."""
    return schema.number(node, "epsilon", 1e-12 if node.op_type.startswith("Skip") else 1e-5)
