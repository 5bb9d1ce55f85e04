"""What can be coloured, and how data flows between it.

A unit is (node, type variable): the ports of one node that must share an element type. Only float32
can change, so units exist for float32 alone; ports of every other type are no business of ours.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir

from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.onnx_types import control_flow, element_types, schema
from amp_rewrite.onnx_types.schema import TypeVar
from amp_rewrite.policy import targets
from amp_rewrite.policy.kernel_table import Support
from amp_rewrite.policy.targets import Target

OPAQUE = TypeVar("?")
"""The type variable of an operator without a schema: all its float32 ports."""


class Use(NamedTuple):
    """A place where a value is read: an input of a node, or an output of a graph."""

    holder: ir.Node | ir.Graph
    port: int


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """The ports of `node` that share the type variable `var`, and float32 as their element type.

    `uses` are the ports by which it reads values, `defs` the values that it produces; for control flow both
    include the inputs and outputs of the bodies. `allowed` are the types that the schema lets `var` take.
    `dense` holds when no port is a sequence or an optional, `runs` when the target has a half kernel.
    """

    index: int
    node: ir.Node
    var: TypeVar
    uses: tuple[Use, ...]
    defs: tuple[ir.Value, ...]
    allowed: frozenset[str]
    dense: bool = True
    runs: bool = True

    def __str__(self) -> str:
        return f"{self.node.name or self.node.op_type}.{self.var}"


@dataclass(frozen=True, slots=True)
class UnitGraph:
    """All units of a model and the dataflow between them, by position in `units`.

    `producer` is the unit that produces a value, `uses` are the units that read it, each with the port;
    `predecessors` and `successors` are the same between units. `ties` are groups of units that must have one
    colour. `graphs` are `root` and all graphs below it, outer ones first.
    """

    units: tuple[Unit, ...]
    producer: Mapping[ir.Value, int]
    uses: Mapping[ir.Value, Sequence[tuple[int, Use]]]
    predecessors: Sequence[Sequence[int]]
    successors: Sequence[Sequence[int]]
    ties: tuple[tuple[int, ...], ...]
    types: element_types.Types
    root: ir.Graph
    graphs: tuple[ir.Graph, ...]


def build(
    model: ir.Model, types: element_types.Types, target: Target = targets.ANY, half: Half = FLOAT16
) -> UnitGraph:
    """The units of the main graph and of every graph below it, in the order of the nodes.

    Variables that the target's kernels for `half` want as one are one unit, under the name of the first.
    """
    builder = _Builder(types, model, target, half)
    builder.graph(model.graph)
    return builder.finish(model.graph)


class _Builder:
    def __init__(self, types: element_types.Types, model: ir.Model, target: Target, half: Half) -> None:
        self._types = types
        self._target = target
        self._half = half.name
        self._support = functools.cache(self._find_support)  # an operator is asked about once, not each node
        self._of_schema = functools.cache(self._find_layout)
        self._runs = functools.cache(self._find_runs)
        self._functions = frozenset(model.functions)
        self._version = element_types.versions(model.graph.opset_imports)
        self._float = {v for v, t in types.items() if t.dtype == ir.DataType.FLOAT}
        self._wrapped = {v for v in self._float if type(types[v]) is not ir.TensorType}
        self._graphs: list[ir.Graph] = []
        self._units: list[Unit] = []
        self._maker: dict[ir.Value, int] = {}
        self._readers: dict[ir.Value, list[tuple[int, Use]]] = {}

    def graph(self, graph: ir.Graph) -> None:
        self._graphs.append(graph)
        for node in graph:
            if control_flow.may_have_bodies(node):
                self._holder(node)
            elif node.op_type != "Constant":
                self._groups(node, sealed=False)

    def _holder(self, node: ir.Node) -> None:
        """A node that may have bodies, and the graphs that these are."""
        bindings, bodies = control_flow.bindings(node), control_flow.bodies(node)
        if bindings is not None:
            self._bindings(node, bindings)
        else:
            self._groups(node, sealed=bool(bodies) or _holds_float32(node))
        for body in bodies:
            if bindings is None:
                self._seal(node, body)
            self.graph(body)

    def _groups(self, node: ir.Node, *, sealed: bool) -> None:
        """A unit for every type variable; none may change when bodies or attributes share the types."""
        inputs, outputs, known = node.inputs, node.outputs, self._float
        for group in self._layout(node):
            reads = [Use(node, i) for i in group.inputs if inputs[i] in known]
            makes = [outputs[i] for i in group.outputs if outputs[i] in known]
            if reads or makes:
                typed = not sealed and (len(reads) == len(group.inputs) or self._all_known(node, group))
                allowed = group.allowed if typed and self._is_tied(node) else frozenset[str]()
                self._add(node, group.var, reads, makes, allowed)

    def _layout(self, node: ir.Node) -> schema.Layout:
        domain, operator = node.domain, node.op_type
        layout, joined = self._of_schema(domain, operator, len(node.inputs), len(node.outputs))
        if self._functions and node.op_identifier() in self._functions:
            return _opaque(len(node.inputs), len(node.outputs))
        for names in joined:
            layout = self._join(node, layout, names)
        return layout

    def _find_layout(
        self, domain: str, operator: str, inputs: int, outputs: int
    ) -> tuple[schema.Layout, Iterable[frozenset[str]]]:
        """The layout of a node with so many ports, and the variables that the target joins."""
        layout = schema.layout(domain, operator, self._version(domain), inputs, outputs)
        if layout is None:
            return _opaque(inputs, outputs), ()
        return layout, self._joined(domain, operator)

    def _joined(self, domain: str, operator: str) -> Iterable[frozenset[str]]:
        support = self._support(domain, operator)
        return self._target.joined(domain, operator, support, self._half) if support is not None else ()

    def _find_runs(self, domain: str, operator: str, variable: str) -> bool:
        support = self._support(domain, operator)
        return support is None or support.has(variable, self._half)

    def _find_support(self, domain: str, operator: str) -> Support | None:
        """What the target has for an operator; None where there is no more to say than its schema says."""
        signature = schema.find(domain, operator, self._version(domain))
        return signature and self._target.support(domain, operator, signature, self._half)

    def _all_known(self, node: ir.Node, group: schema.Group) -> bool:
        """Whether every input has a type; one that has none could not be cast with the others."""
        values = (node.inputs[i] for i in group.inputs)
        return all(value is None or value in self._types for value in values)

    def _is_tied(self, node: ir.Node) -> bool:
        """Whether elements and what holds them can change together: all that goes in has a type."""
        if node.domain or node.op_type not in element_types.CONTAINERS:
            return True
        return all(value is None or value in self._types for value in node.inputs)

    def _join(self, node: ir.Node, layout: schema.Layout, names: frozenset[str]) -> schema.Layout:
        """The layout with the joined variables as one group, where all of them are float32."""
        parts = [group for group in layout if group.var.name in names]
        values = [node.inputs[i] for group in parts for i in group.inputs]
        if len(parts) < 2 or any(value is not None and value not in self._float for value in values):
            return layout
        one = schema.Group(
            var=parts[0].var,
            inputs=tuple(sorted(i for group in parts for i in group.inputs)),
            outputs=tuple(sorted(i for group in parts for i in group.outputs)),
            allowed=frozenset.intersection(*(group.allowed for group in parts)),
        )
        return (one, *(group for group in layout if group not in parts))

    def _bindings(self, node: ir.Node, bindings: tuple[control_flow.Binding, ...]) -> None:
        entering = {i for binding in bindings for i in binding.inputs}
        for binding in bindings:
            reads = [Use(node, i) for i in binding.inputs if i < len(node.inputs)]
            reads += [Use(body, i) for body, i in binding.leaves if i < len(body.outputs)]
            makes = [node.outputs[i] for i in binding.outputs if i < len(node.outputs)]
            makes += [body.inputs[i] for body, i in binding.enters if i < len(body.inputs)]
            self._add_float(node, binding.var, reads, makes)
        others = [Use(node, i) for i in range(len(node.inputs)) if i not in entering]
        self._add_float(node, OPAQUE, others, [])

    def _seal(self, node: ir.Node, body: ir.Graph) -> None:
        """What goes in and out of a body that we do not know how to read keeps its type."""
        leaves = [Use(body, i) for i in range(len(body.outputs))]
        self._add_float(node, OPAQUE, leaves, body.inputs)

    def _add_float(
        self, node: ir.Node, var: TypeVar, reads: Iterable[Use], makes: Iterable[ir.Value]
    ) -> None:
        read = [site for site in reads if value_of(site) in self._float]
        made = [value for value in makes if value in self._float]
        signature = schema.find(node.domain, node.op_type, self._version(node.domain))
        if var is OPAQUE or signature is None:
            allowed = frozenset[str]()
        else:
            allowed = frozenset[str]().union(*signature.allowed.values())
        if read or made:
            self._add(node, var, read, made, allowed)

    def _add(
        self,
        node: ir.Node,
        var: TypeVar,
        reads: Sequence[Use],
        makes: Sequence[ir.Value],
        allowed: frozenset[str],
    ) -> None:
        index = len(self._units)
        dense = True
        for value in makes:
            self._maker[value] = index
            dense = dense and value not in self._wrapped
        for site in reads:
            value = value_of(site)
            assert value is not None, "only places that read something are units' reads"
            self._readers.setdefault(value, []).append((index, site))
            dense = dense and value not in self._wrapped
        runs = self._runs(node.domain, node.op_type, var.name)
        self._units.append(Unit(index, node, var, tuple(reads), tuple(makes), allowed, dense, runs))

    def finish(self, root: ir.Graph) -> UnitGraph:
        producers: list[list[int]] = [[] for _ in self._units]
        consumers: list[list[int]] = [[] for _ in self._units]
        for maker, reader in itertools.chain(self._edges(), self._inside()):
            consumers[maker].append(reader)
            producers[reader].append(maker)
        return UnitGraph(
            units=tuple(self._units),
            producer=self._maker,
            uses=self._readers,
            predecessors=producers,
            successors=consumers,
            ties=tuple(self._ties()),
            types=self._types,
            root=root,
            graphs=tuple(self._graphs),
        )

    def _edges(self) -> Iterator[tuple[int, int]]:
        """Who makes something and who reads it; once for a reader that reads a value twice in a row."""
        for value, maker in self._maker.items():
            last = -1
            for reader, _ in self._readers.get(value, ()):
                if reader != last:
                    yield maker, reader
                last = reader

    def _ties(self) -> Iterator[tuple[int, ...]]:
        """What makes and what reads a sequence or an optional (no Cast can stand between), and the
        variables of a node that has both a sequence and its elements.
        """
        for value, readers in self._readers.items() if self._wrapped else ():
            if value in self._wrapped:
                maker = [self._maker[value]] if value in self._maker else []
                yield (*maker, *(reader for reader, _ in readers))
        yield from self._together()

    def _inside(self) -> Iterator[tuple[int, int]]:
        """What goes into a sequence comes out of it: from what a node reads to what it makes."""
        for group in self._together():
            for maker, reader in itertools.permutations(group, 2):
                if self._units[maker].uses and self._units[reader].defs:
                    yield maker, reader

    def _together(self) -> Iterator[tuple[int, ...]]:
        """The variables of each node that has both a sequence or an optional and its elements."""
        nodes = dict.fromkeys(unit.node for unit in self._units if not unit.dense) if self._wrapped else {}
        together: dict[ir.Node, list[int]] = {node: [] for node in nodes}
        for unit in self._units if nodes else ():
            if unit.node in nodes and control_flow.bindings(unit.node) is None:
                together[unit.node].append(unit.index)
        yield from (tuple(group) for group in together.values() if len(group) > 1)


def value_of(site: Use) -> ir.Value | None:
    """The value that is read at a place; None for an empty optional input."""
    holder, port = site
    # isinstance takes twenty times as long: onnx-ir's classes are protocols
    return holder.inputs[port] if type(holder) is ir.Node else holder.outputs[port]


def _holds_float32(node: ir.Node) -> bool:
    """Whether an operator outside the default domain has float32 tensors among its attributes."""
    tensor = ir.AttributeType.TENSOR
    held = node.attributes.values() if node.domain else ()
    return any(a.type == tensor and not a.is_ref() and a.value.dtype == ir.DataType.FLOAT for a in held)


def _opaque(inputs: int, outputs: int) -> schema.Layout:
    ports = tuple(range(inputs)), tuple(range(outputs))
    return (schema.Group(OPAQUE, *ports, allowed=frozenset()),)
