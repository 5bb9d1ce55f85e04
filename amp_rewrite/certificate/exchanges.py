"""Rules by which other nodes of the result may replace a node of the original."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from onnx import AttributeProto, helper

from amp_rewrite.certificate import rescaling
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.element_checks import HALVES, Array, exponent_between
from amp_rewrite.certificate.folding import Folded
from amp_rewrite.certificate.node_comparison import differing_attribute, means_same
from amp_rewrite.certificate.numbered import MISSING, Node, attribute_content, attributes_of, without_graphs
from amp_rewrite.certificate.proof import Pair, Proof
from amp_rewrite.certificate.value_kinds import FLOAT
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.operators import catalogue
from amp_rewrite.operators.record import Trait

Rule = Callable[[Proof, Node, int], Sequence[Pair]]
"""Returns the pairs that remain to be proved for a node of the original and a value of the result."""


def rule(a: Node, b: Node | None) -> Rule | None:
    """Return the rule for two nodes of different operators; None if there is none."""
    exchange = _EXCHANGES.get(a.operator)
    if exchange is not None:
        return exchange.match if b is not None and b.operator == ("", exchange.form.operator) else None
    return _RULES.get(a.operator)


# ---- forms: the nodes that may stand in the place of another


class ExchangeForm(NamedTuple):
    """A node that computes one value, by its operator, its inputs, and its attributes with their contents.

    An input is a form, a number that the result stores, or a name: of any value, the same wherever it recurs.
    """

    operator: str
    inputs: tuple[ExchangeForm | float | str, ...]
    attributes: Mapping[str, object] = MappingProxyType({})


def bind(proof: Proof, form: ExchangeForm | float | str, right: int, bound: dict[str, int]) -> None:
    """Add the values of the result that names in a form are; DifferentError for a value of another form."""
    if isinstance(form, str):
        if bound.setdefault(form, right) != right:
            raise DifferentError("two values stand for one")
    elif isinstance(form, ExchangeForm):
        node = proof.made(right, form.operator)
        is_same = _contents(without_graphs(attributes_of(node))) == form.attributes
        if not is_same or len(node.inputs) != len(form.inputs):
            raise DifferentError(f"the {form.operator} here has other parameters")
        for each, number in zip(form.inputs, node.inputs, strict=True):
            bind(proof, each, number, bound)
    else:
        proof.stored_number(right, np.array(form, np.float32))


def _contents(attributes: Mapping[str, AttributeProto]) -> Mapping[str, object]:
    return {name: attribute_content(attribute) for name, attribute in attributes.items()}


class Exchange(NamedTuple):
    """The names of a node's operands, and the form that may stand in its place, for floats."""

    operands: str
    form: ExchangeForm
    licence: Licence

    def match(self, proof: Proof, node: Node, right: int) -> Sequence[Pair]:
        """Implement `Rule`."""
        bound, pairs, names = dict[str, int](), list[Pair](), self.operands.split()
        bind(proof, self.form, right, bound)
        if proof.original.kinds[node.first] != FLOAT or len(node.inputs) > len(names):
            raise DifferentError("they are no floats")
        lefts = [*node.inputs, *[MISSING] * (len(names) - len(node.inputs))]
        for name, left in zip(names, lefts, strict=True):
            if left != MISSING:
                pairs.append((left, bound[name]))
            else:
                bind(proof, _missing_bound(node, name), bound[name], bound)
        if self.licence is Licence.MAX_AND_MIN:
            for _, bound_number in pairs[1:]:
                _refuse_nan(proof, bound_number)
        proof.uses[self.licence] += 1
        return pairs


def _missing_bound(clip: Node, name: str) -> float:
    """Return a bound that is no input: an attribute before opset 11, else the largest number."""
    bound = attributes_of(clip).get(name)
    return _MISSING_BOUNDS.get(name, np.nan) if bound is None else bound.attribute.f


_LARGEST = float(np.finfo(np.float32).max)
_MISSING_BOUNDS = {"min": -_LARGEST, "max": _LARGEST}


