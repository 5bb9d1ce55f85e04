"""An idiom as data: the nodes that spell an operator out, and the role of each."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.policy.entries import Operator


@dataclass(frozen=True, slots=True)
class Idiom:
    """Nodes of one graph that spell out `operator`, as lists name it, of the value `data`.

    `inner` compute what the operator computes in float32 whatever its type, up to and including `result`,
    whose output is the operator's: none of them becomes half, and Casts stand before and after them. `outer`
    go with the operator as its weight, its bias or, where there is no `inner`, as its only parts: they are
    decided as the operator is, and have one colour. Without `inner` there is no `result`.

    `typed_as` is a value where a runtime fuses the nodes into one whose weights must have the type of that
    value: then its producer and `outer` have one colour, or `outer` are float32 as another consumer reads it
    as float32. Where it `has_one_type`, the kernels of `inner` are as exact as the operator's: they are
    decided as it is, and have the colour of `outer`.
    """

    operator: Operator
    data: ir.Value
    inner: tuple[ir.Node, ...] = ()
    result: ir.Node | None = None
    outer: tuple[ir.Node, ...] = ()
    typed_as: ir.Value | None = None
    has_one_type: bool = False


@dataclass(frozen=True, slots=True)
class WrittenNorm:
    """The nodes that centre data, those up to the `reduction` of their powers, those from there to the
    quotient, and the quotient.
    """

    data: ir.Value
    centring: tuple[ir.Node, ...]
    power: tuple[ir.Node, ...]
    reduction: ir.Node
    chain: tuple[ir.Node, ...]
    result: ir.Node

    @property
    def inner(self) -> tuple[ir.Node, ...]:
        """All of these nodes."""
        return (*self.centring, *self.power, *self.chain, self.result)


class Part(enum.Enum):
    """Role of a unit in an idiom: INNER, the RESULT, which stands for the operator, or OUTER (see Idiom)."""

    INNER = "inner"
    RESULT = "result"
    OUTER = "outer"


@dataclass(frozen=True, slots=True)
class Spelled:
    """A unit's part in an idiom, and the operator that the idiom spells out."""

    part: Part
    operator: Operator
    has_one_type: bool = False


@dataclass(frozen=True, slots=True)
class Alike:
    """Units that a runtime requires to have one type: the producer of data, None where no unit is, and
    weights.

    `result` is the result of the idiom, and `beside` are the units outside of it that read the data (none
    where the data are produced inside of it). `enters` holds where the data are an input of the model that
    becomes half, `leaves` where they are an output that does not.
    """

    result: int
    producer: int | None
    weights: tuple[int, ...]
    beside: tuple[int, ...]
    enters: bool
    leaves: bool
