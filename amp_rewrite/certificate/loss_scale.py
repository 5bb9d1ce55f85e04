"""Takes a loss scale that a result declares out of it, proved: its factors, skipped steps, and its state.

All values are homogeneous in the scale, and the outputs of degree 0: they are what they are where it is 1.
There, multiplying by it changes nothing; whatever else reads it reads no value of the original. What keeps
old state where gradients are not finite, and what the scale becomes, is compared with the rule
(`skipped_steps`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import declared_scale, scale_update, skipped_steps, tensors, value_kinds
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.declared_scale import Declared
from amp_rewrite.certificate.homogeneous import Degrees
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered


def take_out(original: Numbered, rewritten: Numbered) -> tuple[Numbered, Counter[Licence]]:
    """The result without the loss scale that it alone declares, and what was used for that.

    Raises DifferentError for a result whose outputs depend on the scale, or that does otherwise than it says.
    """
    declared = declared_scale.of(original, rewritten)
    return (rewritten, Counter()) if declared is None else _TakingOut(rewritten, declared).run()


@dataclass(frozen=True, slots=True)
class _TakingOut:
    after: Numbered
    declared: Declared

    def run(self) -> tuple[Numbered, Counter[Licence]]:
        after, declared = self.after, self.declared
        outputs = [pair for pair in after.outputs if pair[0] not in declared.outputs]
        factors = self._factors()
        wanted = [after.roots[number] for _, number in outputs]
        nodes = Degrees(after, factors).settle(wanted)
        scaled, unscaled = _multiplied(nodes, _powers(after, nodes, factors))
        kept = skipped_steps.take_out(after, declared, unscaled)
        scale_update.refuse_other(after, declared)
        _erase(after, nodes, {**scaled, **unscaled, **kept})
        added = {pair[0] for pair in declared.state.values()}
        if not added.isdisjoint(after.initial):
            raise DifferentError("the state of the loss scale has a default value")
        inputs = {name: number for name, number in after.inputs.items() if name not in added}
        uses = {Licence.LOSS_SCALE: len(scaled) + len(unscaled), Licence.SKIPPED: len(kept)}
        stored = {number: tensor for number, tensor in after.stored.items() if number not in factors}
        return replace(after, inputs=inputs, outputs=outputs, stored=stored), Counter(uses)

    def _factors(self) -> dict[int, int]:
        """What the scale alone makes, with its degree: an input, or the stored powers of a fixed scale."""
        declared = self.declared
        if "scale" in declared.state:
            return {self._scalar(declared.state["scale"][0]): 1}
        found = {self._stored(name): degree for name, degree in declared.powers.items()}
        found.pop(MISSING, None)
        for number, degree in found.items():
            self._refuse_other(number, degree)
        return found

    def _scalar(self, name: str) -> int:
        """The number of an input that is one float: more axes would be given to what it multiplies."""
        number = skipped_steps.numbered(self.after.inputs, name)
        for info in self.after.proto.graph.input:
            kind = info.type.tensor_type
            if info.name == name and not (kind.HasField("shape") and not kind.shape.dim):
                raise DifferentError(f"the loss scale '{name}' is not declared to be one number")
        return number

    def _stored(self, name: str) -> int:
        """The number of a stored value; MISSING for a name that the result does not store."""
        return next((number for number in self.after.stored if self.after.names[number] == name), MISSING)

    def _refuse_other(self, number: int, degree: int) -> None:
        tensor = self.after.stored[number]
        if isinstance(tensor, TensorProto) and tensor.data_type in _FLOATS and not tensor.dims:
            held = tensors.whole(tensor, self.after.folder)
            with np.errstate(over="ignore"):
                expected = (np.float64(self.declared.scale["value"]) ** degree).astype(held.dtype)
            if held == expected and 0 < held < np.inf:
                return
        raise DifferentError("it is not the loss scale that is declared", (MISSING, number, ""))


_FLOATS = value_kinds.FLOATS | {int(TensorProto.DOUBLE)}


def _powers(model: Numbered, nodes: Sequence[Node], factors: Mapping[int, int]) -> dict[int, int]:
    """The values that are powers of the scale, with their degrees: factors, and what these alone make."""
    found = dict(factors)
    for node in nodes:
        if node.operator == ("", "Cast") and node.inputs[0] in found:
            found[node.first] = found[node.inputs[0]]
        elif node.operator == ("", "Div") and node.inputs[1] in found and _is_one(model, node.inputs[0]):
            found[node.first] = -found[node.inputs[1]]
    return found


def _is_one(model: Numbered, number: int) -> bool:
    tensor = model.stored.get(number)
    return isinstance(tensor, TensorProto) and not tensor.dims and tensors.whole(tensor, model.folder) == 1


def _multiplied(nodes: Sequence[Node], powers: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Products by the scale, and by its reciprocal, each with what is multiplied."""
    by_degree: dict[int, dict[int, int]] = {1: {}, -1: {}}
    for node in nodes:
        if node.operator != ("", "Mul"):
            continue
        for port, other in ((1, 0), (0, 1)):
            degree = powers.get(node.inputs[port], 0)
            if degree in by_degree and node.inputs[other] not in powers:
                by_degree[degree][node.first] = node.inputs[other]
                break
    return by_degree[1], by_degree[-1]


def _erase(model: Numbered, nodes: Sequence[Node], standing: Mapping[int, int]) -> None:
    """Puts other values in the places of some, wherever they are read."""

    def final(number: int) -> int:
        while number in standing:
            number = model.roots[standing[number]]
        return number

    model.roots[:] = map(final, model.roots)
    for node in nodes:
        node.inputs = list(map(final, node.inputs))
