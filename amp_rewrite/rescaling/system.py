"""The system of equations of a model's exponents: classes of equal exponents, and rows between them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.units import Use, value_of
from amp_rewrite.model import constants, traversal
from amp_rewrite.model.dataflow import varying_values
from amp_rewrite.model.operator_calls import NodeCall, record_of
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import Types, tensor
from amp_rewrite.operators.catalogue import LARGEST_EXPONENT
from amp_rewrite.operators.scaling import Equation

COPIED = 1 << 16
"""The elements up to which a stored value with several uses is copied where their exponents differ."""

Variable = ir.Value | Use
"""A value, or one use of a stored value that may be copied. One of its class stands for the class."""


class Row(NamedTuple):
    """Coefficients by class, of exponents whose sum is 0, and the position of their node."""

    of: dict[Variable, int]
    position: int


class Limits(NamedTuple):
    """The least and the largest exponent that keep the bits, and the largest that keeps half's low end."""

    low: int = -LARGEST_EXPONENT
    high: int = LARGEST_EXPONENT
    soft: int = LARGEST_EXPONENT

    def join(self, other: Limits) -> Limits:
        """Return the limits of both."""
        return Limits(max(self.low, other.low), min(self.high, other.high), min(self.soft, other.soft))


FREE = Limits()
_LEAST, _LARGEST = -126, 127
"""The exponents of the least normal and of the largest number of float32."""
_LOW_END, _FEW = 12, 256
"""The binades below 1 to which the root mean square of a stored value may sink, half's normal numbers less 2;
and the elements up to which it may lose its low end, as a scale or a bias.
"""


