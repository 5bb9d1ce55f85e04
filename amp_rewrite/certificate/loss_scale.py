"""Proved removal of a loss scale that a result declares: its factors, skipped steps, and its state.

All values are homogeneous in the scale, and the outputs have degree 0: they are the same as for a scale of 1,
where multiplication by it is the identity; its other consumers read no value of the original. The selection
of old state where gradients are not finite, and the update of the scale, are compared with the rule
(`skipped_steps`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper, parser

from amp_rewrite.certificate import numbering, tensors, value_kinds
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.homogeneous import Degrees
from amp_rewrite.certificate.numbered import MISSING, Node, Numbered, attributes_of
from amp_rewrite.certificate.proving import Proving


def take_out(original: Numbered, rewritten: Numbered) -> tuple[Numbered, Counter[Licence]]:
    """Return the result without the loss scale that it alone declares, and the licences used for that.

    Raises DifferentError if outputs depend on the scale, or if the result deviates from its declaration.
    """
    declared = declared_scale(original, rewritten)
    return (rewritten, Counter()) if declared is None else _TakingOut(rewritten, declared).run()


@dataclass(frozen=True, slots=True)
class _TakingOut:
    after: Numbered
    declared: Declared

    def run(self) -> tuple[Numbered, Counter[Licence]]:
        after, declared = self.after, self.declared
        outputs = [pair for pair in after.outputs if pair[0] not in declared.outputs]
        factors = self._factors()
        results = [after.roots[number] for _, number in outputs]
        nodes = Degrees(after, factors).settle(results)
        products, quotients = _scale_products(nodes, _powers(after, nodes, factors))
        skips = take_out_skips(after, declared, quotients)
        refuse_other_update(after, declared)
        _erase(after, nodes, {**products, **quotients, **skips})
        state_inputs = {pair[0] for pair in declared.state.values()}
        if not state_inputs.isdisjoint(after.initial):
            raise DifferentError("the state of the loss scale has a default value")
        inputs = {name: number for name, number in after.inputs.items() if name not in state_inputs}
        uses = {Licence.LOSS_SCALE: len(products) + len(quotients), Licence.SKIPPED: len(skips)}
        constants = {number: tensor for number, tensor in after.stored.items() if number not in factors}
        return replace(after, inputs=inputs, outputs=outputs, stored=constants), Counter(uses)

    def _factors(self) -> dict[int, int]:
        """Return the values of the scale, with their degrees: an input, or stored powers of a fixed scale."""
        declared = self.declared
        if "scale" in declared.state:
            return {self._scalar(declared.state["scale"][0]): 1}
        degrees = {self._stored(name): degree for name, degree in declared.powers.items()}
        degrees.pop(MISSING, None)
        for number, degree in degrees.items():
            self._refuse_other(number, degree)
        return degrees

    def _scalar(self, name: str) -> int:
        """Return the number of a scalar input; with axes, it could broadcast the other factors."""
        number = number_of(self.after.inputs, name)
        for info in self.after.proto.graph.input:
            kind = info.type.tensor_type
            if info.name == name and not (kind.HasField("shape") and not kind.shape.dim):
                raise DifferentError(f"the loss scale '{name}' is not declared to be one number")
        return number

    def _stored(self, name: str) -> int:
        """Return the number of a stored value; MISSING for a name that the result does not store."""
        return next((number for number in self.after.stored if self.after.names[number] == name), MISSING)

    def _refuse_other(self, number: int, degree: int) -> None:
        tensor = self.after.stored[number]
        if isinstance(tensor, TensorProto) and tensor.data_type in _FLOATS and not tensor.dims:
            factor = tensors.whole(tensor, self.after.folder)
            with np.errstate(over="ignore"):
                expected = (np.float64(self.declared.scale["value"]) ** degree).astype(factor.dtype)
            if factor == expected and 0 < factor < np.inf:
                return
        raise DifferentError("it is not the loss scale that is declared", (MISSING, number, ""))


_FLOATS = value_kinds.FLOATS | {int(TensorProto.DOUBLE)}


def _powers(model: Numbered, nodes: Sequence[Node], factors: Mapping[int, int]) -> dict[int, int]:
    """Return the powers of the scale, with their degrees: factors, and values computed from these alone."""
    powers = dict(factors)
    for node in nodes:
        if node.operator == ("", "Cast") and node.inputs[0] in powers:
            powers[node.first] = powers[node.inputs[0]]
        elif node.operator == ("", "Div") and node.inputs[1] in powers and _is_one(model, node.inputs[0]):
            powers[node.first] = -powers[node.inputs[1]]
    return powers


def _is_one(model: Numbered, number: int) -> bool:
    tensor = model.stored.get(number)
    return isinstance(tensor, TensorProto) and not tensor.dims and tensors.whole(tensor, model.folder) == 1


def _scale_products(
    nodes: Sequence[Node], powers: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the products by the scale and by its reciprocal, each with its other operand."""
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
    """Replace values by others for all their consumers."""

    def final(number: int) -> int:
        while number in standing:
            number = model.roots[standing[number]]
        return number

    model.roots[:] = map(final, model.roots)
    for node in nodes:
        node.inputs = list(map(final, node.inputs))


