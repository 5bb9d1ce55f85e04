"""The state of a train step: pairs of an input and the output with its value after the step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from amp_rewrite.errors import SpecError
from amp_rewrite.model.states import Borders, Pair
from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.record import Trait
from amp_rewrite.text import shortened


def check(borders: Borders, state: Sequence[Pair]) -> None:
    """Raise SpecError for a pair whose ends are missing, or of different types or shapes."""
    for pair in state:
        sides = ((pair.input, borders.inputs, "input"), (pair.output, borders.outputs, "output"))
        for name, names, side in sides:
            if name not in names:
                raise SpecError(
                    f"the state {pair} names an {side} '{name}' that the model does not have",
                    remedy=f"its {side}s are {listed(names)}",
                )
        if not borders.matches(borders.inputs[pair.input], borders.outputs[pair.output]):
            raise SpecError(
                f"the state {pair} has two types or shapes", remedy="pair tensors of one type and shape"
            )


def by_dataflow(borders: Borders, loss_needs: Collection[ir.Node]) -> list[Pair]:
    """Return the pairs of an output that the loss does not need and the one nearest input of its type and
    shape from which it is computed element by element.

    Raises SpecError, which lists the candidates, for an output with several nearest inputs, and for an input
    that is nearest to several outputs.
    """
    free = set(borders.inputs.values())
    pairs: list[Pair] = []
    for name, output in borders.outputs.items():
        if output.producer() in loss_needs or output.producer() is None:
            continue
        near = _nearest(borders, output, free)
        if len(near) > 1:
            raise _ambiguous(f"the output '{name}' may be the new state of several inputs", near)
        pairs += [Pair(value.name or "", name) for value in near]
    for pair in pairs:
        rivals = [other.output for other in pairs if other.input == pair.input]
        if len(rivals) > 1:
            raise _ambiguous(f"the input '{pair.input}' may be the old state of several outputs", rivals)
    return pairs


def _ambiguous(problem: str, candidates: Sequence[ir.Value | str]) -> SpecError:
    names = [each if isinstance(each, str) else each.name or "" for each in candidates]
    return SpecError(f"{problem}: {listed(names)}", remedy="name the state, each as IN=OUT")


def listed(names: Collection[str]) -> str:
    """Return names for a message; of many, the first and the last."""
    return shortened(", ".join(f"'{name}'" for name in names) or "none", 400)


def _nearest(borders: Borders, output: ir.Value, free: Collection[ir.Value]) -> list[ir.Value]:
    """Return the inputs from which an output is computed by the fewest element-wise nodes."""
    visited, level = {output}, [output]
    while level:
        near = [value for value in level if value in free and borders.matches(value, output)]
        if near:
            return near
        before = [value for each in level for value in _operands(each)]
        level = [value for value in dict.fromkeys(before) if value not in visited]
        visited.update(level)
    return []


def _operands(value: ir.Value) -> Iterator[ir.Value]:
    node = value.producer()
    if node is not None and not node.domain and node.op_type in _ELEMENT_BY_ELEMENT:
        yield from (operand for operand in node.inputs if operand is not None)


_ELEMENT_BY_ELEMENT = having(Trait.ELEMENTWISE) | {"Identity", "Cast"}
