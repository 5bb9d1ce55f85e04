"""Licence for constant folding: folded values are recomputed, within limits on memory and work."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Collection, Mapping, Sequence
from math import isqrt, prod
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from amp_rewrite.certificate import tensors, value_kinds
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.element_checks import Array
from amp_rewrite.certificate.numbered import MISSING, Node, attributes_of, without_graphs
from amp_rewrite.certificate.proof import Proof
from amp_rewrite.certificate.value_kinds import BIT_CAST, find_signature
from amp_rewrite.operators.catalogue import find
from amp_rewrite.operators.record import Role, Trait
from amp_rewrite.process import worker

MOST = 1 << 28
"""The most bytes of constants that a computation may read."""

_FRACTIONS = frozenset((value_kinds.FLOAT, int(TensorProto.DOUBLE)))


_Folding = tuple[int, int, str]
"""A value of the original, the constant of the result, and the output that depends on them."""


class Folded:
    """The folded values of a proof, which are recomputed together at its end."""

    def __init__(self, proof: Proof) -> None:
        self._proof = proof
        self._pairs: list[_Folding] = []
        self._nodes: dict[int, Node] = {}
        self._leaves: set[int] = set()
        self._bytes = 0

    def add(self, left: int, right: int, output: str) -> None:
        """Add a computed value that the result stores; DifferentError unless it is a constant expression."""
        self._proof.same_kind(left, right)
        self._refuse_varying(left)
        self._pairs.append((left, right, output))

    def value(self, left: int) -> Array:
        """Return a computed value of the original; DifferentError unless it is a constant expression."""
        self._refuse_varying(left)
        return compute_outputs(self._model([left], casts=False))[0]

    def _refuse_varying(self, left: int) -> None:
        waiting = [left]
        while waiting:
            number = waiting.pop()
            node = self._proof.original.makers[number]
            if number == MISSING or number in self._leaves:
                continue
            if node is None:
                self._leaf(number)
            elif node.first not in self._nodes:
                self._nodes[node.first] = self._allowed(node)
                waiting.extend(node.inputs)

    def _leaf(self, number: int) -> None:
        tensor = self._proof.original.stored.get(number)
        if not isinstance(tensor, TensorProto) or tensor.data_type == TensorProto.STRING:
            raise DifferentError("the result stores what the original computes from its inputs")
        self._bytes += 4 * prod(tensors.dims(tensor))
        if self._bytes > MOST:
            raise DifferentError("the result stores what the original computes from very large values")
        self._leaves.add(number)

    def _allowed(self, node: Node) -> Node:
        is_known = find_signature(*node.operator, node.version) is not None
        is_random = find(*node.operator).traits & Trait.DRAWS
        if node.operator[0] or is_random or node.operator == BIT_CAST or node.bodies or not is_known:
            raise DifferentError(
                "the result stores what the original computes with more than plain operators"
            )
        if node.operator in (("", "Div"), ("", "Mod")) and self._may_trap(node):
            raise DifferentError("the result stores quotients of integers that are not known to be any")
        return node

    def _may_trap(self, division: Node) -> bool:
        """Return whether a processor may trap, on an integer division by 0 or of the smallest by -1."""
        original = self._proof.original
        if original.kinds[division.first] in _FRACTIONS:
            return False
        divisor = original.array(division.inputs[1], MOST // 4)
        return divisor is None or bool(np.isin(divisor, (0, -1)).any())

    def prove(self) -> None:
        """Recompute all added values and compare them; raises DifferentError.

        A value may match with the Casts of the original, which round as the original does, or without them.
        """
        differences = self._differing(self._pairs, casts=True) if self._pairs else {}
        for error in self._differing(differences, casts=False).values() if differences else ():
            raise error

    def _differing(self, pairs: Collection[_Folding], *, casts: bool) -> Mapping[_Folding, DifferentError]:
        """Return the pairs that differ from the recomputed values; count the others."""
        numbers, differences = (
            [*dict.fromkeys(left for left, _, _ in pairs)],
            dict[_Folding, DifferentError](),
        )
        try:
            arrays = dict(zip(numbers, compute_outputs(self._model(numbers, casts)), strict=True))
        except DifferentError as error:
            return dict.fromkeys(pairs, error)
        for left, right, output in pairs:
            stored = self._proof.rewritten.stored[right]
            comparison = self._proof.compare(numpy_helper.from_array(arrays[left]), stored)
            if comparison.problem:
                place = (left, right, output)
                differences[place] = DifferentError(f"computed anew, {comparison.problem}", place)
                continue
            self._proof.count(comparison, (left, right))
            self._proof.uses[Licence.FOLDED] += 1
        return differences

    def _model(self, targets: Sequence[int], casts: bool) -> ModelProto:
        """Return a model that computes values of the original, in float32 where its Casts are omitted."""
        original, graph = self._proof.original, GraphProto(name="folded")
        visits, versions, waiting = set[int](), set[int](), [(number, False) for number in targets]
        while waiting:
            number, has_inputs = waiting.pop()
            node = original.makers[number]
            first = number if node is None else node.first
            if has_inputs and node is not None:
                graph.node.append(_rename_values(node, original.read(node) if casts else node.inputs))
                versions.add(node.version)
            elif first not in visits and number != MISSING:
                visits.add(first)
                if node is None:
                    graph.initializer.append(self._stored(number, casts))
                else:
                    operands = original.read(node) if casts else node.inputs
                    waiting += ((first, True), *((each, False) for each in operands))
        graph.output.extend(helper.make_empty_tensor_value_info(f"v{number}") for number in targets)
        if len(versions) > 1:
            raise DifferentError("the result stores what operators of several versions compute")
        opset = helper.make_opsetid("", versions.pop())
        return helper.make_model(graph, opset_imports=[opset], ir_version=max(original.proto.ir_version, _IR))

    def _stored(self, number: int, casts: bool) -> TensorProto:
        """Return a constant, widened from half to float32 where the Casts in between are omitted."""
        original = self._proof.original
        array = tensors.whole(original.stored[number], original.folder)
        is_half = original.kinds[number] == value_kinds.FLOAT and not casts
        return numpy_helper.from_array(array.astype("f4") if is_half else array, f"v{number}")


_IR = 8
"""The minimum IR version of a model that is computed."""


def _rename_values(node: Node, operands: Sequence[int]) -> NodeProto:
    attributes = without_graphs(attributes_of(node))
    proto = NodeProto(op_type=node.operator[1])
    proto.input.extend(f"v{number}" if number != MISSING else "" for number in operands)
    proto.output.extend(f"v{node.first + port}" for port in range(node.count))
    for name, attribute in attributes.items():
        copy = AttributeProto()
        copy.CopyFrom(attribute)
        copy.ClearField("ref_attr_name")
        copy.MergeFrom(AttributeProto(name=name))
        proto.attribute.append(copy)
    return proto


# ---- the cost of recomputing folded values: a few small ones may be expanded to any size


MOST_ELEMENTS = 1 << 26
"""The most elements of all values that are computed for one model."""

MOST_WORK = 1 << 36
"""The most products and sums for one model: some seconds."""


def refuse_costly(model: ModelProto) -> None:
    """Raise DifferentError for a model whose computation would take too much time or memory.

    Its inputs are constants without their data.
    """
    graph = worker.infer(model) or GraphProto()
    computed = {info.name: _elements(info) for info in (*graph.input, *graph.value_info, *graph.output)}
    if any(name not in computed for node in model.graph.node for name in node.output if name):
        raise DifferentError(_UNKNOWN_SIZES)
    sizes = {tensor.name: prod(tensor.dims) for tensor in graph.initializer} | computed
    products = (node.input for node in graph.node if node.op_type == "Einsum" and len(node.input) > _TWO)
    between = sum(prod(sizes.get(name, 0) for name in factors) for factors in products)
    work = sum(_work(node, sizes) for node in graph.node)
    if sum(computed.values()) + between > MOST_ELEMENTS or work > MOST_WORK:
        raise DifferentError("what is folded is too large to compute anew")


_UNKNOWN_SIZES = "the sizes of what is folded are not known"
_TWO = 2


def _elements(info: ValueInfoProto) -> int:
    kind = info.type.tensor_type
    if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        raise DifferentError(_UNKNOWN_SIZES)
    return prod(dim.dim_value for dim in kind.shape.dim)


def _work(node: NodeProto, sizes: Mapping[str, int]) -> int:
    """Return the products and sums of a node: unless its operator is one of matrices, it may read all
    elements of an input for each of its output.
    """
    inputs = [sizes.get(name, 0) for name in node.input]
    output, record = sum(sizes.get(name, 0) for name in node.output), find(node.domain, node.op_type)
    is_of_matrices = record.traits & Trait.MULTIPLIES and not record.traits & _OTHER_PRODUCTS
    if is_of_matrices and len(inputs) > 1:
        products = isqrt(inputs[0] * inputs[1] * output)  # of MK, KN and MN elements
        return max(products, *inputs)
    may_read_all = not isinstance(record.flops, int) or record.ports(Role.COORDINATES, Role.SCALE)
    is_local = record.traits & Trait.INTERPOLATES
    return output * max(inputs, default=0) if may_read_all and not is_local else output


_OTHER_PRODUCTS = Trait.RANKED | Trait.RECURRENT | Trait.SOFTMAX
"""Convolutions, recurrent layers and attention."""


# ---- computation node by node, as a runtime folds in float32


def compute_outputs(model: ModelProto) -> Sequence[Array]:
    """Return the outputs of a model without inputs, in order; DifferentError if they cannot be computed."""
    refuse_costly(model)
    try:
        run = _by_runtime if importlib.util.find_spec("onnxruntime") else _by_reference
        return run(model)
    except Exception as error:  # either raises errors of many kinds
        raise DifferentError("what is stored in place of a computed value cannot be computed anew") from error


def _by_runtime(model: ModelProto) -> Sequence[Array]:
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal errors only
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {})


def _by_reference(model: ModelProto) -> Sequence[Array]:
    reference: Any = importlib.import_module("onnx.reference")
    return reference.ReferenceEvaluator(model).run(None, {})
