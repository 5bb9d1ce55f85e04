"""Linearity analysis: the values of a backward pass that are linear in its seed, and their frontier.

If the seed is multiplied by a scale, every linear value is. The frontier are their non-linear uses: divided
by the scale there, no other value changes in exact arithmetic, whatever the seed, the optimiser and the names
are; in floating point no bit changes if the scale is a power of two and nothing overflows or is subnormal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.model import constants, traversal
from amp_rewrite.model.graph_edits import StoredValues
from amp_rewrite.model.operator_calls import NodeCall
from amp_rewrite.model.traversal import producers, reach
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.operators import scaling
from amp_rewrite.operators.catalogue import KEEPING_ZERO, LARGEST_ZERO
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.entries import Kind

FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE))
"""The element types of losses, seeds and gradients."""


# The dataflow of a main graph: a node with bodies is one step, with captured values as operands.


@dataclass(frozen=True, slots=True)
class Dataflow:
    """The nodes of a main graph in topological order, their operands, the consumers of each value, and the
    values that the model stores.

    `reads` includes values captured by bodies. `readers` has every use of a value once: the consumer in the
    main graph, and the use itself, which may be in a body of that node. `forward` are the nodes of the
    forward pass, which depend on no seed; a seed that these read stays unscaled there.
    """

    graph: ir.Graph
    store: StoredValues
    nodes: Sequence[ir.Node]
    reads: Mapping[ir.Node, tuple[ir.Value, ...]]
    readers: Mapping[ir.Value, Sequence[tuple[ir.Node, Use]]]
    forward: Collection[ir.Node] = frozenset()

    def before(self, values: Iterable[ir.Value]) -> set[ir.Node]:
        """Return all nodes on which these values depend."""
        return set(reach(producers(values), lambda node: producers(self.reads[node])))

    def behind(self, nodes: Iterable[ir.Node]) -> set[ir.Node]:
        """Return these nodes and all that depend on them."""
        return set(reach(nodes, self.successors))

    def successors(self, node: ir.Node) -> Iterator[ir.Node]:
        """Yield the consumers of a node's outputs."""
        for value in node.outputs:
            yield from (reader for reader, _ in self.readers.get(value, ()))


def dataflow_of(model: ir.Model) -> Dataflow:
    """Return the dataflow of a model whose nodes are sorted, without its forward pass."""
    graph, nodes = model.graph, tuple(model.graph)
    outer = set(nodes)
    reads: dict[ir.Node, tuple[ir.Value, ...]] = {}
    readers: dict[ir.Value, list[tuple[ir.Node, Use]]] = {}
    for node in nodes:
        uses = [(value, use) for value, use in _uses(node) if _is_outer(value, outer, graph)]
        reads[node] = tuple(dict.fromkeys(value for value, _ in uses))
        for value, use in uses:
            readers.setdefault(value, []).append((node, use))
    return Dataflow(graph, StoredValues(model), nodes, reads, readers)


def _is_outer(value: ir.Value, outer: Collection[ir.Node], graph: ir.Graph) -> bool:
    """Whether a value belongs to the main graph, not to a body."""
    node = value.producer()
    return value.graph in (graph, None) if node is None else node in outer


def _uses(node: ir.Node) -> Iterator[tuple[ir.Value, Use]]:
    """Yield all uses of values by a node and in its bodies, values local to the bodies included."""
    yield from ((value, Use(node, port)) for port, value in enumerate(node.inputs) if value is not None)
    for body in control_flow.bodies(node):
        for inner in body:
            yield from _uses(inner)
        yield from ((value, Use(body, port)) for port, value in enumerate(body.outputs))


def is_product(node: ir.Node) -> bool:
    """Whether a node is, or has in a body, an operator of the shipped allow list (matrix product,
    convolution, attention, recurrent network) or the gradient of a convolution.
    """
    lists = operator_lists.load("default")
    for inner in traversal.nodes_inner_first([node]):
        entry = lists.find(inner.domain, inner.op_type)
        if (entry is not None and entry.kind is Kind.ALLOW) or inner.op_type == "ConvGrad":
            return True
    return False


# The values that are linear in a seed, and where they end.


@dataclass(frozen=True, slots=True)
class Linearity:
    """The linear `values` of a seed, in order, and the nodes that output them.

    `seed_uses` are the uses of the seed by nodes that are linear in it, which read it scaled. `frontier` has
    the linear values with non-linear uses, and these uses: there they are gradients.
    """

    seed: ir.Value
    values: Collection[ir.Value]
    nodes: Collection[ir.Node]
    seed_uses: tuple[Use, ...]
    frontier: Mapping[ir.Value, tuple[Use, ...]]

    @property
    def products(self) -> int:
        """The number of products of the backward pass that are linear in the seed."""
        return sum(map(is_product, self.nodes))


