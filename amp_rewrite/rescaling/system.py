"""The system of equations of a model's exponents: classes of equal exponents, and rows between them.

A variable is a value, or one use of a stored value that may be copied: every use then has its own exponent.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.model import constants, traversal
from amp_rewrite.model.constants import StoredTensor
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.onnx_types.element_types import Types, tensor
from amp_rewrite.rescaling import rows

COPIED = 1 << 16
"""The elements up to which a stored value with several uses is copied where their exponents differ."""

Variable = ir.Value | Use
Class = Variable
"""The representative of the variables that have one exponent."""

_LEAST, _LARGEST = -126, 127
"""The exponents of the least normal and of the largest number of float32."""
_LOW_END = 12
"""The binades below 1 to which the root mean square of a stored value may sink: half's normal numbers have 2
more.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The exponents of a class: from `low` to `high` keep the bits, up to `soft` also half's low end."""

    low: int = -99
    high: int = 99
    soft: int = 99

    def join(self, other: Limits) -> Limits:
        """Return the limits of both."""
        return Limits(max(self.low, other.low), min(self.high, other.high), min(self.soft, other.soft))


FREE = Limits()


@dataclass(slots=True)
class Row:
    """Coefficients by class, of exponents whose sum is 0, and the position of their node."""

    of: dict[Class, int]
    position: int


@dataclass(slots=True)
class System:
    """The equations of a model.

    `reads` are the places that want exponent 0, by value, and `produced` the values that are produced at 0;
    `fixed` are variables of stored values that stay as they are, and `epsilons` the norms by the variable of
    their data. `made` are the positions of the producers.
    """

    model: ir.Model
    stored: Mapping[ir.Value, StoredTensor]
    reads: dict[ir.Value, list[Use]] = field(default_factory=lambda: defaultdict(list))
    produced: set[ir.Value] = field(default_factory=set[ir.Value])
    fixed: set[Variable] = field(default_factory=set[Variable])
    epsilons: list[tuple[ir.Node, Variable]] = field(default_factory=list[tuple[ir.Node, Variable]])
    rows: list[Row] = field(default_factory=list[Row])
    made: dict[ir.Value, int] = field(default_factory=dict[ir.Value, int])
    computed_once: set[ir.Value] = field(default_factory=set[ir.Value])
    _parent: dict[Variable, Variable] = field(default_factory=dict[Variable, Variable])
    _limits: dict[ir.Value, Limits] = field(default_factory=dict[ir.Value, Limits])

    @property
    def variables(self) -> Collection[Variable]:
        """All variables."""
        return self._parent.keys()

    def of(self, variable: Variable) -> Class:
        """Return the class of a variable."""
        parent = self._parent
        while (above := parent.setdefault(variable, variable)) is not variable:
            parent[variable] = parent[above]
            variable = parent[variable]
        return variable

    def join(self, one: Variable, other: Variable) -> None:
        """Give two variables one exponent."""
        self._parent[self.of(one)] = self.of(other)

    def source(self, variable: Variable) -> ir.Value | None:
        """Return the stored value of a variable; None for a computed one."""
        value = variable.holder.inputs[variable.port] if isinstance(variable, Use) else variable
        return value if value in self.stored else None

    def limits(self, variable: Variable) -> Limits:
        """Return the limits of the exponent of a stored value; none of a computed one."""
        value = self.source(variable)
        if value is None:
            return FREE
        if value not in self._limits:
            self._limits[value] = _limits(self.stored[value].tensor)
        return self._limits[value]


def _limits(tensor: ir.TensorProtocol) -> Limits:
    """Return the limits of a stored tensor; 0 alone where it has subnormal elements."""
    most, least, total, count = 0.0, math.inf, 0.0, 0
    for block in constants.read(tensor):
        sizes = np.abs(block[np.isfinite(block) & (block != 0)].astype(np.float64))
        if sizes.size:
            most, least = max(most, float(sizes.max())), min(least, float(sizes.min()))
            total, count = total + float(np.square(sizes).sum()), count + sizes.size
    if not count:
        return FREE
    low, high = _binade(most) - _LARGEST, _binade(least) - _LEAST
    if high < 0:
        return Limits(0, 0, 0)
    half = min(0, _binades_beyond(most * 2))
    soft = max(0, _binade(math.sqrt(total / count)) + _LOW_END) if count > _FEW else high
    return Limits(max(low, half), high, min(soft, high))


_FEW = 256
"""The elements up to which a stored value may lose its low end: a scale or a bias that one product reads."""


def _binade(number: float) -> int:
    return math.frexp(number)[1] - 1


def _binades_beyond(most: float) -> int:
    return math.ceil(math.log2(most / FLOAT16.largest))


