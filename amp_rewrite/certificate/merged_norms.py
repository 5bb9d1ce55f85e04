"""Licence: a BatchNormalization in the weights of the product before it.

    scale * (W x + b - mean) / sqrt(variance + epsilon) + shift  =  (a W) x + (a (b - mean) + shift)

with a = scale / sqrt(variance + epsilon) for each output channel. The numbers are computed anew in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, TensorProto

from amp_rewrite.certificate import attributes, intervals, tensors, versions
from amp_rewrite.certificate.attribute_comparison import differing
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.element_checks import HALVES, Array
from amp_rewrite.certificate.numbered import MISSING, Node
from amp_rewrite.certificate.pairs import Pair, Proof
from amp_rewrite.certificate.stored_values import Held

_WITHOUT_TEST_MODE = 7
_EPSILON = float(np.float32(1e-5))
_NO_NORM = "they are not a BatchNormalization and a product with its weights"


@dataclass(frozen=True, slots=True)
class _Norm:
    factor: Array
    mean: Array
    shift: Array


def into_product(proof: Proof, norm: Node, right: int) -> Sequence[Pair]:
    """The data of the product is left to prove; its weights and its bias are proved here."""
    product, after = proof.original.makers[norm.inputs[0]], proof.rewritten.makers[right]
    product, added = _without_bias(proof, product)
    if product is None or after is None or len(product.inputs) < 2:
        raise DifferentError(_NO_NORM)
    if product.operator == ("", "MatMul") and after.operator == ("", "Add"):
        data, shift = proof.made(right, "Add").inputs
        made = proof.made(data, "MatMul")
    elif product.operator == after.operator and len(after.inputs) == 3:
        shift, made = after.inputs[2], after
    else:
        raise DifferentError(_NO_NORM)
    is_same = made.version == product.version or versions.same(product, made.version, proof.ranks.of)
    if not is_same or len(made.inputs) < 2 or differing(proof, product, made) is not None:
        raise DifferentError("the product is another")
    weight = _weight(proof, product)
    view = _view(product, weight)
    channels = view[0] * view[2]
    read = _read(proof, norm, channels)
    bias = _vector(proof, product.inputs[2], channels) if len(product.inputs) > 2 else np.zeros(channels)
    bias = bias if added is None else bias + _channelwise(added, weight, channels)
    scaled = weight.reshape(view).astype(np.float64) * read.factor.reshape(view[0], 1, view[2], 1)
    _same(proof, made.inputs[1], scaled.reshape(weight.shape))
    _same(
        proof,
        shift,
        read.factor * (bias - read.mean) + read.shift,
        np.abs(read.factor * bias) + np.abs(read.factor * read.mean) + np.abs(read.shift),
    )
    proof.uses[Licence.MERGED] += 1
    return [(product.inputs[0], made.inputs[0])]


def _without_bias(proof: Proof, node: Node | None) -> tuple[Node | None, Array | None]:
    """A product, and what is stored and added to it before it is normalised."""
    if node is not None and node.operator == ("", "Add") and not node.proto.attribute:
        for port, value in enumerate(node.inputs):
            product, added = proof.original.makers[node.inputs[1 - port]], proof.array(value)
            if product is not None and added is not None:
                return product, added
    return node, None


def _channelwise(added: Array, weight: Array, channels: int) -> Array:
    """What is added to each channel, which is the second axis of all or of two."""
    axes = [1] * weight.ndim
    axes[1] = channels
    if [1] * (weight.ndim - added.ndim) + list(added.shape) != axes:
        raise DifferentError("what is added before a BatchNormalization is not stored for each channel")
    return added.reshape(-1).astype(np.float64)


def _same(proof: Proof, right: int, exact: Array, size: Array | None = None) -> None:
    tensor = proof.rewritten.stored.get(right)
    if not isinstance(tensor, TensorProto) or right == MISSING:
        raise DifferentError("the weights of the product are not stored")
    if tensor.data_type in HALVES:
        proof.to_half(tensor.data_type, None)
    problem = intervals.differs(exact, Held(tensor, proof.rewritten.folder), size)
    if problem:
        raise DifferentError(f"the weights that a BatchNormalization went into: {problem}")
    found = tensors.whole(tensor, proof.rewritten.folder)
    proof.uses[Licence.OVERFLOWED] += int((np.isinf(found.astype(np.float32)) & np.isfinite(exact)).sum())


def _read(proof: Proof, norm: Node, channels: int) -> _Norm:
    given = attributes.plain(attributes.of(norm))
    trains = norm.count != 1 or _whole(given, "training_mode", 0) or not _whole(given, "spatial", 1)
    if trains or norm.version < _WITHOUT_TEST_MODE or len(norm.inputs) != 5:
        raise DifferentError("a BatchNormalization that trains went into a product")
    scale, shift, mean, variance = (_vector(proof, value, channels) for value in norm.inputs[1:])
    epsilon = given["epsilon"].f if "epsilon" in given else _EPSILON
    with np.errstate(all="ignore"):
        return _Norm(scale / np.sqrt(variance + epsilon), mean, shift)


def _whole(given: Mapping[str, AttributeProto], name: str, default: int) -> int:
    return given[name].i if name in given else default


def _vector(proof: Proof, left: int, channels: int) -> Array:
    array = proof.array(left)
    if array is None or array.shape not in ((channels,), (1, channels)):
        raise DifferentError("what a BatchNormalization computes with is not stored for each channel")
    return array.reshape(-1).astype(np.float64)


_View = tuple[int, int, int, int]


def _weight(proof: Proof, product: Node) -> Array:
    weight, data = proof.array(product.inputs[1]), product.inputs[0]
    if weight is None:
        raise DifferentError("the weights before a BatchNormalization are not stored")
    if product.operator == ("", "MatMul") and proof.ranks.of(data) != _MATRIX:
        raise DifferentError("the product before a BatchNormalization is not known to be one of matrices")
    return weight


_MATRIX = 2


def _view(product: Node, weight: Array) -> _View:
    """The weight as (groups, inputs, channels of a group, rest): the first and third are the channels."""
    given = attributes.plain(attributes.of(product))
    dims, name = weight.shape, product.operator[1] if not product.operator[0] else ""
    rest = int(np.prod(dims[2:]))
    if name == "Conv" and len(dims) > 2:
        return (1, 1, dims[0], dims[1] * rest)
    group = _whole(given, "group", 1)
    if name == "ConvTranspose" and len(dims) > 2 and group > 0 and dims[0] % group == 0:
        return (group, dims[0] // group, dims[1], rest)
    if name == "Gemm" and len(dims) == 2 and ("beta" not in given or given["beta"].f == 1):
        return (1, 1, *dims) if _whole(given, "transB", 0) else (1, *dims, 1)
    if name == "MatMul" and len(dims) == 2:
        return (1, *dims, 1)
    raise DifferentError("a BatchNormalization went into another operator")