def analyse(flow: Dataflow, seed: ir.Value, gradients: Collection[ir.Value] = ()) -> Linearity:
    """Return the linearity of the seed, up to the gradients.

    Where no product follows, the optimiser begins at a value that is one of `gradients`, has a non-linear
    use, or is multiplied by a scalar such as a learning rate. Such a value is a gradient in all of its uses,
    so that each gradient is divided in one place.
    """
    linearity = _propagate(flow, seed, frozenset())
    inner = _before_products(linearity, flow, gradients)
    ends = (value for value in linearity.values if value in gradients or _ends(linearity, flow, value))
    cut = frozenset(value for value in ends if value not in inner)
    return _propagate(flow, seed, cut) if cut else linearity


def _ends(linearity: Linearity, flow: Dataflow, value: ir.Value) -> bool:
    """Return True for a linear value with a non-linear use, or multiplied or divided by a scalar."""
    if value in linearity.frontier:
        return True
    readers = (node for node, _ in flow.readers.get(value, ()))
    factors = (node for node in readers if not node.domain and node.op_type in ("Mul", "Div"))
    return any(_is_scalar(each) for node in factors for each in node.inputs if each is not value)


def _is_scalar(value: ir.Value | None) -> bool:
    """Whether a value is known to have one element."""
    tensor = constants.stored_as(value)
    holder = value if tensor is None else tensor
    shape = None if holder is None else holder.shape
    return shape is not None and all(size == 1 for size in shape)


def _propagate(flow: Dataflow, seed: ir.Value, cut: Collection[ir.Value]) -> Linearity:
    linear: dict[ir.Value, None] = {}
    nodes: dict[ir.Node, None] = {}
    seed_uses: list[Use] = []
    for node in _behind(flow, seed):
        ports = frozenset(
            port
            for port, value in enumerate(node.inputs)
            if value is seed or (value in linear and value not in cut)
        )
        output_ports = find_linear_outputs(flow.store, node, ports) if ports else None
        if output_ports is None:
            continue
        seed_uses += [Use(node, port) for port in ports if node.inputs[port] is seed]
        linear.update(dict.fromkeys(value for i in output_ports if (value := node.outputs[i]).name))
        nodes.update({node: None} if output_ports else {})
    others = {value: tuple(_other_uses(flow, value, () if value in cut else nodes)) for value in linear}
    frontier = {value: uses for value, uses in others.items() if uses}
    return Linearity(seed, tuple(linear), tuple(nodes), tuple(seed_uses), frontier)


def find_linear_outputs(store: StoredValues, node: ir.Node, scaled: Collection[int]) -> list[int] | None:
    """Return the outputs of a node that scale with these inputs; None where it is not linear in them
    together, whatever the sign of the factor. A shape scales with nothing.
    """
    ports = [port for port, value in enumerate(node.inputs) if value is not None]
    call = NodeCall(node, [*ports, *(~port for port in range(len(node.outputs)))], is_positive=False)
    rows, degrees = call.equations(), dict.fromkeys(scaled, 1)
    found = scaling.solve(rows, call, degrees, {})
    if found is None:
        zeros = {port: -inf for port in ports if port not in degrees and is_zero(store, node.inputs[port])}
        found = scaling.solve(rows, call, degrees, zeros)
    if found is None or not {0, 1}.issuperset(found.values()):
        return None
    ignored = {port for row in rows for port, coefficient in row.items() if not coefficient}
    outputs = [~port for port, degree in found.items() if degree]
    return outputs if outputs or ignored.issuperset(scaled) else None


def is_zero(store: StoredValues, value: ir.Value | None) -> bool:
    """Return whether a value is absent, or constant and zero in every element."""
    if value is None:
        return True
    tensor, node = store.tensor(value), value.producer()
    if tensor is not None:
        is_number = tensor.dtype in FLOATS or tensor.dtype.is_integer()
        return tensor.size <= LARGEST_ZERO and is_number and not constants.numbers(tensor).any()
    if node is None or node.domain:
        return False
    if node.op_type == "ConstantOfShape":
        fill = node.attributes.get("value")
        return fill is None or (not fill.is_ref() and not constants.numbers(fill.as_tensor()).any())
    operands = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in KEEPING_ZERO | {"Concat"} and all(is_zero(store, each) for each in operands)