class System:
    """The equations of a model; the values of `pinned` nodes have exponent 0.

    `reads` are the places that want exponent 0, by value, and `produced` the values that are produced at 0;
    `fixed` are variables of stored values that stay as they are, `norms` the nodes with an epsilon, each with
    the variable of its data, and `positions` those of producers. Values that are not `varying` depend on
    stored values alone.
    """

    def __init__(self, model: ir.Model, types: Types, pinned: Collection[ir.Node]) -> None:
        self.model, self.constants = model, constants.find(model)
        self.reads: dict[ir.Value, list[Use]] = defaultdict(list)
        self.produced: set[ir.Value] = set()
        self.fixed: set[Variable] = set()
        self.norms: list[tuple[ir.Node, Variable]] = []
        self.positions: dict[ir.Value, int] = {}
        self.varying = varying_values(traversal.nodes(model.graph))
        self._types, self._pinned = types, pinned
        self._parent: dict[Variable, Variable] = {}
        self._limits: dict[ir.Value, Limits] = {}
        self._copied: dict[ir.Value, bool] = {}
        self._rows: list[Row] = []
        for position, node in enumerate(model.graph):
            if node.op_type != "Constant" or node.domain:
                self._add(node, position)
        self._pin_ends()
        rows_in_classes = (
            Row(_totals((self.of(each), coefficient) for each, coefficient in row.of.items()), row.position)
            for row in self._rows
        )
        self.rows = [row for row in rows_in_classes if row.of]

    @property
    def variables(self) -> Collection[Variable]:
        """All variables."""
        return self._parent.keys()

    def of(self, variable: Variable) -> Variable:
        """Return the class of a variable."""
        parent = self._parent
        while (above := parent.setdefault(variable, variable)) is not variable:
            parent[variable] = variable = parent[above]
        return variable

    def value(self, variable: Variable) -> ir.Value:
        """Return the value of a variable."""
        value = value_of(variable) if isinstance(variable, Use) else variable
        assert value is not None, "what is used is there"
        return value

    def source(self, variable: Variable) -> ir.Value | None:
        """Return the stored value of a variable; None for a computed one."""
        value = self.value(variable)
        return value if value in self.constants else None

    def limits(self, variable: Variable) -> Limits:
        """Return the limits of the exponent of a stored value; none of a computed one."""
        value = self.source(variable)
        if value is not None and value not in self._limits:
            self._limits[value] = _limits(self.constants[value].tensor)
        return FREE if value is None else self._limits[value]

    def _add(self, node: ir.Node, position: int) -> None:
        self.positions.update(dict.fromkeys(node.outputs, position))
        ins = [port for port, value in enumerate(node.inputs) if self._is_float(value)]
        outs = [~port for port, value in enumerate(node.outputs) if value.name and self._is_float(value)]
        equations = () if node in self._pinned else NodeCall(node, [*ins, *outs]).equations()
        for row in equations:
            self._add_row(node, row, position)
        for port in {*ins, *outs}.difference(*equations):
            self._pin(node, port)
        norm = record_of(node).norm
        if equations and norm is not None:
            self.norms.append((node, self._variable(node, norm.data[0])))

    def _is_float(self, value: ir.Value | None) -> bool:
        return value is not None and self._types.get(value) == tensor(ir.DataType.FLOAT)

    def _pin(self, node: ir.Node, port: int) -> None:
        """Let a port have exponent 0."""
        variable = self._variable(node, port)
        if self.source(variable) is not None:
            self.fixed.add(variable)
        elif port < 0:
            self.produced.add(node.outputs[~port])
        elif isinstance(variable, ir.Value):
            self.reads[variable].append(Use(node, port))

    def _variable(self, node: ir.Node, port: int) -> Variable:
        """Return the variable at a port: of a stored value that may be copied, the use."""
        value = node.outputs[~port] if port < 0 else node.inputs[port]
        assert value is not None, "ports of equations are there"
        variable: Variable = value
        if value in self.constants:
            variable = Use(node, port) if self._may_be_copied(value) else value
            if port == 0 and node.op_type == "Div" and self.constants[value].tensor.size == 1:
                self.fixed.add(variable)  # runtimes look for the 1 of a written-out norm
        self.of(variable)
        return variable

    def _may_be_copied(self, value: ir.Value) -> bool:
        """Return whether each use of a stored value may have an exponent of its own; where not, and others
        than nodes of the main graph read it, it stays.
        """
        if value not in self._copied:
            uses, is_output = value.uses(), value.is_graph_output()
            is_small = len(uses) == 1 or self.constants[value].tensor.size <= COPIED
            self._copied[value] = is_small and not is_output
            if is_output or (not is_small and any(user.graph is not self.model.graph for user, _ in uses)):
                self.fixed.add(value)
        return self._copied[value]

    def _add_row(self, node: ir.Node, row: Equation, position: int) -> None:
        of = _totals((self._variable(node, port), coefficient) for port, coefficient in row.items())
        if sorted(of.values()) == [-1, 1]:
            one, other = map(self.of, of)
            self._parent[one] = other
        elif of:
            self._rows.append(Row(of, position))

    def _pin_ends(self) -> None:
        """Pin what enters and leaves the model, and what bodies read."""
        root = self.model.graph
        ends = (*root.inputs, *root.initializers.values())
        self.produced.update(end for end in ends if end not in self.constants and end in self.variables)
        for graph in traversal.graphs(root):
            for port, value in enumerate(graph.outputs):
                self.reads[value].append(Use(graph, port))
            for node in graph if graph is not root else ():
                for port, value in enumerate(node.inputs):
                    if value is not None and value in self.variables:
                        self.reads[value].append(Use(node, port))


def _totals(terms: Iterable[tuple[Variable, int]]) -> dict[Variable, int]:
    """Return the coefficients of variables, each the sum over its terms, but for those that are 0."""
    totals: dict[Variable, int] = {}
    for variable, coefficient in terms:
        totals[variable] = totals.get(variable, 0) + coefficient
    return {variable: total for variable, total in totals.items() if total}


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
    high = _binade(least) - _LEAST
    if high < 0:
        return Limits(0, 0, 0)
    half = min(0, math.ceil(math.log2(most * 2 / FLOAT16.largest)))
    soft = max(0, _binade(math.sqrt(total / count)) + _LOW_END) if count > _FEW else high
    return Limits(max(_binade(most) - _LARGEST, half), high, min(soft, high))


def _binade(number: float) -> int:
    return math.frexp(number)[1] - 1


def epsilon_of(node: ir.Node) -> float:
    """Return the epsilon of a norm, by default that of its schema."""
    norm = record_of(node).norm
    assert norm is not None, "only norms have an epsilon here"
    return schema.number(node, "epsilon", norm.epsilon)


def limits_of_epsilon(node: ir.Node) -> Limits:
    """Return the limits that the epsilon of a norm sets to its data: it must stay a normal number."""
    epsilon = float(np.float32(epsilon_of(node)))
    binade = _binade(epsilon)
    return Limits(-((_LARGEST - binade) // 2), (binade - _LEAST) // 2) if epsilon > 0 else FREE
