"""Steps that keep their old state where gradients are not finite, and what their loss scale then becomes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from amp_rewrite.certificate import attributes, tensors
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.declared_scale import Declared
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered


def numbered(values: Mapping[str, int], name: str) -> int:
    """The number of an input or output; DifferentError where there is none of that name."""
    if name not in values:
        raise DifferentError(f"'{name}', which it declares of its loss scale, is not there")
    return values[name]


def flag_of(model: Numbered, declared: Declared) -> int:
    """The value that says whether gradients are finite; DifferentError where there is none."""
    number = numbered(dict(model.outputs), declared.finite or "")
    return _of(model, model.roots[number], "Identity").inputs[0]


def take_out(model: Numbered, declared: Declared, unscaled: Collection[int]) -> dict[int, int]:
    """The outputs that are old state where a step is skipped, and what they are where it is not.

    Raises DifferentError where steps are not skipped exactly where one of the `unscaled` gradients is not
    finite, or the state of the scale does not follow its rule.
    """
    if declared.finite is None:
        return {}
    outputs = {name: model.roots[number] for name, number in model.outputs}
    flag = flag_of(model, declared)
    checked = set(_checked(model, flag))
    if checked != set(unscaled):
        raise DifferentError("it does not look at every gradient", (MISSING, flag, ""))
    return dict(_kept(model, declared, outputs, flag))


def _kept(
    model: Numbered, declared: Declared, outputs: Mapping[str, int], flag: int
) -> Iterator[tuple[int, int]]:
    for before, after in declared.pairs:
        number = outputs.get(after, MISSING)
        node = model.makers[number]
        if node is not None and node.operator == ("", "Where") and node.inputs[0] == flag:
            is_own = node.inputs[2] == model.inputs.get(before) and _may_be_one(model, before, after)
            if not is_own or sum(pair[0] == before for pair in declared.pairs) > 1:
                raise DifferentError("another state is kept where a step is skipped", (MISSING, number, ""))
            yield number, node.inputs[1]


def _may_be_one(model: Numbered, before: str, after: str) -> bool:
    """Whether what is declared of an input and of an output lets one hold what the other held."""
    graph = model.proto.graph
    one = next(info.type.tensor_type for info in graph.input if info.name == before)
    other = next(info.type.tensor_type for info in graph.output if info.name == after)
    if not (one.HasField("shape") and other.HasField("shape")):
        return True
    if len(one.shape.dim) != len(other.shape.dim):
        return False
    return all(
        a.dim_value == b.dim_value or not (a.HasField("dim_value") and b.HasField("dim_value"))
        for a, b in zip(one.shape.dim, other.shape.dim, strict=True)
    )


def _of(model: Numbered, number: int, *operators: str) -> Node:
    node = model.makers[number]
    if node is None or node.operator not in {("", name) for name in operators}:
        raise DifferentError("it does not say whether gradients are finite", (MISSING, number, ""))
    return node


def _checked(model: Numbered, flag: int) -> Iterator[int]:
    """The values whose elements are all finite where a flag is true.

    A sum of absolute values is finite if all elements are; they are made small, so that it does not overflow.
    """
    flags, sums = [flag], list[int]()
    while flags:
        node = _of(model, flags.pop(), "And", "Less")
        if node.operator[1] == "And":
            flags += node.inputs
            continue
        _refuse_other(model, node.inputs[1], np.isposinf)
        total = _of(model, node.inputs[0], "Sum", "ReduceL1")
        sums += total.inputs if total.operator[1] == "Sum" else [total.first]
    for number in sums:
        small = _of(model, _summed(model, number), "Mul")
        _refuse_other(model, small.inputs[1], lambda value: 0 < value <= _SMALL)
        yield small.inputs[0]


_SMALL = 2.0**-32
"""What elements are multiplied by at most, so that a sum of 2^32 of them is finite."""


def _summed(model: Numbered, number: int) -> int:
    """What a value is the sum of all absolute values of; DifferentError for a sum over some axes."""
    node = _of(model, number, "ReduceL1")
    stated = {name: held.attribute.i for name, held in attributes.of(node).items()}
    if len(node.inputs) != 1 or stated != {"keepdims": 0}:
        raise DifferentError("it does not say whether all of a gradient is finite", (MISSING, number, ""))
    return node.inputs[0]


def _refuse_other(model: Numbered, number: int, fits: Any) -> None:
    tensor = model.stored.get(number)
    if not isinstance(tensor, TensorProto) or tensor.dims or not fits(tensors.whole(tensor, model.folder)):
        raise DifferentError("it does not say whether gradients are finite", (MISSING, number, ""))
