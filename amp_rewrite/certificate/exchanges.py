"""Rules by which other nodes of the result may replace a node of the original."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, TensorProto

from amp_rewrite.certificate import rescaling, tensors
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.element_checks import HALVES, Array, exponent_between
from amp_rewrite.certificate.folding import Folded
from amp_rewrite.certificate.node_comparison import differing_attribute, means_same
from amp_rewrite.certificate.numbered import MISSING, Node, attribute_content, attributes_of, without_graphs
from amp_rewrite.certificate.proof import Pair, Proof
from amp_rewrite.certificate.stored_tensors import Held
from amp_rewrite.certificate.value_kinds import CAST, FLOAT
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16

Rule = Callable[[Proof, Node, int], Sequence[Pair]]
"""Returns the pairs that remain to be proved for a node of the original and a value of the result."""


def rule(a: Node, b: Node | None) -> Rule | None:
    """Return the rule for two nodes of different operators; None if there is none."""
    if a.operator in _WHATEVER_STANDS or b is None or a.operator[0] or b.operator[0]:
        return _WHATEVER_STANDS.get(a.operator)
    return _EXCHANGED.get((a.operator[1], b.operator[1]))


# ---- Clip as Max and Min


_LARGEST = float(np.finfo(np.float32).max)
_BOUNDS = (("min", -_LARGEST), ("max", _LARGEST))
"""The attributes of the bounds before opset 11, and the defaults of missing bounds."""


def as_max_and_min(proof: Proof, clip: Node, right: int) -> Sequence[Pair]:
    """Match `Clip(x, low, high)` with `Min(Max(x, low), high)`, for floats."""
    data, *bounds = max_and_min_operands(proof, right)
    if proof.original.kinds[clip.first] != FLOAT:
        raise DifferentError("they are a Clip, and a Max and a Min, of integers")
    pairs: list[Pair] = [(clip.inputs[0], data)]
    for port, right_bound in enumerate(bounds, start=1):
        left_bound = clip.inputs[port] if port < len(clip.inputs) else MISSING
        if left_bound != MISSING:
            bound = proof.rewritten.stored.get(right_bound)
            if not isinstance(bound, TensorProto) or _has_nan(tensors.whole(bound, proof.rewritten.folder)):
                raise DifferentError("a bound may be NaN, which a Clip ignores, and a Max or a Min returns")
            pairs.append((left_bound, right_bound))
        else:
            proof.stored_number(right_bound, np.array(_bound_number(clip, port), np.float32))
    proof.uses[Licence.MAX_AND_MIN] += 1
    return pairs


def max_and_min_operands(proof: Proof, right: int) -> tuple[int, int, int]:
    """Return the operand and the bounds of a Max and a Min of the result; DifferentError for other nodes."""
    below = proof.made(right, "Min")
    above = proof.made(below.inputs[0], "Max") if below.inputs else below
    if len(below.inputs) != _TWO or len(above.inputs) != _TWO:
        raise DifferentError("they are not a Clip, and a Max and a Min")
    return above.inputs[0], above.inputs[1], below.inputs[1]


_TWO = 2


def _has_nan(array: Array) -> bool:
    return bool(np.isnan(array.astype(np.float32)).any())


def _bound_number(clip: Node, port: int) -> float:
    name, missing = _BOUNDS[port - 1]
    bound = attributes_of(clip).get(name)
    return missing if bound is None else bound.attribute.f


# ---- a square as a power of 2


def as_power(proof: Proof, product: Node, right: int) -> Sequence[Pair]:
    """Match `Mul(x, x)` with `Pow(x, 2)`, for floats."""
    power = proof.made(right, "Pow")
    base, factors = power.inputs[0], product.inputs
    if len(factors) != _TWO or factors[0] != factors[1] or proof.original.kinds[product.first] != FLOAT:
        raise DifferentError("they are not a square and a power of 2")
    proof.stored_number(power.inputs[1], np.array(_TWO, np.float32))
    proof.uses[Licence.SQUARE] += 1
    return [(factors[0], base)]


# ---- Reciprocal as a division


def as_division(proof: Proof, node: Node, right: int) -> Sequence[Pair]:
    """Match `Reciprocal(x)` with `1 / x`, which is also rounded once."""
    division = proof.made(right, "Div")
    if len(division.inputs) != 2 or proof.original.kinds[node.first] != FLOAT:
        raise DifferentError("they are not a Reciprocal and a division")
    proof.stored_number(division.inputs[0], np.array(1, np.float32))
    proof.uses[Licence.RECIPROCAL] += 1
    return [(node.inputs[0], division.inputs[1])]


# ---- FusedConv as a Conv, an Add and an activation


_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
"""Activations that onnxruntime fuses, with the attributes that `activation_params` lists, in order."""


def take_conv_apart(proof: Proof, fused: Node, right: int) -> Sequence[Pair]:
    """Match `FusedConv(x, w, b, z)` with `activation(Conv(x, w, b) + z)`."""
    attributes = without_graphs(attributes_of(fused))
    name = attributes["activation"].s.decode(errors="replace") if "activation" in attributes else ""
    if name not in _PARAMETERS:
        raise DifferentError("no activation is known that the node is fused with")
    last = _before_activation(proof, right, name, _floats(attributes))
    residual = fused.inputs[3] if len(fused.inputs) > 3 else MISSING
    pairs: list[Pair] = []
    if residual != MISSING:
        add = proof.made(last, "Add")
        pairs.append((residual, add.inputs[1]))
        last = add.inputs[0]
    conv = proof.made(last, "Conv")
    plain = {name: a for name, a in attributes.items() if not name.startswith("activation")}
    if _contents(plain) != _contents(without_graphs(attributes_of(conv))):
        raise DifferentError("the attributes of the Conv differ")
    inputs = fused.inputs[:3]
    while inputs and inputs[-1] == MISSING:
        inputs = inputs[:-1]
    if len(conv.inputs) != len(inputs) or MISSING in conv.inputs:
        raise DifferentError("the Conv reads other values")
    proof.uses[Licence.FUSED_CONV] += 1
    return [*zip(inputs, conv.inputs, strict=True), *pairs]


def _floats(attributes: Mapping[str, AttributeProto]) -> Sequence[float]:
    return list(attributes["activation_params"].floats) if "activation_params" in attributes else []


def _contents(attributes: Mapping[str, AttributeProto]) -> Mapping[str, object]:
    return {name: attribute_content(attribute) for name, attribute in attributes.items()}


def _before_activation(proof: Proof, right: int, name: str, numbers: Sequence[float]) -> int:
    """Return the operand of a fused node's activation in the result."""
    node = proof.rewritten.makers[right]
    if name == "Clip" and node is not None and node.operator == ("", "Min") and len(numbers) == 2:
        data, low, high = max_and_min_operands(proof, right)
        for value, number in ((low, numbers[0]), (high, numbers[1])):
            proof.stored_number(value, np.array(number, np.float32))
        proof.uses[Licence.MAX_AND_MIN] += 1
        return data
    activation = proof.made(right, name)
    _same_parameters(proof, activation, _PARAMETERS[name], numbers)
    return activation.inputs[0]


