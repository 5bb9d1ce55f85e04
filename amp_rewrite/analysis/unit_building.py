"""Construction of a UnitGraph: units are the port groups of nodes, by schemas and kernels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.analysis import runtimes
from amp_rewrite.analysis.units import Unit, UnitGraph, Use, value_of
from amp_rewrite.model.patterns import DEQUANTIZE, QUANTIZE
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.onnx_types import control_flow, element_types, schema
from amp_rewrite.onnx_types.element_types import Layouts, Types
from amp_rewrite.onnx_types.schema import TypeVar
from amp_rewrite.policy import targets
from amp_rewrite.policy.kernel_table import Support
from amp_rewrite.policy.targets import Target

OPAQUE = TypeVar("?")
"""The type variable of an operator without a schema: all its float32 ports."""

FUNCTION = TypeVar("function")
"""The same for the call of a function that stays."""


def build(model: ir.Model, types: Types, target: Target = targets.ANY, half: Half = FLOAT16) -> UnitGraph:
    """Return the units of the main graph and of every graph nested in it, in node order.

    Variables that the target's kernels for `half` treat as one form one unit, under the name of the first.
    """
    builder = _UnitBuilder(types, model, target, half)
    builder.graph(model.graph)
    return builder.finish(model.graph)


class _UnitBuilder:
    def __init__(self, types: Types, model: ir.Model, target: Target, half: Half) -> None:
        self._types, self._target = types, target
        self._float32 = {value for value, type_ in types.items() if type_.dtype == ir.DataType.FLOAT}
        wrapped = {value for value, type_ in types.items() if type(type_) is not ir.TensorType}
        self._wrapped = wrapped & self._float32
        self._groups = _PortGroups(model, types, target, half.name)
        self._nodes: dict[ir.Graph, Sequence[ir.Node]] = {}
        self._is_sealed = False  # in a body of a custom operator, which computes what it pleases with it
        self._units: list[Unit] = []
        self._by_operator: dict[str, list[int]] = {}
        self._producer: dict[ir.Value, int] = {}
        self._uses: dict[ir.Value, list[tuple[int, Use]]] = {}

    def graph(self, graph: ir.Graph) -> None:
        self._nodes[graph] = nodes = tuple(graph)
        for node in nodes:
            if control_flow.may_have_bodies(node):
                self._holder(node)
            elif node.op_type != "Constant":
                self._node(node)

    def _holder(self, node: ir.Node) -> None:
        """A node that may have bodies, and these graphs."""
        bindings, bodies = control_flow.bindings(node), control_flow.bodies(node)
        if bindings is not None:
            self._bindings(node, bindings)
        else:
            self._node(node, sealed=bool(bodies) or _holds_float32(node))
        outer = self._is_sealed
        self._is_sealed = outer or not schema.is_known(node.domain, node.op_type)
        for body in bodies:
            if bindings is None:
                self._seal(node, body)
            self.graph(body)
        self._is_sealed = outer

    def _node(self, node: ir.Node, *, sealed: bool = False) -> None:
        """Add a unit for every type variable; a sealed node has bodies or attributes of these types, and none
        of its units may change.
        """
        inputs, outputs, float32 = node.inputs, node.outputs, self._float32
        for group in self._groups.of(node):
            uses = [Use(node, i) for i in group.inputs if inputs[i] in float32]
            defs = [outputs[i] for i in group.outputs if outputs[i] in float32]
            if uses or defs:
                typed = len(uses) == len(group.typed) or self._is_typed(node, group.typed)
                allowed = group.allowed if typed and not sealed else frozenset[str]()
                runs = group.runs or runtimes.needs_no_kernel(node)
                self._add(node, group.var, uses, defs, allowed, runs=runs)

    def _is_typed(self, node: ir.Node, ports: Iterable[int]) -> bool:
        """Return whether all these inputs have a type; one without could not be cast with the others."""
        values = (node.inputs[i] for i in ports)
        return all(value is None or value in self._types for value in values)

    def _bindings(self, node: ir.Node, bindings: tuple[control_flow.Binding, ...]) -> None:
        entering = {i for binding in bindings for i in binding.inputs}
        for binding in bindings:
            uses = [Use(node, i) for i in binding.inputs if i < len(node.inputs)]
            uses += [Use(body, i) for body, i in binding.leaves if i < len(body.outputs)]
            defs = [node.outputs[i] for i in binding.outputs if i < len(node.outputs)]
            defs += [body.inputs[i] for body, i in binding.enters if i < len(body.inputs)]
            self._add_float32(node, binding.var, uses, defs)
        others = [Use(node, i) for i in range(len(node.inputs)) if i not in entering]
        self._add_float32(node, OPAQUE, others, [])

    def _seal(self, node: ir.Node, body: ir.Graph) -> None:
        """Seal a body whose bindings are unknown: its inputs and outputs keep their types."""
        leaves = [Use(body, i) for i in range(len(body.outputs))]
        self._add_float32(node, OPAQUE, leaves, body.inputs)

    def _add_float32(
        self, node: ir.Node, var: TypeVar, uses: Iterable[Use], defs: Iterable[ir.Value]
    ) -> None:
        """Add a unit of the float32 values among these, if there are any."""
        float32_uses = [use for use in uses if value_of(use) in self._float32]
        float32_defs = [value for value in defs if value in self._float32]
        if float32_uses or float32_defs:
            allowed = frozenset[str]() if var is OPAQUE else self._groups.allowed(node)
            runs = self._groups.runs(node.domain, node.op_type, var.name)
            self._add(node, var, float32_uses, float32_defs, allowed, runs=runs)

    def _add(
        self,
        node: ir.Node,
        var: TypeVar,
        uses: Sequence[Use],
        defs: Sequence[ir.Value],
        allowed: frozenset[str],
        *,
        runs: bool,
    ) -> None:
        index = len(self._units)
        for value in defs:
            self._producer[value] = index
        for use in uses:
            value = value_of(use)
            assert value is not None, "every use of a unit has a value"
            self._uses.setdefault(value, []).append((index, use))
        wrapped = self._wrapped
        allowed = frozenset[str]() if self._is_sealed else allowed
        dense = not wrapped or (wrapped.isdisjoint(defs) and wrapped.isdisjoint(map(value_of, uses)))
        self._by_operator.setdefault(node.op_type, []).append(index)
        self._units.append(Unit(index, node, var, tuple(uses), tuple(defs), allowed, dense, runs))

    def finish(self, root: ir.Graph) -> UnitGraph:
        predecessors: list[list[int]] = [[] for _ in self._units]
        successors: list[list[int]] = [[] for _ in self._units]
        for producer, consumer in itertools.chain(
            self._edges(), self._container_edges(), self._quantised_edges()
        ):
            successors[producer].append(consumer)
            predecessors[consumer].append(producer)
        return UnitGraph(
            units=tuple(self._units),
            producer=self._producer,
            uses=self._uses,
            predecessors=predecessors,
            successors=successors,
            ties=tuple(self._ties()),
            by_operator=self._by_operator,
            types=self._types,
            root=root,
            nodes=self._nodes,
        )

    def _edges(self) -> Iterator[tuple[int, int]]:
        """Yield producer and consumer of every value; once for a consumer that reads it twice in a row."""
        for value, producer in self._producer.items():
            last = -1
            for consumer, _ in self._uses.get(value, ()):
                if consumer != last:
                    yield producer, consumer
                last = consumer

    def _quantised_edges(self) -> Iterator[tuple[int, int]]:
        """Yield edges from the producer of a value to the DequantizeLinear of its integers, where a target
        has both in one type.
        """
        for unit in self._by_operator.get(DEQUANTIZE, ()) if self._target.fuses_half_scales else ():
            integers = self._units[unit].node.inputs[0]
            quantize = None if integers is None else integers.producer()
            if quantize is not None and quantize.op_type == QUANTIZE and quantize.inputs[0] in self._producer:
                yield self._producer[quantize.inputs[0]], unit

    def _ties(self) -> Iterator[tuple[int, ...]]:
        """Yield producer and consumers of a sequence or an optional (no Cast can stand between), and the
        variables of a node that has both a sequence and its elements.
        """
        for value, uses in self._uses.items() if self._wrapped else ():
            if value in self._wrapped:
                producer = [self._producer[value]] if value in self._producer else []
                yield (*producer, *(consumer for consumer, _ in uses))
        yield from self._container_variables()

    def _container_edges(self) -> Iterator[tuple[int, int]]:
        """Yield edges from the inputs of a node to its outputs where elements are inserted into a sequence or
        taken from one.
        """
        for group in self._container_variables():
            for producer, consumer in itertools.permutations(group, 2):
                if self._units[producer].uses and self._units[consumer].defs:
                    yield producer, consumer

    def _container_variables(self) -> Iterator[tuple[int, ...]]:
        """Yield the variables of each node that has both a sequence or an optional and its elements."""
        nodes = dict.fromkeys(unit.node for unit in self._units if not unit.dense) if self._wrapped else {}
        together: dict[ir.Node, list[int]] = {node: [] for node in nodes}
        for unit in self._units if nodes else ():
            if unit.node in nodes and control_flow.bindings(unit.node) is None:
                together[unit.node].append(unit.index)
        yield from (tuple(group) for group in together.values() if len(group) > 1)


def _holds_float32(node: ir.Node) -> bool:
    """Return whether an operator outside the default domain has float32 tensors among its attributes."""
    tensor = ir.AttributeType.TENSOR
    attributes = node.attributes.values() if node.domain else ()
    return any(a.type == tensor and not a.is_ref() and a.value.dtype == ir.DataType.FLOAT for a in attributes)


# The ports of a node that share an element type, by its operator's schema and the target's kernels.


class _PortGroup(NamedTuple):
    """Ports that share a type variable, the types it may take, and whether the target runs it in half.

    It can change only if all inputs that are `typed` have a known type: its own inputs, or for operators that
    put elements into containers, or take them out, all inputs of the node.
    """

    var: TypeVar
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    allowed: frozenset[str]
    runs: bool
    typed: tuple[int, ...]


_Layout = tuple[tuple[_PortGroup, ...], tuple[frozenset[str], ...]]
"""The groups of an operator, and the sets of variables that the target's kernels treat as one."""