def _refuse_nan(proof: Proof, right: int) -> None:
    bound = proof.rewritten.array(right)
    if bound is None or np.isnan(bound.astype(np.float32)).any():
        raise DifferentError("a bound may be NaN, which a Clip ignores, and a Max or a Min returns")


_EXCHANGES = {
    ("", "Clip"): Exchange(
        "x min max", ExchangeForm("Min", (ExchangeForm("Max", ("x", "min")), "max")), Licence.MAX_AND_MIN
    ),
    ("", "Reciprocal"): Exchange("x", ExchangeForm("Div", (1.0, "x")), Licence.RECIPROCAL),
    ("", "Mul"): Exchange("x x", ExchangeForm("Pow", ("x", 2.0)), Licence.SQUARE),
}
"""Exchanges by the operator of the original. The power and the quotient are rounded once as well."""


# ---- FusedConv as a Conv, an Add and an activation


def take_conv_apart(proof: Proof, fused: Node, right: int) -> Sequence[Pair]:
    """Match `FusedConv(x, w, b, z)` with `activation(Conv(x, w, b) + z)`."""
    attributes = without_graphs(attributes_of(fused))
    name = attributes["activation"].s.decode(errors="replace") if "activation" in attributes else ""
    names = catalogue.find("", name).activation
    if names is None:
        raise DifferentError("no activation is known that the node is fused with")
    plain = {name: a for name, a in attributes.items() if not name.startswith("activation")}
    operands = {name: n for name, n in zip("xwbz", fused.inputs, strict=False) if n != MISSING}
    form = ExchangeForm("Conv", tuple(each for each in operands if each != "z"), _contents(plain))
    form = ExchangeForm("Add", (form, "z")) if "z" in operands else form
    numbers = list(attributes["activation_params"].floats) if "activation_params" in attributes else []
    parameters = dict(zip(names, numbers, strict=False))
    last, bound = proof.rewritten.makers[right], dict[str, int]()
    if name == "Clip" and len(parameters) == _TWO and last is not None and last.operator == ("", "Min"):
        form = ExchangeForm("Min", (ExchangeForm("Max", (form, parameters["min"])), parameters["max"]))
        proof.uses[Licence.MAX_AND_MIN] += 1
    elif last is not None and len(last.inputs) > 1:
        form = ExchangeForm(name, (form, *parameters.values()))
    else:
        stated = {each: helper.make_attribute(each, number) for each, number in parameters.items()}
        form = ExchangeForm(name, (form,), _contents(stated))
    bind(proof, form, right, bound)
    proof.uses[Licence.FUSED_CONV] += 1
    return [(left, bound[name]) for name, left in operands.items()]


_TWO = 2


# ---- a BatchNormalization folded into the weights of the preceding product:
#
#     scale * (W x + b - mean) / sqrt(variance + epsilon) + shift  =  (a W) x + (a (b - mean) + shift)
#
# with a = scale / sqrt(variance + epsilon) per output channel. The numbers are recomputed in float64.


_WITHOUT_TEST_MODE = 7
_EPSILON = float(np.float32(1e-5))
_NO_NORM = "they are not a BatchNormalization and a product with its weights"


@dataclass(frozen=True, slots=True)
class _Norm:
    factor: Array
    mean: Array
    shift: Array


