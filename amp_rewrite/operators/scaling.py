"""How operators scale: linear equations on the exponents of the values at their ports.

Where the value at port p is multiplied by s**e[p], `{OUT: 1, 0: -1, 1: -1}` says e[OUT] = e[0] + e[1]. Ports
are inputs by position and outputs as ~position. A port in no equation has exponent 0, one with coefficient 0
has any. For powers of two the equations hold bit for bit, as long as nothing is subnormal. Sources: ONNX's
operator documentation, onnxruntime's ContribOperators.md, and for gradients
orttraining/orttraining/core/graph/training_op_defs.cc.

Three read them: rescaling solves for powers of two, the certificate checks the exponents of a result, and the
linearity of a backward pass solves for degree 1 in its seed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol

OUT = ~0
"""The first output."""

Equation = Mapping[int, int]
"""Coefficients by port: their sum, times exponents, is 0."""


class Call(Protocol):
    """A node, as the equations of its operator read it."""

    @property
    def ports(self) -> Sequence[int]:
        """Its ports of floats."""
        ...

    @property
    def is_positive(self) -> bool:
        """Whether s is known to be positive."""
        ...

    @property
    def may_round(self) -> bool:
        """Whether an equation counts that runtimes keep but for errors of a power function."""
        ...

    @property
    def version(self) -> int:
        """The version of its operator."""
        ...

    def attribute(self, name: str) -> object:
        """Return an attribute, a string as text; None if it is absent, NaN if it is not known."""
        ...

    def number(self, port: int) -> float | None:
        """Return the only element of a stored input; None for any other input."""
        ...


Scaling = Callable[[Call], Sequence[Equation]]
"""Returns the equations of a node."""


def pinned(_: Call) -> Sequence[Equation]:
    """Return no equations: all exponents are 0."""
    return ()


def same(*ports: int) -> Scaling:
    """Return the scaling of an operator that gives these ports one exponent."""
    return lambda call: _alike(call, ports)


def together(call: Call) -> Sequence[Equation]:
    """Return the equations of an operator that is linear in all inputs together."""
    return _alike(call, call.ports)


def inputs_together(call: Call) -> Sequence[Equation]:
    """Return the equations of a comparison."""
    return _alike(call, [port for port in call.ports if port >= 0])


def linear(equation: Equation, *addends: int) -> Scaling:
    """Return the scaling of an operator with this equation, to whose output others are added."""
    return lambda call: [equation, *_alike(call, (OUT, *addends))]


def free(*ports: int) -> Scaling:
    """Return the scaling of an operator that is the same for any factor of these ports."""
    return lambda _: [{port: 0} for port in ports]


def positive(scaling: Scaling) -> Scaling:
    """Return a scaling that holds for positive factors alone."""
    return lambda call: scaling(call) if call.is_positive else ()


def rounded(scaling: Scaling) -> Scaling:
    """Return a scaling that runtimes keep but for errors of a power function."""
    return lambda call: scaling(call) if call.may_round else ()


def unless(attribute: str, scaling: Scaling) -> Scaling:
    """Return a scaling that holds for nodes without this attribute, or with 0 or an empty text."""
    return lambda call: () if call.attribute(attribute) else scaling(call)


def norm(data: Sequence[int], weights: Sequence[int]) -> Scaling:
    """Return the scaling of a norm of the sum of `data`, which `weights` scale and shift; its epsilon has
    twice the exponent of the data. One with other outputs than the quotient and the sum, its fourth, stays
    as it is.
    """

    def equations(call: Call) -> Sequence[Equation]:
        if any(port < 0 and port not in (OUT, _SUM) for port in call.ports):
            return ()
        return [{data[0]: 0}, *_alike(call, (*data, _SUM)), *_alike(call, (*weights, OUT))]

    return positive(unless("activation", equations))


_SUM = ~3


def pad(call: Call) -> Sequence[Equation]:
    """Return the equations of a Pad, whose value scales if it is an input."""
    mode = call.attribute("mode") or "constant"
    if mode == "constant":
        return () if call.attribute("value") else _alike(call, (0, 2, OUT))
    return _alike(call, (0, OUT)) if mode in ("edge", "reflect", "wrap") else ()


def scatter(call: Call) -> Sequence[Equation]:
    """Return the equations of a scatter, by its reduction."""
    reduction = call.attribute("reduction") or "none"
    is_kept = reduction in ("none", "add") or (call.is_positive and reduction in ("max", "min"))
    return _alike(call, (0, 2, OUT)) if is_kept else ()


def power(call: Call) -> Sequence[Equation]:
    """Return the equation of a stored power: runtimes compute squares and cubes as products."""
    exponent = call.number(1)
    if exponent is None or not math.isfinite(exponent) or not (call.may_round or exponent in (2, 3)):
        return ()
    exact = Fraction(exponent)
    return [{OUT: exact.denominator, 0: -exact.numerator}]


def clip(call: Call) -> Sequence[Equation]:
    """Return the equations of a Clip, whose bounds scale if they are inputs."""
    return () if call.attribute("min") or call.attribute("max") else together(call)


def cast(call: Call) -> Sequence[Equation]:
    """Return the equations of a Cast: a boolean says whether a number is 0, and an integer does not scale."""
    to = call.attribute("to")
    return [{0: 0}] if to == _BOOL else _alike(call, (0, OUT)) if to in _FLOATS else ()


_BOOL, _FLOATS = 9, (1, 10, 11, 16)
"""Numbers of TensorProto.DataType: BOOL, and FLOAT, FLOAT16, DOUBLE, BFLOAT16."""


def cast_like(call: Call) -> Sequence[Equation]:
    """Return the equations of a CastLike to floats."""
    return [*_alike(call, (0, OUT)), {1: 0}]


def batch_norm(call: Call) -> Sequence[Equation]:
    """Return the equations of a BatchNormalization: its variance stays. Before version 7, and with other
    outputs, it computes statistics of its own.
    """
    if call.version < 7 or any(port < OUT for port in call.ports):
        return ()
    return [*_alike(call, (0, 3)), *_alike(call, (OUT, 2)), {OUT: 1, 0: -1, 1: -1}]


def split(call: Call) -> Sequence[Equation]:
    """Return the equations of an operator with several outputs of elements of its first input."""
    return _alike(call, [port for port in call.ports if port <= 0])


def einsum(call: Call) -> Sequence[Equation]:
    """Return the equation of a product of all inputs."""
    return [{port: -1 if port >= 0 else 1 for port in call.ports}]


def _alike(call: Call, ports: Iterable[int]) -> list[Equation]:
    present = [port for port in ports if port in call.ports]
    return [{one: 1, other: -1} for one, other in itertools.pairwise(present)]


def equations(scaling: Scaling, call: Call) -> list[Equation]:
    """Return the equations of a node, for the ports that it has."""
    return [{port: row[port] for port in row if port in call.ports} for row in scaling(call)]


def solve(
    rows: Sequence[Equation], call: Call, exponents: Mapping[int, int], least: Mapping[int, float]
) -> Mapping[int, int] | None:
    """Return the exponents of a node's outputs by ~position, from those of its inputs, 0 by default; None
    where the equations do not hold. An input in `least`, as a stored zero, has any exponent from there on.
    """
    inputs = [port for port in call.ports if port >= 0]
    known = {port: exponents.get(port, 0) for port in inputs if port not in least}
    bound = {port for row in rows for port in row}
    if any(known.get(port, max(0, least.get(port, 0))) for port in inputs if port not in bound):
        return None
    known |= {port: 0 for port in call.ports if port not in bound}
    pending, waiting = [row for row in rows if any(row.values())], [port for port in inputs if port in least]
    while pending:
        row = next((each for each in pending if len(_unknown(each, known)) <= 1), None)
        if row is None:  # nothing but stored zeros: they keep the exponents that they have
            port = next((port for port in waiting if port not in known), None)
            if port is None:
                return None
            known[port] = exponents.get(port, 0)
            continue
        pending.remove(row)
        total, unknown = sum(row[port] * known[port] for port in row if port in known), _unknown(row, known)
        value, rest = divmod(-total, row[unknown[0]]) if unknown else (0, total)
        if rest:
            return None
        known |= dict.fromkeys(unknown, value)
    fits = all(known.get(port, limit) >= limit for port, limit in least.items())
    return {port: exponent for port, exponent in known.items() if port < 0} if fits else None


def _unknown(row: Equation, known: Mapping[int, int]) -> list[int]:
    return [port for port, coefficient in row.items() if coefficient and port not in known]