def _same_parameters(proof: Proof, node: Node, names: Sequence[str], numbers: Sequence[float]) -> None:
    """Prove that an activation has the parameters of a fused node, as attributes or as inputs."""
    attributes = without_graphs(attributes_of(node))
    parameters = dict(zip(names, numbers, strict=False))
    if len(node.inputs) > 1:
        if len(node.inputs) != 1 + len(parameters) or attributes:
            raise DifferentError("the activation has other parameters")
        for value, number in zip(node.inputs[1:], parameters.values(), strict=True):
            proof.stored_number(value, np.array(number, np.float32))
    elif {name: a.f for name, a in attributes.items()} != {
        n: float(np.float32(v)) for n, v in parameters.items()
    }:
        raise DifferentError("the activation has other parameters")


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
    weight = _product_weight(proof, product)
    view = _view(product, weight)
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
    tensor = proof.rewritten.stored.get(right)
    if not isinstance(tensor, TensorProto) or right == MISSING:
        raise DifferentError("the weights of the product are not stored")
    if tensor.data_type in HALVES:
        proof.to_half(tensor.data_type, None)
    weights = tensors.whole(tensor, proof.rewritten.folder)
    exponent = (exponent_between(exact, weights) if exact.shape == weights.shape else 0) or 0
    exact, size = (np.ldexp(each, -exponent) for each in (exact, np.abs(exact) if size is None else size))
    problem = outside_interval(exact, Held(tensor, proof.rewritten.folder), size)
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