def into_product(proof: Proof, norm: Node, right: int) -> Sequence[Pair]:
    """Prove the weights and the bias of a product with BatchNormalizations folded in; its data remains."""
    norms, product, after = [norm], proof.original.makers[norm.inputs[0]], proof.rewritten.makers[right]
    while product is not None and product.operator == norm.operator and product.version == norm.version:
        norms.append(product)
        product = proof.original.makers[product.inputs[0]]
    product, addend = _without_bias(proof, product)
    if product is None or after is None or len(product.inputs) < 2:
        raise DifferentError(_NO_NORM)
    if product.operator == ("", "MatMul") and after.operator == ("", "Add"):
        data, shift = proof.made(right, "Add").inputs
        new_product = proof.made(data, "MatMul")
    elif product.operator == after.operator and len(after.inputs) == 3:
        shift, new_product = after.inputs[2], after
    else:
        raise DifferentError(_NO_NORM)
    is_same = new_product.version == product.version or means_same(
        product, new_product.version, proof.ranks.of
    )
    if (
        not is_same
        or len(new_product.inputs) < 2
        or differing_attribute(proof, product, new_product) is not None
    ):
        raise DifferentError("the product is another")
    weight, view = _weight(proof, product)
    channels = view[0] * view[2]
    bias = _vector(proof, product.inputs[2], channels) if len(product.inputs) > 2 else np.zeros(channels)
    bias = bias if addend is None else bias + _channelwise(addend, weight, channels)
    new_weight, size = weight.reshape(view).astype(np.float64), np.abs(bias)
    for each in reversed(norms):
        folded = _norm_parameters(proof, each, channels)
        new_weight = new_weight * folded.factor.reshape(view[0], 1, view[2], 1)
        bias = folded.factor * (bias - folded.mean) + folded.shift
        size = np.abs(folded.factor) * (size + np.abs(folded.mean)) + np.abs(folded.shift)
    _check_weights(proof, new_product.inputs[1], new_weight.reshape(weight.shape))
    _check_weights(proof, shift, bias, size)
    proof.uses[Licence.MERGED] += len(norms)
    return [(product.inputs[0], new_product.inputs[0])]


def _without_bias(proof: Proof, node: Node | None) -> tuple[Node | None, Array | None]:
    """Return a product, and the constant added to it before normalisation, if any."""
    if node is not None and node.operator == ("", "Add") and not node.proto.attribute:
        for port, value in enumerate(node.inputs):
            product, addend = proof.original.makers[node.inputs[1 - port]], _constant(proof, value)
            if product is not None and addend is not None:
                return product, addend
    return node, None


def _channelwise(addend: Array, weight: Array, channels: int) -> Array:
    """Return a constant addend per channel; channels are the second axis of the output."""
    axes = [1] * weight.ndim
    axes[1] = channels
    if [1] * (weight.ndim - addend.ndim) + list(addend.shape) != axes:
        raise DifferentError("what is added before a BatchNormalization is not stored for each channel")
    return addend.reshape(-1).astype(np.float64)


def _check_weights(proof: Proof, right: int, exact: Array, size: Array | None = None) -> None:
    weights = proof.rewritten.array(right)
    if weights is None:
        raise DifferentError("the weights of the product are not stored")
    if (element := int(helper.np_dtype_to_tensor_dtype(weights.dtype))) in HALVES:
        proof.to_half(element, None)
    exponent = (exponent_between(exact, weights) if exact.shape == weights.shape else 0) or 0
    exact, size = (np.ldexp(each, -exponent) for each in (exact, np.abs(exact) if size is None else size))
    problem = outside_interval(exact, weights, size)
    if problem:
        raise DifferentError(f"the weights that a BatchNormalization went into: {problem}")
    rescaling.record(proof.changes.tensors, right, exponent)
    proof.uses[Licence.OVERFLOWED] += int((np.isinf(weights.astype(np.float32)) & np.isfinite(exact)).sum())


def _norm_parameters(proof: Proof, norm: Node, channels: int) -> _Norm:
    attributes = without_graphs(attributes_of(norm))
    trains = (
        norm.count != 1
        or _whole_number(attributes, "training_mode", 0)
        or not _whole_number(attributes, "spatial", 1)
    )
    if trains or norm.version < _WITHOUT_TEST_MODE or len(norm.inputs) != 5:
        raise DifferentError("a BatchNormalization that trains went into a product")
    scale, shift, mean, variance = (_vector(proof, value, channels) for value in norm.inputs[1:])
    epsilon = attributes["epsilon"].f if "epsilon" in attributes else _EPSILON
    with np.errstate(all="ignore"):
        return _Norm(scale / np.sqrt(variance + epsilon), mean, shift)


def _whole_number(attributes: Mapping[str, AttributeProto], name: str, default: int) -> int:
    return attributes[name].i if name in attributes else default


