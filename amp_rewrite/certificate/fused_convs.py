"""Licence: a FusedConv taken apart into a Conv, a sum and an activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import AttributeProto

from amp_rewrite.certificate import attributes, clips
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.numbered import MISSING, Node
from amp_rewrite.certificate.pairs import Pair, Proof

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
"""What onnxruntime fuses, with the attributes that its `activation_params` are, in order."""


def taken_apart(proof: Proof, fused: Node, right: int) -> Sequence[Pair]:
    """`FusedConv(x, w, b, z)` is `activation(Conv(x, w, b) + z)`."""
    given = attributes.plain(attributes.of(fused))
    name = given["activation"].s.decode(errors="replace") if "activation" in given else ""
    if name not in _PARAMETERS:
        raise DifferentError("no activation is known that the node is fused with")
    last = _before_activation(proof, right, name, _floats(given))
    residual = fused.inputs[3] if len(fused.inputs) > 3 else MISSING
    pairs: list[Pair] = []
    if residual != MISSING:
        add = proof.made(last, "Add")
        pairs.append((residual, add.inputs[1]))
        last = add.inputs[0]
    conv = proof.made(last, "Conv")
    plain = {name: a for name, a in given.items() if not name.startswith("activation")}
    if _contents(plain) != _contents(attributes.plain(attributes.of(conv))):
        raise DifferentError("the attributes of the Conv differ")
    inputs = fused.inputs[:3]
    while inputs and inputs[-1] == MISSING:
        inputs = inputs[:-1]
    if len(conv.inputs) != len(inputs) or MISSING in conv.inputs:
        raise DifferentError("the Conv reads other values")
    proof.uses[Licence.FUSED_CONV] += 1
    return [*zip(inputs, conv.inputs, strict=True), *pairs]


def _floats(given: Mapping[str, AttributeProto]) -> Sequence[float]:
    return list(given["activation_params"].floats) if "activation_params" in given else []


def _contents(given: Mapping[str, AttributeProto]) -> Mapping[str, object]:
    return {name: attributes.content(attribute) for name, attribute in given.items()}


def _before_activation(proof: Proof, right: int, name: str, numbers: Sequence[float]) -> int:
    """What the activation of a fused node is applied to in the result."""
    node = proof.rewritten.makers[right]
    if name == "Clip" and node is not None and node.operator == ("", "Min") and len(numbers) == 2:
        data, low, high = clips.operands(proof, right)
        for value, number in ((low, numbers[0]), (high, numbers[1])):
            proof.stored_number(value, np.array(number, np.float32))
        proof.uses[Licence.MAX_AND_MIN] += 1
        return data
    activation = proof.made(right, name)
    _same_parameters(proof, activation, _PARAMETERS[name], numbers)
    return activation.inputs[0]


def _same_parameters(proof: Proof, node: Node, names: Sequence[str], numbers: Sequence[float]) -> None:
    """Proves that an activation has the parameters of a fused node, as attributes or as inputs."""
    stated = attributes.plain(attributes.of(node))
    wanted = dict(zip(names, numbers, strict=False))
    if len(node.inputs) > 1:
        if len(node.inputs) != 1 + len(wanted) or stated:
            raise DifferentError("the activation has other parameters")
        for value, number in zip(node.inputs[1:], wanted.values(), strict=True):
            proof.stored_number(value, np.array(number, np.float32))
    elif {name: a.f for name, a in stated.items()} != {n: float(np.float32(v)) for n, v in wanted.items()}:
        raise DifferentError("the activation has other parameters")