def _of_epsilon(node: ir.Node) -> Limits:
    """Return the limits that an epsilon sets: it must stay a normal number."""
    epsilon = float(np.float32(rows.epsilon(node)))
    if epsilon <= 0:
        return FREE
    return Limits(-((_LARGEST - _binade(epsilon)) // 2), (_binade(epsilon) - _LEAST) // 2)


def build(model: ir.Model, types: Types, idioms: Collection[ir.Node]) -> System:
    """Return the equations of a model; nodes of `idioms`, which runtimes fuse, have exponent 0."""
    system = System(model, constants.find(model))
    builder = _Builder(system, types, idioms)
    for position, node in enumerate(model.graph):
        if node.op_type != "Constant" or node.domain:
            builder.add(node, position)
    builder.pin_ends()
    builder.contract()
    return system


class _Builder:
    """The construction of a system, node by node."""

    def __init__(self, system: System, types: Types, idioms: Collection[ir.Node]) -> None:
        self._system, self._types, self._idioms = system, types, idioms
        self._rows: list[tuple[dict[Variable, int], int]] = []
        self._copied: dict[ir.Value, bool] = {}

    def add(self, node: ir.Node, position: int) -> None:
        """Add the equations of a node."""
        system = self._system
        system.made.update(dict.fromkeys(node.outputs, position))
        if node.inputs and all(value is None or self._is_constant(value) for value in node.inputs):
            system.computed_once.update(node.outputs)
        ins = tuple(port for port, value in enumerate(node.inputs) if self._is_float(value))
        outs = tuple(~port for port, value in enumerate(node.outputs) if self._is_float(value))
        site = rows.Site(node, ins, outs)
        equations = rows.PINNED if node in self._idioms else rows.equations(site)
        for row in equations.rows:
            self._add_row(node, row, position)
        for port in site.ports.difference(*equations.rows, equations.free):
            self._pin(node, port)
        if equations.epsilon is not None:
            system.epsilons.append((node, self._variable(node, equations.epsilon)))

    def _pin(self, node: ir.Node, port: int) -> None:
        """Let a port have exponent 0."""
        variable = self._variable(node, port)
        if self._system.source(variable) is not None:
            self._system.fixed.add(variable)
        elif port < 0:
            self._system.produced.add(node.outputs[~port])
        elif isinstance(variable, ir.Value):
            self._system.reads[variable].append(Use(node, port))

    def _is_constant(self, value: ir.Value) -> bool:
        return value in self._system.computed_once or constants.stored_as(value) is not None

    def _is_float(self, value: ir.Value | None) -> bool:
        return value is not None and self._types.get(value) == tensor(ir.DataType.FLOAT)

    def _variable(self, node: ir.Node, port: int) -> Variable:
        """Return the variable at a port: of a stored value that may be copied, the use."""
        value = node.outputs[~port] if port < 0 else node.inputs[port]
        assert value is not None, "ports of equations are there"
        variable: Variable = value
        if value in self._system.stored:
            if self._may_be_copied(value):
                variable = Use(node, port)
            if port == 0 and node.op_type == "Div" and self._system.stored[value].tensor.size == 1:
                self._system.fixed.add(variable)  # runtimes look for the 1 of a written-out norm
        self._system.of(variable)
        return variable

    def _may_be_copied(self, value: ir.Value) -> bool:
        """Return whether each use of a stored value may have an exponent of its own; where not, and other
        graphs read it, it stays.
        """
        if value not in self._copied:
            uses, root = value.uses(), self._system.model.graph
            is_small = len(uses) == 1 or self._system.stored[value].tensor.size <= COPIED
            self._copied[value] = is_small and not value.is_graph_output()
            if not self._copied[value] and (
                value.is_graph_output() or any(user.graph is not root for user, _ in uses)
            ):
                self._system.fixed.add(value)
        return self._copied[value]

    def _add_row(self, node: ir.Node, row: rows.Row, position: int) -> None:
        coefficients: dict[Variable, int] = {}
        for port, coefficient in row.items():
            variable = self._variable(node, port)
            coefficients[variable] = coefficients.get(variable, 0) + coefficient
        of = {variable: coefficient for variable, coefficient in coefficients.items() if coefficient}
        if sorted(of.values()) == [-1, 1]:
            self._system.join(*of)
        elif of:
            self._rows.append((of, position))

    def pin_ends(self) -> None:
        """Pin what enters and leaves the model and its bodies."""
        system, root = self._system, self._system.model.graph
        system.produced.update(
            value for value in (*root.inputs, *root.initializers.values()) if self._is_input(value)
        )
        for graph in traversal.graphs(root):
            for port, value in enumerate(graph.outputs):
                system.reads[value].append(Use(graph, port))
            for node in graph if graph is not root else ():
                for port, value in enumerate(node.inputs):
                    if value is not None and value in system.variables:
                        system.reads[value].append(Use(node, port))

    def _is_input(self, value: ir.Value) -> bool:
        return value not in self._system.stored and value in self._system.variables

    def contract(self) -> None:
        """Write the rows in classes."""
        for of, position in self._rows:
            coefficients = Counter[Class]()
            for variable, coefficient in of.items():
                coefficients[self._system.of(variable)] += coefficient
            if row := {each: coefficient for each, coefficient in coefficients.items() if coefficient}:
                self._system.rows.append(Row(row, position))


def class_limits(system: System) -> Mapping[Class, Limits]:
    """Return the limits that norms set; those of stored values are read where a class changes."""
    joint: dict[Class, Limits] = {}
    for node, variable in system.epsilons:
        of = system.of(variable)
        joint[of] = joint.get(of, FREE).join(_of_epsilon(node))
    return joint


def members(system: System) -> Mapping[Class, Iterable[Variable]]:
    """Return the variables of each class."""
    by_class: dict[Class, list[Variable]] = {}
    for variable in system.variables:
        by_class.setdefault(system.of(variable), []).append(variable)
    return by_class