def _vector(proof: Proof, left: int, channels: int) -> Array:
    array = _constant(proof, left)
    if array is None or array.shape not in ((channels,), (1, channels)):
        raise DifferentError("what a BatchNormalization computes with is not stored for each channel")
    return array.reshape(-1).astype(np.float64)


def _constant(proof: Proof, left: int) -> Array | None:
    """Return a float32 constant of the original, or one that it computes of constants; None for others."""
    if left == MISSING or proof.original.makers[left] is None:
        array = proof.original.array(left)
    else:
        try:
            array = Folded(proof).value(left)
        except DifferentError:
            return None
    return array if array is not None and array.dtype == np.float32 else None


def _weight(proof: Proof, product: Node) -> tuple[Array, tuple[int, int, int, int]]:
    """Return the weight of a product, and its sizes as (groups, inputs, channels of a group, rest)."""
    weight, attributes = _constant(proof, product.inputs[1]), without_graphs(attributes_of(product))
    if weight is None:
        raise DifferentError("the weights before a BatchNormalization are not stored")
    record, dims = catalogue.find(*product.operator), weight.shape
    is_known = not product.operator[0] and record.channel is not None
    is_known &= "beta" not in attributes or attributes["beta"].f == 1
    is_known &= (weight.ndim > _MATRIX) if record.traits & Trait.RANKED else weight.ndim == _MATRIX
    group = _whole_number(attributes, "group", 1) if product.operator == ("", "ConvTranspose") else 1
    if not is_known or group < 1 or dims[0] % group:
        raise DifferentError("a BatchNormalization went into another operator")
    if product.operator == ("", "MatMul") and proof.ranks.of(product.inputs[0]) != _MATRIX:
        raise DifferentError("the product before a BatchNormalization is not known to be one of matrices")
    if record.channel == 0 or _whole_number(attributes, "transB", 0):
        return weight, (1, 1, dims[0], int(np.prod(dims[1:])))
    return weight, (group, dims[0] // group, dims[1], int(np.prod(dims[2:])))


_MATRIX = 2


# ---- constants computed in float32, with a few roundings, and then rounded to half


SLACK = 2.0**-22
"""The relative error that float32 may have: two roundings."""


def outside_interval(exact: Array, values: Array, size: Array) -> str:
    """Return the fault of constants; empty where each lies in the interval of SLACK times `size`, the
    magnitude of the terms of a sum, around the exact number, with both ends rounded alike.
    """
    if values.shape != exact.shape:
        return f"the shape {list(exact.shape)} is {list(values.shape)}"
    if values.dtype not in (np.float32, FLOAT16.numpy, BFLOAT16.numpy):
        return "they are no floats"
    around = SLACK * np.abs(size)
    wrong = _outside(exact, around, values)
    if not wrong.any() or any(not _outside(exact, around, halves).any() for halves in _as_halves(values)):
        return ""
    place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return f"element {tuple(map(int, place))} should be {exact[place]:.6g}, and is {float(values[place]):.6g}"


def _outside(exact: Array, around: Array, values: Array) -> Array:
    with np.errstate(all="ignore"):
        low, high = ((exact + by).astype(np.float32).astype(values.dtype) for by in (-around, around))
        inside = (low <= values) & (values <= high)
    return ~(inside | (np.isnan(exact) & np.isnan(values.astype(np.float32))))


def _as_halves(values: Array) -> Iterator[Array]:
    """Yield float32 numbers in each half type that represents all of them, as it may have rounded them."""
    for half in (FLOAT16, BFLOAT16) if values.dtype == np.float32 else ():
        with np.errstate(all="ignore"):
            halves = values.astype(half.numpy)
        if np.array_equal(halves.astype(np.float32), values, equal_nan=True):
            yield halves


_RULES: Mapping[tuple[str, str], Rule] = {
    ("", "BatchNormalization"): into_product,
    ("com.microsoft", "FusedConv"): take_conv_apart,
}
"""Rules by the operator of the original, whatever stands in the result."""
