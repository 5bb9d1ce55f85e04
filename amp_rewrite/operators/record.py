"""The record of an operator: what is known of it beyond its schema. A column that is left out means the
cautious default.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from onnx import TensorProto

from amp_rewrite.operators import scaling
from amp_rewrite.operators.flops import Formula
from amp_rewrite.operators.scaling import Scaling

Ports = tuple[int, ...] | range
"""Inputs by position."""

ALL = range(1 << 31)
"""Every input of a variadic operator."""
FIRST = range(1)


class Move(enum.Enum):
    """How the first output comes by the elements of an input, in its type."""

    REARRANGES = "all of them, in any order and shape"
    SELECTS = "some of them, and zeros"
    EXTREMES = "some of them, by their size along axes"
    BOUNDS = "the larger or the smaller of two"
    JOINS = "those of several inputs"
    CONTROLS = "those that bodies let through"


class Trait(enum.Flag):
    """What an operator does."""

    NONE = 0
    ADDS = enum.auto()
    """It adds or subtracts its inputs."""
    ARITHMETIC = enum.auto()
    """It computes with numbers element by element, as a graph does with sizes and positions."""
    AVERAGES = enum.auto()
    """It sums elements of the first input with equal weights."""
    SQUARES = enum.auto()
    """It adds up squares of the first input."""
    SUMS = enum.auto()
    """It adds up many elements of the first input, or functions of them."""
    REDUCES = enum.auto()
    """It computes one number from many of the first input, which it reads once."""
    SCALES = enum.auto()
    """It multiplies or divides one input by another."""
    COMMUTES = enum.auto()
    """Its operands may change places."""
    COMPARES = enum.auto()
    """It compares its inputs with each other, or tests one."""
    ORDERS = enum.auto()
    """It says which of its inputs is larger."""
    LOGICAL = enum.auto()
    """It joins or inverts booleans."""
    MEASURES = enum.auto()
    """It reads the shape of its input, and no element."""
    SOFTMAX = enum.auto()
    """It is a softmax, or contains one."""
    MULTIPLIES = enum.auto()
    """It adds up products of its inputs: its FLOPs take longer than its bytes."""
    RECURRENT = enum.auto()
    """It computes a sequence step by step, from a state."""
    TRANSFORMS = enum.auto()
    """It is a Fourier transform."""
    ELEMENTWISE = enum.auto()
    """Each element of its output is a function of those at its place, which broadcast."""
    POOLS = enum.auto()
    """It takes a mean, a maximum or an interpolation of elements near each place."""
    INTERPOLATES = enum.auto()
    """It reads a few elements for each of its output."""
    LIKE_FIRST = enum.auto()
    """Its first output has the shape of its first input."""
    RANKED = enum.auto()
    """Its first output has as many axes as its first input."""
    KEEPS_RANK = LIKE_FIRST | RANKED
    COUNTS = enum.auto()
    """The size of its output depends on the elements of its inputs."""
    DRAWS = enum.auto()
    """Its outputs differ from run to run, or from kernel to kernel."""
    FREE = enum.auto()
    """onnxruntime runs it without a copy, or on the host."""
    EXACT = enum.auto()
    """Its result is a number of a half type where its first input is."""
    REPEATS = enum.auto()
    """Its output has elements of its input several times."""
    CONVERTS = enum.auto()
    """It computes nothing with floats: a conversion, quantised arithmetic, a shape."""
    CASTS = enum.auto()
    """It gives elements another type, and does no more."""
    KEEPS_ZERO = enum.auto()
    """Its output is 0 where its first input is."""
    TURNS = enum.auto()
    """onnxruntime moves a Transpose before it, at an input that it carries, behind it."""
    FLOAT_ON_CPU = enum.auto()
    """onnxruntime 1.32's CPU provider has a float32 kernel, and none in float16 (`get_all_opkernel_def`)."""