# ---- the declaration of a loss scale in the metadata of a result


_PREFIX = "amp_rewrite.train."
_KEY = f"{_PREFIX}loss_scale"


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of a loss scale: its numbers, the inputs and outputs for its state, the output that
    flags finite gradients, the stored `powers` of a fixed scale, and the inputs and outputs for the state of
    the model.
    """

    scale: Mapping[str, float]
    state: Mapping[str, Sequence[str]]
    finite: str | None
    powers: Mapping[str, int]
    pairs: Sequence[Sequence[str]]

    @property
    def outputs(self) -> set[str]:
        """The outputs that exist only for the scale."""
        return {pair[1] for pair in self.state.values()} | ({self.finite} if self.finite else set[str]())


def declared_scale(original: Numbered, rewritten: Numbered) -> Declared | None:
    """Return the scale that the result alone declares, if any; DifferentError for an invalid declaration."""
    metadata = _metadata(rewritten)
    if _KEY not in metadata or _KEY in _metadata(original):
        return None
    try:
        return _parse(json.loads(metadata[_KEY]), json.loads(metadata.get(f"{_PREFIX}state", "[]")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DifferentError("what it declares of its loss scale cannot be read") from error


def _metadata(model: Numbered) -> dict[str, str]:
    return {prop.key: prop.value for prop in model.proto.metadata_props}


def _parse(record: Any, pairs: Any) -> Declared:
    state, scale = record["state"], record["scale"]
    names = [name for name in ("scale", "good_steps") if name in state]
    if len(names) == 1:
        raise ValueError(names)
    numbers = {name: _positive(scale[name]) for name in (("multiplier",) if names else ("value",))}
    if names:
        numbers["increment_period"] = _whole(scale["increment_period"], range(1, 1 << 63))
    finite = None if state["finite"] is None else _text(state["finite"])
    powers = {_text(name): _whole(degree, range(-4, 5)) for name, degree in record["powers"].items()}
    return Declared(
        numbers, {name: _pair(state[name]) for name in names}, finite, powers, [*map(_pair, pairs)]
    )


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(value)
    return value


def _pair(value: Any) -> tuple[str, str]:
    before, after = value
    return _text(before), _text(after)


def _whole(value: Any, allowed: range) -> int:
    if type(value) is not int or value not in allowed:
        raise ValueError(value)
    return value


def _positive(value: Any) -> float:
    """Return a number that is normal in float32, as is its reciprocal, so that scaling can be undone."""
    if type(value) not in (int, float) or not _TINY <= value <= 1 / _TINY:
        raise ValueError(value)
    return float(value)


_TINY = float(np.finfo(np.float32).tiny)


# ---- the update of a dynamic loss scale after a step (TensorFlow's DynamicLossScale.update)


_RULE = """<ir_version: 8, opset_import: ["" : 17]>
update (float scale, int64 good, bool finite) => (float next, int64 steps)
<float multiplier, float infinity, float least, int64 one, int64 zero, int64 period> {
    larger = Mul (scale, multiplier)
    holds = Less (larger, infinity)
    grown = Where (holds, larger, scale)
    count = Add (good, one)
    waits = Less (count, period)
    after_finite = Where (waits, scale, grown)
    smaller = Div (scale, multiplier)
    shrunk = Max (smaller, least)
    next = Where (finite, after_finite, shrunk)
    counts = And (finite, waits)
    steps = Where (counts, count, zero)
}"""


def refuse_other_update(model: Numbered, declared: Declared) -> None:
    """Raise DifferentError if the state of a scale is not updated by the rule."""
    if "good_steps" not in declared.state:
        return
    outputs = dict(model.outputs)
    names = [declared.state[name] for name in ("scale", "good_steps")]
    ends = [(each[1], number_of(outputs, each[1])) for each in names]
    rule = numbering.number(Numbered(_rule(declared, model), None), {})
    proving = Proving(rule, replace(model, outputs=ends))
    begins = [number_of(model.inputs, each[0]) for each in names]
    for left, right in zip(rule.inputs.values(), (*begins, flag_of(model, declared)), strict=True):
        proving.assume(left, right)
    certificate = proving.run()
    if not certificate.proved:
        raise DifferentError(f"the loss scale does not become what the rule says ({certificate.problem})")


def _rule(declared: Declared, model: Numbered) -> ModelProto:
    rule = parser.parse_model(_RULE)
    numbers = {
        "multiplier": np.float32(declared.scale["multiplier"]),
        "infinity": np.float32(np.inf),
        "least": np.float32(1),
        "one": np.int64(1),
        "zero": np.int64(0),
        "period": np.int64(declared.scale["increment_period"]),
    }
    del rule.graph.initializer[:]
    rule.graph.initializer.extend(numpy_helper.from_array(np.asarray(n), name) for name, n in numbers.items())
    rule.opset_import[0].version = numbering.imports(model.proto.opset_import)[""]
    return rule


# ---- steps that keep their old state where gradients are not finite


def number_of(values: Mapping[str, int], name: str) -> int:
    """Return the number of an input or output by its name; DifferentError if there is none."""
    if name not in values:
        raise DifferentError(f"'{name}', which it declares of its loss scale, is not there")
    return values[name]


def flag_of(model: Numbered, declared: Declared) -> int:
    """Return the value that flags finite gradients; DifferentError if there is none."""
    number = number_of(dict(model.outputs), declared.finite or "")
    return _of(model, model.roots[number], "Identity").inputs[0]


def take_out_skips(model: Numbered, declared: Declared, unscaled: Collection[int]) -> dict[int, int]:
    """Return the outputs that keep old state in a skipped step, with their values in other steps.

    Raises DifferentError unless steps are skipped exactly if one of the `unscaled` gradients is not finite,
    and each output keeps its own state.
    """
    if declared.finite is None:
        return {}
    outputs = {name: model.roots[number] for name, number in model.outputs}
    flag = flag_of(model, declared)
    checked = set(_gradients_of(model, flag))
    if checked != set(unscaled):
        raise DifferentError("it does not look at every gradient", (MISSING, flag, ""))
    return dict(_skips(model, declared, outputs, flag))


def _skips(
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
    """Return whether the declared shapes of an input and of an output are compatible."""
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


def _gradients_of(model: Numbered, flag: int) -> Iterator[int]:
    """Yield the values whose elements are all finite where a flag is true.

    A sum of absolute values is finite if all elements are; they are scaled down, so that it cannot overflow.
    """
    flags, sums = [flag], list[int]()
    while flags:
        node = _of(model, flags.pop(), "And", "Less")
        if node.operator[1] == "And":
            flags += node.inputs
            continue
        _refuse_other_number(model, node.inputs[1], np.isposinf)
        total = _of(model, node.inputs[0], "Sum", "ReduceL1")
        sums += total.inputs if total.operator[1] == "Sum" else [total.first]
    for number in sums:
        small = _of(model, _sum_operand(model, number), "Mul")
        _refuse_other_number(model, small.inputs[1], lambda value: 0 < value <= _SMALL)
        yield small.inputs[0]


_SMALL = 2.0**-32
"""The largest factor for elements such that a sum of 2^32 of them is finite."""


def _sum_operand(model: Numbered, number: int) -> int:
    """Return the operand of a sum of all absolute values; DifferentError for a sum over some axes only."""
    node = _of(model, number, "ReduceL1")
    attributes = {name: bound.attribute.i for name, bound in attributes_of(node).items()}
    if len(node.inputs) != 1 or attributes != {"keepdims": 0}:
        raise DifferentError("it does not say whether all of a gradient is finite", (MISSING, number, ""))
    return node.inputs[0]


def _refuse_other_number(model: Numbered, number: int, fits: Any) -> None:
    tensor = model.stored.get(number)
    if not isinstance(tensor, TensorProto) or tensor.dims or not fits(tensors.whole(tensor, model.folder)):
        raise DifferentError("it does not say whether gradients are finite", (MISSING, number, ""))