def _behind(flow: Dataflow, seed: ir.Value) -> Iterable[ir.Node]:
    """Return the nodes of the backward pass and the optimiser that depend on the seed, in order."""
    dependents = flow.behind(node for node, _ in flow.readers.get(seed, ()) if node not in flow.forward)
    return [node for node in flow.nodes if node in dependents and node not in flow.forward]


def _other_uses(flow: Dataflow, value: ir.Value, linear: Collection[ir.Node]) -> Iterable[Use]:
    """Yield the uses of a value by nodes that are not `linear`, and as an output of the model.

    Uses of the shape alone are exempt: it is the same for the scaled and the unscaled value.
    """
    for node, use in flow.readers.get(value, ()):
        reads_shape = not node.domain and node.op_type in ("Shape", "Size")
        if not reads_shape and (node not in linear or use.holder is not node):
            yield use
    yield from (Use(flow.graph, port) for port, output in enumerate(flow.graph.outputs) if output is value)


def _before_products(
    linearity: Linearity, flow: Dataflow, gradients: Collection[ir.Value]
) -> Collection[ir.Value]:
    """Return the linear values on which linear products, or the producers of `gradients`, depend."""
    makers = {value.producer() for value in gradients}
    ends = [node for node in linearity.nodes if node in makers or is_product(node)]
    before = flow.before(value for node in ends for value in node.inputs if value is not None)
    return {value for value in linearity.values if value.producer() in before}


# The loss region: the nodes around the loss and the seed that stay float32, as their values are small. A
# gradient is smallest where the backward pass begins: 2/N of a mean over N numbers underflows in float16
# before any scale reaches it. TensorFlow's rewrite keeps losses in float32 by its deny list; here the region
# ends at the first product on either side.


def find_loss_region(flow: Dataflow, loss: ir.Value, linearity: Linearity) -> set[ir.Node]:
    """Return the nodes with no product between them and the loss, or between the seed and them, and the
    producers in the backward pass on which they depend.
    """
    linear = set(linearity.nodes)

    def makers(node: ir.Node) -> Iterator[ir.Node]:
        return producers(flow.reads[node])

    ahead = _without_products(flow, producers([loss]), makers)
    entries = [use.holder for use in linearity.seed_uses if isinstance(use.holder, ir.Node)]
    back = _without_products(flow, entries, lambda node: filter(linear.__contains__, flow.successors(node)))
    sides = itertools.chain(producers([linearity.seed]), *map(makers, back))
    return ahead | back | _without_products(flow, sides, makers, linear.union(flow.forward))


def _without_products(
    flow: Dataflow,
    start: Iterable[ir.Node],
    following: Callable[[ir.Node], Iterable[ir.Node]],
    besides: Collection[ir.Node] = (),
) -> set[ir.Node]:
    """Return the nodes reachable without passing a product, or a node of `besides`."""

    def passes(node: ir.Node) -> bool:
        return node not in besides and node in flow.reads and not is_product(node)

    return set(reach(start, following, passes))


# The parts of a train step beyond the forward pass: backward pass, its side inputs, and optimiser.


@dataclass(frozen=True, slots=True)
class Parts:
    """The nodes behind the gradients (`optimiser`), with those of state without a gradient, and the products
    that reach them though no scale of the seed does (`unscaled`).

    A product whose result only multiplies linear values is a recomputed part of the forward pass.
    """

    optimiser: Collection[ir.Node]
    unscaled: tuple[ir.Value, ...]


def divide_parts(flow: Dataflow, targets: Collection[ir.Value], linearity: Linearity) -> Parts:
    """Divide a step into its parts; `targets` are its state outputs, or its gradients."""
    linear = set(linearity.nodes)
    behind = flow.behind(users(flow, linearity))
    beside = flow.before(value for node in linear for value in flow.reads[node])
    beside -= linear.union(flow.forward, behind)
    updates = flow.before(targets).difference(flow.forward, linear)
    optimiser = (behind - linear) | (updates - beside)

    def is_unscaled(product: ir.Node) -> bool:
        dependents = reach([product], flow.successors, lambda node: node not in linear)
        return not optimiser.isdisjoint(dependents)

    candidates = [node for node in flow.nodes if node in (beside | optimiser) - behind and is_product(node)]
    return Parts(optimiser, tuple(node.outputs[0] for node in filter(is_unscaled, candidates)))


def users(flow: Dataflow, linearity: Linearity) -> Iterator[ir.Node]:
    """Yield the consumers of gradients at the frontier."""
    for value, uses in linearity.frontier.items():
        yield from (node for node, use in flow.readers.get(value, ()) if use in uses)