class Role(enum.Enum):
    """What an input is to an operator."""

    INDEX = "positions in a table"
    LENGTH = "lengths of sequences"
    COUNT = "the number of iterations"
    SHAPE = "the shape of the output"
    SIZES = "the sizes of the output"
    SCALE = "the factors of its sizes"
    ORIGIN = "where to begin"
    END = "where to end"
    AXES = "the axes"
    COORDINATES = "coordinates in pixels, which half cannot tell apart beyond 2048"
    IMAGE = "an image, if it has four axes"
    MASK = "booleans that select"
    SCORES = "the input of a softmax, or what is added to its scores: a mask ends here"
    STATE = "the initial state"
    DIVISOR = "the divisor: its relative error counts, however small it is"
    LOGARITHM = "a logarithm is taken of it: its relative error counts"
    BASE = "the base of a power: its digits count for an exponent that is negative or no integer"
    RADICAND = "the square root is taken of it"
    SHARE = "between 0 and 1"
    ABOVE_ONE = "at least 1"


class Along(enum.Enum):
    """The axes of the elements of one norm."""

    LAST = "the last one"
    SPATIAL = "those behind batch and channels"
    GROUP = "those of a group of channels"


class Norm(NamedTuple):
    """The inputs whose sum is divided by the root of its variance or mean square and an attribute epsilon,
    and those that scale and shift the quotient. `along` says which elements belong together, `epsilon` is the
    default of the attribute.
    """

    data: tuple[int, ...]
    weights: tuple[int, ...]
    along: Along = Along.LAST
    epsilon: float = 1e-5


class Typed(NamedTuple):
    """An attribute that gives the type variable `var` a type, by a data type's number or a tensor of it.

    Without it, the type is that of the input `like`, or else `default`. If `settable`, setting the attribute
    changes only the type.
    """

    attribute: str
    var: str
    default: int | None = int(TensorProto.FLOAT)
    like: int | None = None
    settable: bool = True


class Holds(enum.Enum):
    """What the first output holds of the first input."""

    SEQUENCE = "a sequence of it"
    OPTIONAL = "an optional of it"
    ELEMENT = "what it holds"
    CONTENT = "what it holds, or itself if it is no optional"
    SAME = "what holds the same"
    EMPTY = "nothing: it is a sequence of what its attribute says"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What is known of one operator.

    `move` says how the outputs have elements of the inputs `carries`; `masks` are the inputs through which a
    mask stays a mask. `roles` says what single inputs are; `tables` has the input that an index is for, if
    not the first, `chooses` the output with what is selected. `scales` is how it scales. `limits` are numbers
    that outputs approach without reaching them (of an exponential, where it is at most 1). `bias` is an input
    that is added to each channel, `channel` the axis of the weights that the output shares. `typed` is the
    attribute that gives an output its type, `holds` what a container has of the first input. `fuses` is the
    ONNX operator that a fused one contains, `like` the one with the same inputs and shapes. `activation` has
    the attributes that a fused product lists of an activation. `flops` counts for each element of the first
    output, or of the first input where it `REDUCES`, or is a formula; None if they are unknown.
    """

    move: Move | None = None
    carries: Ports = ()
    masks: Ports = ()
    roles: Mapping[int, Role] = field(default_factory=dict[int, Role])
    tables: Mapping[int, int] = field(default_factory=dict[int, int])
    chooses: int | None = None
    traits: Trait = Trait.NONE
    scales: Scaling = scaling.pinned
    norm: Norm | None = None
    limits: frozenset[float] = frozenset()
    bias: int | None = None
    channel: int | None = None
    fuses: str = ""
    like: str = ""
    activation: tuple[str, ...] | None = None
    typed: Typed | None = None
    holds: Holds | None = None
    flops: int | Formula | None = 1

    def ports(self, *roles: Role) -> list[int]:
        """Return the inputs that have one of these roles."""
        return [port for port, role in self.roles.items() if role in roles]


Family = Mapping[tuple[str, str], Operator]
MICROSOFT = "com.microsoft"


def family(names: str, domain: str = "", **columns: Any) -> Family:
    """Return operators of a domain that have the same columns in their records, by domain and name."""
    record = Operator(**columns)
    return {(domain, name): record for name in names.split()}


def merge(*families: Family) -> Family:
    """Return the operators of several families; ValueError for one that stands in two."""
    merged = {key: record for each in families for key, record in each.items()}
    if len(merged) < sum(map(len, families)):
        raise ValueError("an operator stands in two families")
    return merged


def marked(operators: Family, names: str, trait: Trait) -> Family:
    """Return these operators, of which ONNX's with these names have another trait."""
    wanted = {("", name) for name in names.split()}
    return {
        key: replace(record, traits=record.traits | trait) if key in wanted else record
        for key, record in operators.items()
    }