_View = tuple[int, int, int, int]


def _constant(proof: Proof, left: int) -> Array | None:
    """Return a float32 constant of the original, or one that it computes of constants; None for others."""
    if left == MISSING or proof.original.makers[left] is None:
        return proof.array(left)
    try:
        array = Folded(proof).value(left)
    except DifferentError:
        return None
    return array if array.dtype == np.float32 else None


def _product_weight(proof: Proof, product: Node) -> Array:
    weight, data = _constant(proof, product.inputs[1]), product.inputs[0]
    if weight is None:
        raise DifferentError("the weights before a BatchNormalization are not stored")
    if product.operator == ("", "MatMul") and proof.ranks.of(data) != _MATRIX:
        raise DifferentError("the product before a BatchNormalization is not known to be one of matrices")
    return weight


_MATRIX = 2


def _view(product: Node, weight: Array) -> _View:
    """Return the weight's sizes as (groups, inputs, channels of a group, rest); channels are axes 0 and 2."""
    attributes = without_graphs(attributes_of(product))
    dims, name = weight.shape, product.operator[1] if not product.operator[0] else ""
    rest = int(np.prod(dims[2:]))
    if name == "Conv" and len(dims) > 2:
        return (1, 1, dims[0], dims[1] * rest)
    group = _whole_number(attributes, "group", 1)
    if name == "ConvTranspose" and len(dims) > 2 and group > 0 and dims[0] % group == 0:
        return (group, dims[0] // group, dims[1], rest)
    if name == "Gemm" and len(dims) == 2 and ("beta" not in attributes or attributes["beta"].f == 1):
        return (1, 1, *dims) if _whole_number(attributes, "transB", 0) else (1, *dims, 1)
    if name == "MatMul" and len(dims) == 2:
        return (1, *dims, 1)
    raise DifferentError("a BatchNormalization went into another operator")


# ---- constants computed in float32, with a few roundings, and then rounded to half


SLACK = 2.0**-22
"""The relative error that float32 may have: two roundings."""


def outside_interval(exact: Array, rewritten: Held, size: Array) -> str:
    """Return the fault of constants; empty where each lies in the interval of SLACK times `size`, the
    magnitude of the terms of a sum, around the exact number, with both ends rounded alike.
    """
    tensor = rewritten.tensor
    if tensors.dims(tensor) != exact.shape:
        return f"the shape {list(exact.shape)} is {list(tensors.dims(tensor))}"
    if tensor.data_type not in _INTERVAL_FLOATS:
        return "they are no floats"
    values = tensors.whole(tensor, rewritten.folder)
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


_INTERVAL_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


# ---- CastLike whose second input has a type that only the original declares


def follow_unknown_cast(proof: Proof, left: int, node: Node) -> Sequence[Pair]:
    """Return the pairs that remain to be proved for a CastLike that is a Cast or nothing in the original.

    The counterpart of the second input is a guess by name: that the two are equal remains to be proved too.
    """
    original = proof.original
    data, like = node.inputs[:2]
    guess = original.roots[proof.named(proof.rewritten.names[like])]
    kind, cast = original.kinds[guess], original.makers[left]
    is_plain = len(node.inputs) == 2 and node.count == 1 and not len(node.proto.attribute)
    if not is_plain or not isinstance(kind, int) or original.kinds[left] != kind:
        raise DifferentError("it is not known to what type the result casts")
    if cast is not None and cast.operator == CAST and cast.count == len(cast.proto.attribute) == 1:
        return [(cast.inputs[0], data), (guess, like)]
    if kind != FLOAT or proof.rewritten.kinds[data] not in (None, FLOAT):
        raise DifferentError("it is not known to what type the result casts")
    return [(left, data), (guess, like)]


_WHATEVER_STANDS: dict[tuple[str, str], Rule] = {
    ("", "Clip"): as_max_and_min,
    ("", "Reciprocal"): as_division,
    ("", "BatchNormalization"): into_product,
    ("com.microsoft", "FusedConv"): take_conv_apart,
}
"""Rules by the operator of the original alone."""

_EXCHANGED: dict[tuple[str, str], Rule] = {
    ("Mul", "Pow"): as_power,
}
"""Rules by both operators, in the ONNX domain."""
