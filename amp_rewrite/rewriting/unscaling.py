"""The way back from a rescaled model: stored values, epsilons and products as in the original."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite.errors import ModelError
from amp_rewrite.model import constants, graph_edits
from amp_rewrite.onnx_types import schema
from amp_rewrite.rewriting import editing
from amp_rewrite.rewriting.plan import Rescaled


def undo(model: ir.Model, rescaled: Rescaled) -> int:
    """Undo the exponents of a model in float32; return the number of edits.

    Raises ModelError, before any edit, where the model is no longer the one that was rescaled.
    """
    try:
        edits = _Unscaling(model, rescaled)
    except (LookupError, ValueError) as error:
        problem = "the exponents in its metadata are those of another graph"
        raise ModelError(problem, remedy="restore the model as it was rewritten") from error
    edits.apply()
    return len(edits.tensors) + len(edits.norms) + len(edits.products)


def scale_block(block: NDArray[Any], e: int) -> NDArray[Any]:
    """Return stored values times 2**-e; raise ModelError where bits would be lost."""
    result = np.asarray(np.ldexp(block, -e), block.dtype)
    if not np.array_equal(np.ldexp(result, e), block, equal_nan=True):
        raise ModelError(
            "a stored value loses bits when it is scaled", remedy="rewrite without `Options.rescale`"
        )
    return result


class _Unscaling:
    """The edits of a model: the exponents of its `tensors`, its `norms`, each with the exponent of its data,
    and the Muls that make `products`. Raises LookupError and ValueError where it lacks any.
    """

    def __init__(self, model: ir.Model, rescaled: Rescaled) -> None:
        self._graph, self._constants = model.graph, constants.find(model)
        nodes = {value.name: node for node in model.graph for value in node.outputs}
        self.products = [self._factors(nodes[name]) for name in rescaled.products]
        for mul, factor, _ in self.products:  # that of an output took its name
            if mul.outputs[0].is_graph_output() and (producer := factor.producer()) is not None:
                nodes[mul.outputs[0].name] = producer
        exponents: dict[ir.Value, list[int]] = defaultdict(list)
        for each in rescaled.values:
            if each.reader is not None:
                value = nodes[each.reader].inputs[each.port]
                if value not in self._constants:
                    raise ValueError(each)
                exponents[value].append(each.exponent)
        if any({*es} != {es[0]} or len(es) != len(value.uses()) for value, es in exponents.items()):
            raise ValueError(exponents)
        self.tensors = {value: es[0] for value, es in exponents.items()}
        self.norms = [(nodes[name], e) for name, e in rescaled.norms]
        if not all("epsilon" in node.attributes for node, _ in self.norms):
            raise ValueError(rescaled.norms)

    def _factors(self, mul: ir.Node) -> tuple[ir.Node, ir.Value, ir.Value]:
        """Return a Mul, the factor that it scales, and the power of two."""
        one, other = mul.inputs
        factor, power = (one, other) if other in self._constants else (other, one)
        if factor is None or power not in self._constants:
            raise ValueError(mul)
        return mul, factor, power

    def apply(self) -> None:
        """Carry out the edits."""
        for value, e in self.tensors.items():
            constant, conversion = self._constants[value], partial(scale_block, e=-e)
            tensor = editing.converted(conversion, ir.DataType.FLOAT, constant, constant.tensor.name)
            graph_edits.store(constant, tensor)
        for node, e in self.norms:
            epsilon = np.float32(schema.number(node, "epsilon", 0.0))
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", float(np.ldexp(epsilon, 2 * e)))
        for mul, factor, power in self.products:
            product = mul.outputs[0]
            if product.is_graph_output():
                product.name, factor.name = factor.name, product.name
            ir.convenience.replace_all_uses_with(product, factor, replace_graph_outputs=True)
            graph_edits.remove([mul])
            if not power.uses() and power.is_initializer():
                graph_edits.unregister(power, self._graph)
