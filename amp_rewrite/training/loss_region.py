"""The loss region: what stays float32 around the loss and the seed, since its numbers are small.

A gradient is smallest where the backward pass begins: 2/N of a mean over N numbers underflows in float16
before any scale reaches it. TensorFlow's rewrite keeps losses in float32 by its deny list; here the region
ends at the first product on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import onnx_ir as ir

from amp_rewrite.training import dataflow
from amp_rewrite.training.dataflow import Dataflow
from amp_rewrite.training.linearity import Linearity


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
        return node not in besides and node in flow.reads and not dataflow.is_product(node)

    return dataflow.reach(start, following, passes)
