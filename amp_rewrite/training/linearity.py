"""Which values of a backward pass are linear in its seed, and where they are used otherwise: the frontier.

If the seed is multiplied by a scale, every linear value is. Divided by the scale where it is used otherwise,
no other value changes in exact arithmetic, whatever the seed, the optimiser and the names are; in floating
point no bit changes if the scale is a power of two and nothing overflows or is subnormal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.model import constants, traversal
from amp_rewrite.onnx_types import attributes, control_flow
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.entries import Kind

# The dataflow of a main graph: a node with bodies is one step, which reads what its bodies capture.


@dataclass(frozen=True, slots=True)
class Dataflow:
    """The nodes of a main graph in topological order, what each reads, and who reads each value.

    `reads` includes what bodies capture. `readers` has every use of a value once: the node of the main graph
    that reads it, and the use itself, which may be in a body of that node.
    """

    graph: ir.Graph
    nodes: Sequence[ir.Node]
    reads: Mapping[ir.Node, tuple[ir.Value, ...]]
    readers: Mapping[ir.Value, Sequence[tuple[ir.Node, Use]]]

    def before(self, values: Iterable[ir.Value]) -> set[ir.Node]:
        """All nodes that these values depend on."""
        made = (value.producer() for value in values)
        return reach(filter(None, made), self._makers)

    def behind(self, nodes: Iterable[ir.Node]) -> set[ir.Node]:
        """These nodes and all that depend on them."""
        return reach(nodes, self.successors)

    def successors(self, node: ir.Node) -> Iterator[ir.Node]:
        """The nodes that read what a node outputs."""
        for value in node.outputs:
            yield from (reader for reader, _ in self.readers.get(value, ()))

    def _makers(self, node: ir.Node) -> Iterator[ir.Node]:
        yield from filter(None, (value.producer() for value in self.reads[node]))


def of(graph: ir.Graph) -> Dataflow:
    """The dataflow of a main graph whose nodes are sorted."""
    nodes = tuple(graph)
    outer = set(nodes)
    reads: dict[ir.Node, tuple[ir.Value, ...]] = {}
    readers: dict[ir.Value, list[tuple[ir.Node, Use]]] = {}
    for node in nodes:
        uses = [(value, use) for value, use in _uses(node) if _is_outer(value, outer, graph)]
        reads[node] = tuple(dict.fromkeys(value for value, _ in uses))
        for value, use in uses:
            readers.setdefault(value, []).append((node, use))
    return Dataflow(graph, nodes, reads, readers)


def _is_outer(value: ir.Value, outer: Collection[ir.Node], graph: ir.Graph) -> bool:
    """Whether a value is of the main graph, not of a body."""
    node = value.producer()
    return value.graph in (graph, None) if node is None else node in outer


def _uses(node: ir.Node) -> Iterator[tuple[ir.Value, Use]]:
    """The uses of values by a node and in its bodies, with those of values of the bodies."""
    yield from ((value, Use(node, port)) for port, value in enumerate(node.inputs) if value is not None)
    for body in control_flow.bodies(node):
        for inner in body:
            yield from _uses(inner)
        yield from ((value, Use(body, port)) for port, value in enumerate(body.outputs))


def reach(
    start: Iterable[ir.Node],
    following: Callable[[ir.Node], Iterable[ir.Node]],
    passes: Callable[[ir.Node], bool] = lambda _: True,
) -> set[ir.Node]:
    """These nodes and all that follow, by way of nodes that `passes` takes alone."""
    found, todo = set[ir.Node](), list(start)
    while todo:
        node = todo.pop()
        if node not in found and passes(node):
            found.add(node)
            todo += following(node)
    return found


def is_product(node: ir.Node) -> bool:
    """Whether a node is, or holds in a body, what the shipped list has on its allow list: a matrix product, a
    convolution, an attention or a recurrent network, or the gradient of a convolution.
    """
    lists = operator_lists.load("default")
    for inner in traversal.nodes_inner_first([node]):
        entry = lists.find(inner.domain, inner.op_type)
        if (entry is not None and entry.kind is Kind.ALLOW) or inner.op_type == "ConvGrad":
            return True
    return False


# Which operators are linear in which of their inputs: what multiplies these multiplies their outputs.
#
# A rule gets a node, the positions of the inputs that are multiplied (`scaled`), and a test whether an
# input is constant zero or absent. It returns the positions of the outputs that are multiplied as well, or
# None where the node is not linear in these inputs together. An operator without a rule is not linear.
# ONNX's operator documentation defines all of them but the gradients of onnxruntime-training, which
# orttraining/orttraining/core/graph/training_op_defs.cc does.


@dataclass(frozen=True, slots=True)
class Site:
    """A node, which of its inputs are multiplied, and a test for inputs that are zero or absent."""

    node: ir.Node
    scaled: frozenset[int]
    is_zero: Callable[[int], bool]


Rule = Callable[[Site], Collection[int] | None]

_FIRST = (0,)
_ONLY_FIRST = frozenset((0,))
_NOTHING: tuple[int, ...] = ()


def outputs(site: Site) -> Collection[int] | None:
    """The outputs of a node that are multiplied with its inputs; None where it is not linear in these."""
    domain = "" if site.node.domain == "ai.onnx" else site.node.domain
    rule = _RULES.get((domain, site.node.op_type))
    return None if rule is None else rule(site)


def _in(*ports: int) -> Rule:
    """Linear in one input alone, or in each of them separately: all outputs."""

    def rule(site: Site) -> Collection[int] | None:
        alone = len(site.scaled) == 1 and site.scaled <= set(ports)
        return range(len(site.node.outputs)) if alone else None

    return rule


def _first_output(site: Site) -> Collection[int] | None:
    return _FIRST if site.scaled == _ONLY_FIRST else None


def _together(*ports: int) -> Rule:
    """Linear in these inputs (in all, where none is named) together: each multiplied, or zero."""

    def rule(site: Site) -> Collection[int] | None:
        taken = ports or range(len(site.node.inputs))
        joint = site.scaled <= set(taken) and _all_or_zero(site, taken)
        return _FIRST if joint else None

    return rule


def _all_or_zero(site: Site, ports: Iterable[int]) -> bool:
    return all(port in site.scaled or site.is_zero(port) for port in ports)


def _product(*, added: int | None = None) -> Rule:
    """Linear in either of the first two inputs; what is `added` must be multiplied too, or zero."""

    def rule(site: Site) -> Collection[int] | None:
        factors = site.scaled & {0, 1}
        others = () if added is None else (added,)
        sound = len(factors) == 1 and site.scaled <= {0, 1, *others} and _all_or_zero(site, others)
        return _FIRST if sound else None

    return rule


def _cast(site: Site) -> Collection[int] | None:
    to = site.node.attributes.get("to")
    known = to is not None and not to.is_ref() and ir.DataType(to.as_int()) in FLOATS
    return _FIRST if known else None


FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE))
"""The types that a loss, a seed and gradients may have."""


def _cast_like(site: Site) -> Collection[int] | None:
    """What decides the type may be anything: its numbers are not read."""
    return _FIRST if 0 in site.scaled else _NOTHING


def _scatter(site: Site) -> Collection[int] | None:
    reduction = site.node.attributes.get("reduction")
    adds = reduction is None or (not reduction.is_ref() and reduction.as_string() in ("none", "add"))
    return _together(0, 2)(site) if adds else None


def _pad(site: Site) -> Collection[int] | None:
    """What is padded with must be zero: an input from opset 11 on, an attribute before."""
    mode, value = attributes.text(site.node, "mode", "constant"), site.node.attributes.get("value")
    pads_with_zero = site.is_zero(2) and (value is None or _number(value) == 0)
    return _first_output(site) if mode != "constant" or pads_with_zero else None


def _resize(site: Site) -> Collection[int] | None:
    extrapolated = site.node.attributes.get("extrapolation_value")
    return _first_output(site) if extrapolated is None or _number(extrapolated) == 0 else None


def _number(attribute: ir.Attr) -> float | None:
    return None if attribute.is_ref() else attribute.as_float()


_FIRST_ALONE = """Identity Neg Reshape Flatten Squeeze Unsqueeze Transpose Expand Tile Slice Gather
    GatherElements GatherND DepthToSpace SpaceToDepth ReduceSum ReduceMean CumSum Trilu AveragePool Div
    GlobalAveragePool ReverseSequence Compress MaxUnpool Col2Im Dropout GridSample DFT Upsample""".split()
_GRADIENTS_OF_THE_FIRST = """ReluGrad ConvGrad LayerNormalizationGrad SimplifiedLayerNormalizationGrad
    InvertibleLayerNormalizationGrad SoftmaxGrad SoftmaxGrad_13 LogSoftmaxGrad LogSoftmaxGrad_13 GeluGrad
    FastGeluGrad QuickGeluGrad BiasGeluGrad_dX BiasFastGeluGrad_dX SigmoidGrad TanhGrad LeakyReluGrad
    DropoutGrad BitmaskDropoutGrad MaxPoolGrad AveragePoolGrad BatchNormalizationGrad GatherElementsGrad
    SliceGrad""".split()

_RULES: Mapping[tuple[str, str], Rule] = {
    **{("", operator): _first_output for operator in _FIRST_ALONE},
    **{("", operator): _together() for operator in ("Add", "Sub", "Sum", "Mean", "Concat")},
    **{("", operator): lambda _: _NOTHING for operator in ("Shape", "Size")},
    **{("", operator): _scatter for operator in ("Scatter", "ScatterElements", "ScatterND")},
    **{("", operator): _product(added=2) for operator in ("Gemm", "Conv", "ConvTranspose")},
    ("", "Mul"): _product(),
    ("", "MatMul"): _product(),
    ("", "Split"): lambda site: range(len(site.node.outputs)) if site.scaled == _ONLY_FIRST else None,
    ("", "Where"): _together(1, 2),
    ("", "Pad"): _pad,
    ("", "Resize"): _resize,
    ("", "Cast"): _cast,
    ("", "CastLike"): _cast_like,
    ("", "Einsum"): lambda site: _FIRST if len(site.scaled) == 1 else None,
    ("com.microsoft", "FusedMatMul"): _product(),
    ("com.microsoft", "TransposeMatMul"): _product(),
    **{("com.microsoft", operator): _in(0) for operator in _GRADIENTS_OF_THE_FIRST},
    ("com.microsoft", "SoftmaxCrossEntropyLossGrad"): lambda site: (
        _FIRST if site.scaled == _ONLY_FIRST and site.is_zero(4) else None
    ),
    ("com.microsoft", "GatherGrad"): _in(2),
    ("com.microsoft", "GatherNDGrad"): _in(2),
}


_MOVES_ZERO = frozenset(
    "Cast Concat Expand Flatten Identity Neg Reshape Squeeze Tile Transpose Unsqueeze".split()
)
_LARGEST_ZERO = 1 << 24
"""Elements up to which a stored tensor is read to see whether it is zero."""


def is_zero(value: ir.Value | None, *, overridable: bool) -> bool:
    """Whether a value is absent, or constant and zero in every element.

    With `overridable`, initializers that are inputs too are not constant (IR version 4 and later).
    """
    if value is None:
        return True
    if value.is_graph_input() and (overridable or not value.is_initializer()):
        return False
    stored, node = constants.stored_as(value), value.producer()
    if stored is not None:
        return stored.size <= _LARGEST_ZERO and _is_number(stored) and not constants.numbers(stored).any()
    if node is None or node.domain:
        return False
    if node.op_type == "ConstantOfShape":
        fill = node.attributes.get("value")
        return fill is None or (not fill.is_ref() and not constants.numbers(fill.as_tensor()).any())
    moved = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in _MOVES_ZERO and all(is_zero(each, overridable=overridable) for each in moved)


def _is_number(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype in FLOATS or tensor.dtype.is_integer()


@dataclass(frozen=True, slots=True)
class Linearity:
    """What a multiplied seed multiplies: the linear `values`, in order, and the nodes that output them.

    `seed_uses` are the uses of the seed by nodes that are linear in it: these read it multiplied. `frontier`
    holds the linear values that are used otherwise, with these uses: there they are gradients.
    """

    seed: ir.Value
    values: Collection[ir.Value]
    nodes: Collection[ir.Node]
    seed_uses: tuple[Use, ...]
    frontier: Mapping[ir.Value, tuple[Use, ...]]

    @property
    def products(self) -> int:
        """How many products of the backward pass are linear in the seed."""
        return sum(map(is_product, self.nodes))


@dataclass(frozen=True, slots=True)
class Subject:
    """What is analysed: a model with its dataflow, and the nodes of the forward pass, which depend on no
    seed: where these read one, they read it as it is.
    """

    model: ir.Model
    flow: Dataflow
    forward: Collection[ir.Node]

    def is_zero(self, node: ir.Node, port: int) -> bool:
        """Whether an input of a node is absent, or constant zero."""
        value = node.inputs[port] if port < len(node.inputs) else None
        overridable = self.model.ir_version >= constants.CONSTANT_INPUTS_BELOW
        return is_zero(value, overridable=overridable)


def analyse(subject: Subject, seed: ir.Value, named: Collection[ir.Value] = ()) -> Linearity:
    """What is linear in the seed, up to the gradients.

    Where no product follows, the optimiser begins at a value that is `named` as a gradient, that has a use
    which is not linear, or that is multiplied by a scalar, as a learning rate is: this is a gradient in all
    of its uses, so that each has one place where it is divided.
    """
    found = _propagate(subject, seed, frozenset())
    inner = _before_products(found, subject.flow, named)
    ends = (value for value in found.values if value in named or _ends(found, subject.flow, value))
    cut = frozenset(value for value in ends if value not in inner)
    return _propagate(subject, seed, cut) if cut else found


def _ends(found: Linearity, flow: Dataflow, value: ir.Value) -> bool:
    """Whether a linear value has a use that is not linear, or is multiplied by a scalar or divided by one."""
    if value in found.frontier:
        return True
    readers = (node for node, _ in flow.readers.get(value, ()))
    factors = (node for node in readers if not node.domain and node.op_type in ("Mul", "Div"))
    return any(_is_scalar(each) for node in factors for each in node.inputs if each is not value)


def _is_scalar(value: ir.Value | None) -> bool:
    """Whether a value is known to have one element."""
    stored = constants.stored_as(value)
    holder = value if stored is None else stored
    shape = None if holder is None else holder.shape
    return shape is not None and all(size == 1 for size in shape)


def _propagate(subject: Subject, seed: ir.Value, cut: Collection[ir.Value]) -> Linearity:
    linear: dict[ir.Value, None] = {}
    nodes: dict[ir.Node, None] = {}
    seed_uses: list[Use] = []
    for node in _behind(subject, seed):
        scaled = frozenset(
            port
            for port, value in enumerate(node.inputs)
            if value is seed or (value in linear and value not in cut)
        )
        site = Site(node, scaled, partial(subject.is_zero, node))
        made = outputs(site) if scaled else None
        if made is None:
            continue
        seed_uses += [Use(node, port) for port in scaled if node.inputs[port] is seed]
        linear.update(dict.fromkeys(value for i in made if (value := node.outputs[i]).name))
        nodes.update({node: None} if made else {})
    flow = subject.flow
    others = {value: tuple(_other_uses(flow, value, () if value in cut else nodes)) for value in linear}
    frontier = {value: uses for value, uses in others.items() if uses}
    return Linearity(seed, tuple(linear), tuple(nodes), tuple(seed_uses), frontier)


def _behind(subject: Subject, seed: ir.Value) -> Iterable[ir.Node]:
    """The nodes of the backward pass and the optimiser that depend on the seed, in order."""
    flow = subject.flow
    reached = flow.behind(node for node, _ in flow.readers.get(seed, ()) if node not in subject.forward)
    return [node for node in flow.nodes if node in reached and node not in subject.forward]


def _other_uses(flow: Dataflow, value: ir.Value, linear: Collection[ir.Node]) -> Iterable[Use]:
    """The uses of a value by nodes that are not `linear`, and as an output of the model.

    What reads shapes alone may read either.
    """
    for node, use in flow.readers.get(value, ()):
        reads_shape = not node.domain and node.op_type in ("Shape", "Size")
        if not reads_shape and (node not in linear or use.holder is not node):
            yield use
    yield from (Use(flow.graph, port) for port, output in enumerate(flow.graph.outputs) if output is value)


def _before_products(found: Linearity, flow: Dataflow, named: Collection[ir.Value]) -> Collection[ir.Value]:
    """The linear values that linear products, or what makes `named` gradients, depend on."""
    makers = {value.producer() for value in named}
    ends = [node for node in found.nodes if node in makers or is_product(node)]
    before = flow.before(value for node in ends for value in node.inputs if value is not None)
    return {value for value in found.values if value.producer() in before}


# The parts of a train step: what the loss needs, what state needs beyond that, and what is neither.


@dataclass(frozen=True, slots=True)
class Parts:
    """The nodes behind a backward pass (`linear` in the seed), what else these need beyond the forward pass
    (`beside`), and what follows the gradients (`optimiser`), with state that depends on none.
    """

    linear: Collection[ir.Node]
    beside: Collection[ir.Node]
    optimiser: Collection[ir.Node]


def divide(
    flow: Dataflow, forward: Collection[ir.Node], kept: Collection[ir.Value], found: Linearity
) -> Parts:
    """The parts of a step whose outputs `kept` are state or gradients, given what is linear in its seed."""
    linear = set(found.nodes)
    behind = flow.behind(users(flow, found)) - linear
    needed = flow.before(kept) - set(forward)
    beside = flow.before(value for node in linear for value in flow.reads[node])
    beside = {node for node in beside if node not in linear and node not in forward and node not in behind}
    return Parts(linear, beside, behind | (needed - linear - beside))


def users(flow: Dataflow, found: Linearity) -> Iterator[ir.Node]:
    """The nodes that read gradients where these are not linear."""
    for value, uses in found.frontier.items():
        yield from (node for node, use in flow.readers.get(value, ()) if use in uses)


def unscaled(flow: Dataflow, parts: Parts, found: Linearity) -> tuple[ir.Value, ...]:
    """Products of the backward pass that no scale of the seed reaches, and whose results reach the optimiser.

    A product whose result only multiplies linear values is part of the forward pass, computed again.
    """
    behind = flow.behind(users(flow, found))
    candidates = [node for node in flow.nodes if node in parts.beside or node in parts.optimiser]
    suspects = (node for node in candidates if node not in behind and is_product(node))
    return tuple(node.outputs[0] for node in suspects if _reaches(flow, node, parts, found))


def _reaches(flow: Dataflow, product: ir.Node, parts: Parts, found: Linearity) -> bool:
    """Whether what a product outputs reaches the optimiser without passing a node that is linear."""
    linear = set(found.nodes)
    reached = reach([product], flow.successors, lambda node: node not in linear)
    return not reached.isdisjoint(parts.optimiser)


# The loss region: what stays float32 around the loss and the seed, since its numbers are small.
#
# A gradient is smallest where the backward pass begins: 2/N of a mean over N numbers underflows in float16
# before any scale reaches it. TensorFlow's rewrite keeps losses in float32 by its deny list; here the
# region ends at the first product on either side.


def find(flow: Dataflow, loss: ir.Value, found: Linearity, forward: Collection[ir.Node]) -> set[ir.Node]:
    """The nodes with no product between them and the loss, or between the seed and them; and what these need
    of the backward pass alone.
    """
    ahead = _without_products(flow, _producers([loss]), lambda node: _producers(flow.reads[node]))
    begun = [use.holder for use in found.seed_uses if isinstance(use.holder, ir.Node)]
    linear = set(found.nodes)
    back = _without_products(
        flow, begun, lambda node: (reader for reader in flow.successors(node) if reader in linear)
    )
    beside = _without_products(
        flow,
        [*_producers([found.seed]), *(made for node in back for made in _producers(flow.reads[node]))],
        lambda node: _producers(flow.reads[node]),
        linear.union(forward),
    )
    return ahead | back | beside


def _producers(values: Iterable[ir.Value]) -> list[ir.Node]:
    return [node for value in values if (node := value.producer()) is not None]


def _without_products(
    flow: Dataflow,
    start: Iterable[ir.Node],
    following: Callable[[ir.Node], Iterable[ir.Node]],
    besides: Collection[ir.Node] = (),
) -> set[ir.Node]:
    """The nodes reached without passing a product, or a node `besides`."""

    def passes(node: ir.Node) -> bool:
        return node not in besides and node in flow.reads and not is_product(node)

    return reach(start, following, passes)