class _PortGroups:
    """The port groups of the nodes of a model, looked up once for nodes of the same operator and ports."""

    def __init__(self, model: ir.Model, types: Types, target: Target, half: str) -> None:
        self._types, self._target, self._half = types, target, half
        self._layouts = Layouts(model)
        self._functions = frozenset(model.functions)
        self._version = element_types.versions(model.graph.opset_imports)
        self._layout = functools.cache(self._find_layout)
        self._support = functools.cache(self._find_support)

    def of(self, node: ir.Node) -> tuple[_PortGroup, ...]:
        """Return the groups of a node; one of all ports, which allows no type, if its operator has no schema.

        Variables that the target's kernels treat as one form one group, under the name of the first.
        """
        inputs, outputs = len(node.inputs), len(node.outputs)
        if self._functions and node.op_identifier() in self._functions:
            return _opaque(inputs, outputs, FUNCTION)
        if declared := self._layouts.declared(node, self._types.get):
            return tuple(
                _PortGroup(each.var, each.inputs, each.outputs, each.allowed, runs=True, typed=each.inputs)
                for each in declared
            )
        groups, shared_variables = self._layout(node.domain, node.op_type, inputs, outputs)
        for names in shared_variables:
            groups = self._join(node, groups, names)
        return groups

    def allowed(self, node: ir.Node) -> frozenset[str]:
        """Return all types that the schema of a node's operator names; none if it has no schema."""
        signature = schema.find(node.domain, node.op_type, self._version(node.domain))
        return frozenset[str]().union(*signature.allowed.values()) if signature else frozenset[str]()

    def runs(self, domain: str, operator: str, variable: str) -> bool:
        """Return whether the target has a half kernel for a type variable, as far as known."""
        support = self._support(domain, operator)
        return support is None or support.has(variable, self._half)

    def _find_layout(self, domain: str, operator: str, inputs: int, outputs: int) -> _Layout:
        layout = schema.layout(domain, operator, self._version(domain), inputs, outputs)
        if layout is None:
            return _opaque(inputs, outputs), ()
        is_container = operator in element_types.CONTAINERS and not domain
        groups = tuple(
            _PortGroup(
                var=group.var,
                inputs=group.inputs,
                outputs=group.outputs,
                allowed=group.allowed,
                runs=self.runs(domain, operator, group.var.name),
                typed=tuple(range(inputs)) if is_container else group.inputs,
            )
            for group in layout
        )
        joined = self._target.joined(domain, operator, self._support(domain, operator), self._half)
        return groups, tuple(joined)

    def _find_support(self, domain: str, operator: str) -> Support | None:
        """Return the target's kernels for an operator; None if its schema alone counts."""
        signature = schema.find(domain, operator, self._version(domain))
        return signature and self._target.support(domain, operator, signature, self._half)

    def _join(
        self, node: ir.Node, groups: tuple[_PortGroup, ...], names: Collection[str]
    ) -> tuple[_PortGroup, ...]:
        """Return the groups, with those of these variables that are float32 merged into one."""
        parts = [group for group in groups if group.var.name in names and self._is_float32(node, group)]
        if len(parts) < 2:
            return groups
        one = parts[0]._replace(
            inputs=tuple(sorted(i for group in parts for i in group.inputs)),
            outputs=tuple(sorted(i for group in parts for i in group.outputs)),
            allowed=frozenset.intersection(*(group.allowed for group in parts)),
            typed=tuple(i for group in parts for i in group.typed),
        )
        return (one, *(group for group in groups if group not in parts))

    def _is_float32(self, node: ir.Node, group: _PortGroup) -> bool:
        kinds = (self._types.get(value) for i in group.inputs if (value := node.inputs[i]) is not None)
        return all(kind is not None and kind.dtype is ir.DataType.FLOAT for kind in kinds)


@functools.cache
def _opaque(inputs: int, outputs: int, var: TypeVar = OPAQUE) -> tuple[_PortGroup, ...]:
    ports = tuple(range(inputs)), tuple(range(outputs))
    return (_PortGroup(var, *ports, allowed=frozenset(), runs=True, typed=()),)
