"""Which values of a backward pass are linear in its seed, and where they are used otherwise: the frontier.

If the seed is multiplied by a scale, every linear value is. Divided by the scale where it is used otherwise,
no other value changes in exact arithmetic, whatever the seed, the optimiser and the names are; in floating
point no bit changes if the scale is a power of two and nothing overflows or is subnormal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from amp_rewrite.analysis.units import Use
from amp_rewrite.model import constants
from amp_rewrite.training import dataflow, linear_operators
from amp_rewrite.training.dataflow import Dataflow
from amp_rewrite.training.linear_operators import Site


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
        return sum(map(dataflow.is_product, self.nodes))


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
        return linear_operators.is_zero(value, overridable=overridable)


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
        made = linear_operators.outputs(site) if scaled else None
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
    ends = [node for node in found.nodes if node in makers or dataflow.is_product(node)]
    before = flow.before(value for node in ends for value in node.inputs if value is not None)
    return {value for value in found.values if value.producer() in before}
