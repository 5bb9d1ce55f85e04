"""Proof that a result equals the original up to precision: `certify`.

It goes pair by pair of values from the outputs of the two models to their inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from onnx import ModelProto, TensorProto, TypeProto

from amp_rewrite.certificate import exchanges, numbering, rescaling, value_kinds
from amp_rewrite.certificate.certificate import Certificate, DifferentError, Licence, Place
from amp_rewrite.certificate.folding import Folded
from amp_rewrite.certificate.node_comparison import (
    differing_attribute,
    means_same,
    refuse_other_types,
    refuse_undeclared_types,
)
from amp_rewrite.certificate.numbered import (
    MISSING,
    Node,
    Numbered,
    attributes_of,
    fixed_inputs,
    is_plain_cast,
)
from amp_rewrite.certificate.numbering import canonical_domain, functions_of, inlined_size
from amp_rewrite.certificate.proof import Pair, Proof
from amp_rewrite.certificate.shapes import Declared, declared_shapes, refuse_other_shapes, sizes_of
from amp_rewrite.certificate.tensors import Folder, Source, read_model
from amp_rewrite.certificate.value_kinds import FLOAT, Kind
from amp_rewrite.errors import EXPORT_AGAIN, ModelError, OptionError
from amp_rewrite.operators import declared_types
from amp_rewrite.operators.catalogue import having
from amp_rewrite.operators.declared_types import OpTypes
from amp_rewrite.operators.record import Trait
from amp_rewrite.process import startup

_MOST_NODES = 1 << 20
"""The most nodes that a model may have once its functions are inlined."""


def certify(original: Source, rewritten: Source, *, op_types: Mapping[str, str] | None = None) -> Certificate:
    """Return the proof that `rewritten` equals `original` up to precision, or the first difference.

    Both are paths, bytes, or ModelProtos. They may differ only in Casts between float32, float16 and
    bfloat16, in constants rounded to half, and as Licence permits. `op_types` declares the types of custom
    operators (Options), beside what the original records in its metadata; the result declares nothing.
    Without that, they read the same types in both. Raises ModelError for an invalid model, and OptionError
    for an invalid declaration.

    Examples:
        >>> from amp_rewrite import certify, rewrite
        >>> from amp_rewrite.demo import network
        >>> certify(network(), rewrite(network()).model).proved
        True
        >>> certify(network(), network(seed=1)).problem
        'element 0 was -0.16635707020759583, and is 0.07106806337833405'
    """
    with startup.paused():
        models = read_model(original), read_model(rewritten)
        metadata = {each.key: each.value for each in models[0][0].metadata_props}
        texts = {**declared_types.recorded(metadata, value_kinds.is_operator), **(op_types or {})}
        try:
            declared = declared_types.by_operator(texts)
        except ValueError as error:
            raise OptionError(str(error)) from error
        fixed = [fixed_inputs(model, models[1][0]) for model, *_ in models]
        before = _numbered(*models[0], declared, fixed[0])
        after = _numbered(*models[1], declared, fixed[1], believed=False)
        if _LOSS_SCALE not in metadata and any(p.key == _LOSS_SCALE for p in after.proto.metadata_props):
            return Certificate(False, 0, problem=_ADDS_A_SCALE)
        proving = Proving(before, after)
        proving.uses[Licence.DEFAULT] = len(fixed[0] - fixed_inputs(models[0][0], models[0][0]))
        return proving.run()


_LOSS_SCALE = "amp_rewrite.train.loss_scale"
_ADDS_A_SCALE = (
    "it has a loss scale, and the original has none: compare it with the original with the same scale in "
    "float32, which `training.insert_loss_scale` writes"
)


def _numbered(
    model: ModelProto,
    folder: Folder | None,
    where: str,
    declared: OpTypes,
    fixed: frozenset[str],
    *,
    believed: bool = True,
) -> Numbered:
    """Number the values of a model; errors name its source, `where`."""
    try:
        functions = functions_of(model)
        if functions and inlined_size(model, functions) > _MOST_NODES:
            problem = f"would have more than {_MOST_NODES:,} nodes with its functions taken apart"
            raise ModelError(problem, remedy="give a smaller model")
        result = numbering.number(
            Numbered(model, folder, declared, fixed=fixed), functions, believed=believed
        )
        assumed = result.unknown_outputs() if believed else None
        if not assumed:
            return result
        return numbering.number(Numbered(model, folder, declared, assumed, fixed=fixed), functions)
    except ModelError as error:
        raise ModelError(error.problem, where=error.where or where, remedy=error.remedy) from error
    except RecursionError as error:
        raise ModelError("nests bodies or calls too deeply", where=where, remedy=EXPORT_AGAIN) from error


# ---- the proof


_PRODUCT = ("", "Mul")
_DRAWS = having(Trait.DRAWS)

_PAIRS = 16
"""The most pairs followed per value: a result has about as many values as the original."""


class Proving(Proof):
    """The proof for two numbered models; raises ModelError for constants that cannot be read."""

    def __init__(self, original: Numbered, rewritten: Numbered) -> None:
        super().__init__(original, rewritten)
        self._stack: list[tuple[int, int, str]] = []
        self._seen: set[Pair] = set()
        self._nodes: set[Pair] = set()
        self._compared = 0
        self._partner: dict[tuple[bool, int], int] = {}
        self._repeated: set[Pair | None] = set()
        self._most = _PAIRS * (len(original.roots) + len(rewritten.roots))
        self._folded = Folded(self)

    def run(self) -> Certificate:
        """Prove the outputs equal, or return the first difference."""
        a, b = self.original, self.rewritten
        at = (MISSING, MISSING, "")
        try:
            for pair in compare_borders(self):
                self.assume(*pair)
            for (name, left), (_, right) in reversed([*zip(a.outputs, b.outputs, strict=True)]):
                self._stack.append((a.roots[left], b.roots[right], name))
            while self._stack:
                at = self._stack.pop()
                self._step(*at)
            at = (MISSING, MISSING, "")
            self._folded.prove()
            self.uses[Licence.RESCALED] = rescaling.prove(b, self.changes)
            refuse_other_shapes(a, b, [*self._declared()])
        except DifferentError as difference:
            return self._failed(difference, at)
        return Certificate(True, self._compared, self._uses())

    def _declared(self) -> Iterator[Declared]:
        """Yield the result's declarations of values that are compared, or that replace a node."""
        roots, equal = self.rewritten.roots, {right: left for left, right in self._seen}
        for info, number in declared_shapes(self.rewritten):
            left = equal.get(roots[number], MISSING)
            if number not in self.rewritten.stored and (left or self.rewritten.makers[number] is not None):
                yield info, left, number

    def _failed(self, difference: DifferentError, at: tuple[int, int, str]) -> Certificate:
        left, right, name = difference.at or at
        name = name or at[2]
        left = left or next((one for one, other in self._seen if other == right), MISSING)
        place = Place(name, self.original.describe(left), self.rewritten.describe(right))
        place = place if left != MISSING or right != MISSING else None
        return Certificate(False, self._compared, self._uses(), difference.problem, place)

    def assume(self, left: int, right: int) -> None:
        """Assume two values equal: inputs of the models, or of two bodies."""
        self._seen.add((left, right))
        self.same_kind(left, right)

    def _uses(self) -> dict[Licence, int]:
        self.uses[Licence.INLINED] = max(self.original.calls - self.rewritten.calls, 0)
        return {licence: self.uses[licence] for licence in Licence if self.uses[licence]}

    def _step(self, left: int, right: int, output: str) -> None:
        pair, visits = (left, right), self._seen
        if pair in visits:
            return
        visits.add(pair)
        if len(visits) > self._most:
            raise DifferentError("they share so many values that they are not followed further")
        a, b = self.original, self.rewritten
        first, second = a.makers[left], b.makers[right]
        if self._pair(first, second, left, right, output):
            return
        if right in b.stored:
            self._stored(left, right, output)
        elif a.kinds[left] == FLOAT and second is not None and self._is_float_cast(second):
            self._push([(left, second.inputs[0])], output)
        elif first is not None and (rule := exchanges.rule(first, second)) is not None:
            self._push(rule(self, first, right), output)
        else:
            raise DifferentError("the two are not the same")

    def _is_float_cast(self, node: Node) -> bool:
        """Return whether a node casts to a float a value that only the original shows to be a float."""
        if node.operator != ("", "Cast") or node.count != 1 or len(node.inputs) != 1:
            return False
        target = attributes_of(node).get("to")
        element = 0 if target is None else value_kinds.stated_element(target.attribute)
        is_cast = value_kinds.of_element(element) == FLOAT and is_plain_cast(node)
        return is_cast and self.rewritten.kinds[node.inputs[0]] in (None, FLOAT)

    def _pair(self, a: Node | None, b: Node | None, left: int, right: int, output: str) -> bool:
        """Compare two nodes of one operator, or follow an additional Mul; return False for any others."""
        if b is not None and b.operator == _PRODUCT:
            factor = self.changes.follow_product(self.original, self.rewritten, left, right)
            if factor != MISSING:
                self._push([(left, factor)], output)
                return True
        if a is None or b is None or a.operator != b.operator:
            return False
        if left - a.first != right - b.first:
            raise DifferentError("they are two outputs of one operator")
        self.same_kind(left, right)
        nodes = (a.first, b.first)
        if nodes not in self._nodes:
            self._nodes.add(nodes)
            self._compared += 1
            self._alike(a, b)
            self._follow(a, b, output)
            if a.bodies or b.bodies:
                self._bodies(a, b, output)
        return True

    def _alike(self, a: Node, b: Node) -> None:
        """Compare two nodes of one operator, apart from their inputs and bodies."""
        if a.proto.overload != b.proto.overload:
            raise DifferentError("they are of different overloads")
        if (a.count, a.left_out) != (b.count, b.left_out) and _present(a) != _present(b):
            raise DifferentError("they have different outputs")
        name = differing_attribute(self, a, b) if len(a.proto.attribute) or len(b.proto.attribute) else None
        if name is not None:
            raise DifferentError(f"their attribute '{name}' differs")
        if a.version != b.version:
            if not means_same(a, b.version, self.ranks.of):
                raise DifferentError(
                    f"they are of the versions {a.version} and {b.version}, which may differ"
                )
            self.uses[Licence.OPSET] += 1
        if b.scope.bound is not None:
            self._as_in_model(b)
        # its nodes may differ in value with equal operands; so may those of other domains
        if a.operator[0] or a.operator[1] in _DRAWS:
            self._one_to_one(a, b)
        refuse_undeclared_types(self, a, b)

    def _as_in_model(self, node: Node) -> None:
        """Raise DifferentError for a node of a function with another meaning at the version that the model
        imports, which onnxruntime uses.
        """
        version = node.scope.outermost.versions.get(node.operator[0], node.version)
        if version != node.version and not means_same(node, version, self.ranks_after.of):
            raise DifferentError(
                f"it is of version {node.version} in its function, and {version} in the model"
            )

    def _one_to_one(self, a: Node, b: Node) -> None:
        for key, other in (((True, a.first), b.first), ((False, b.first), a.first)):
            if self._partner.setdefault(key, other) != other:
                raise DifferentError("one node was merged from two, which may give different values")
        one, other = a.scope.repeated, b.scope.repeated
        around = None if one is None or other is None else (one.first, other.first)
        if one is not other and around not in self._repeated:
            raise DifferentError("one of them is computed anew where the other is not")

    def _follow(self, a: Node, b: Node, output: str) -> None:
        """Push the pairs of inputs that remain to be proved for two nodes, the first on top."""
        if len(a.inputs) != len(b.inputs):
            raise DifferentError("they have different numbers of inputs")
        if MISSING in a.inputs or MISSING in b.inputs or a.operator in _PRODUCTS:
            self._push(self._inputs(a, b), output)
        else:
            self._stack.extend(zip(reversed(a.inputs), reversed(b.inputs), repeat(output)))

    def _inputs(self, a: Node, b: Node) -> Sequence[Pair]:
        pairs = [*zip(a.inputs, b.inputs, strict=True)]
        if any((left == MISSING) != (right == MISSING) for left, right in pairs):
            raise DifferentError("an input is left out of one of them")
        pairs = [pair for pair in pairs if pair[0] != MISSING]
        if a.operator in _PRODUCTS and len(a.inputs) > 1 and not _turns_batches(a):
            return [pair for port, pair in enumerate(pairs) if not self._raised(a, b, port)]
        return pairs

    def _raised(self, a: Node, b: Node, port: int) -> bool:
        """Return whether a constant factor gained axes, at most as many as the other factor has."""
        left, right = a.inputs[port], b.inputs[port]
        one, other = self.original.stored.get(left), self.rewritten.stored.get(right)
        if port > 1 or one is None or other is None or not _MATRIX <= len(one.dims) < len(other.dims):
            return False
        rank = self.ranks.of(a.inputs[1 - port]) or self.ranks_after.of(b.inputs[1 - port])
        if rank is None or rank < len(other.dims):
            raise DifferentError("a stored factor has more axes than the other", (left, right, ""))
        self.count(self.compare(one, other, rank=True), (left, right))
        self.uses[Licence.RANK] += 1
        return True

    def _bodies(self, a: Node, b: Node, output: str) -> None:
        before, after = a.bodies or [], b.bodies or []
        if [body.attribute for body in before] != [body.attribute for body in after]:
            raise DifferentError("they have different bodies")
        self._repeated.add((a.first, b.first))
        for one, other in zip(before, after, strict=True):
            if len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
                raise DifferentError("their bodies have different inputs or outputs")
            if a.operator[0] and one.names != other.names:  # onnxruntime's BeamSearch looks for `logits`
                raise DifferentError("their bodies have other names for inputs or outputs")
            if not value_kinds.is_operator(*a.operator):
                refuse_other_types(self, zip(one.inputs, other.inputs, strict=True))
                refuse_other_types(self, zip(one.outputs, other.outputs, strict=True))
            for left, right in zip(one.inputs, other.inputs, strict=True):
                self.assume(left, right)
            roots = self.original.roots, self.rewritten.roots
            pairs = zip(one.outputs, other.outputs, strict=True)
            self._push([(roots[0][left], roots[1][right]) for left, right in pairs], output)

    def _push(self, pairs: Sequence[Pair], output: str) -> None:
        visits = self._seen
        self._stack.extend([(*pair, output) for pair in reversed(pairs) if pair not in visits])

    def _stored(self, left: int, right: int, output: str) -> None:
        """Compare a constant of the result."""
        stored = self.original.stored
        if left in stored:
            self.count(self.compare(stored[left], self.rewritten.stored[right]), (left, right))
        else:
            self._folded.add(left, right, output)


def _present(node: Node) -> set[int]:
    """Return the outputs that have a name."""
    return {port for port, name in enumerate(node.proto.output) if name}


def _turns_batches(product: Node) -> bool:
    """Return whether a product transposes the batch axes of a factor, so that their position matters."""
    attributes = attributes_of(product)
    return any(attributes[name].attribute.i for name in ("transBatchA", "transBatchB") if name in attributes)


_PRODUCTS = frozenset((("", "MatMul"), ("com.microsoft", "FusedMatMul")))
_MATRIX = 2


# ---- inputs and outputs of models


def compare_borders(proof: Proof) -> Sequence[Pair]:
    """Return the pairs of corresponding inputs; DifferentError if the models have other inputs, defaults of
    them or outputs, or the original has no outputs.
    """
    a, b = proof.original, proof.rewritten
    if not a.outputs:
        raise DifferentError("the original has no outputs, so there is nothing to prove")
    if "" in _domains(a) - _domains(b):
        raise DifferentError("the result does not say of which version its operators are")
    kinds = {name: a.kinds[number] for name, number in a.outputs}
    outputs = a.proto.graph.output, b.proto.graph.output
    for what, borders in (("inputs", (_inputs(a), _inputs(b))), ("outputs", outputs)):
        names = [[_text(info.name) for info in infos] for infos in borders]
        if names[0] != names[1]:
            before, after = (", ".join(f"'{name}'" for name in side) or "(none)" for side in names)
            raise DifferentError(f"the {what} were {before}, and are {after}")
        for one, other in zip(*borders, strict=True):
            if _is_believed(kinds, one) and _interface(one.type) != _interface(other.type):
                raise DifferentError(f"'{_text(one.name)}' of the {what} has another type or shape")
            proof.uses[Licence.IO_TYPES] += _element(one) != _element(other)
    _compare_defaults(proof)
    return [*zip(a.inputs.values(), b.inputs.values(), strict=True)]


def _compare_defaults(proof: Proof) -> None:
    a, b = proof.original, proof.rewritten
    for name in a.inputs:
        one, two = a.initial.get(name), b.initial.get(name)
        if (one is None) != (two is None):
            raise DifferentError(f"the input '{_text(name)}' has a default value in one of them")
        if one is not None:
            comparison = proof.compare(one, two)
            if comparison.problem:
                raise DifferentError(f"the default value of the input '{_text(name)}' differs")
            proof.count(comparison, None)


def _interface(declared: TypeProto) -> object:
    """Return the kind and the sizes of a declaration; names as text, which the result has of bytes."""
    sizes = sizes_of(declared)
    named = sizes and [size if size is None or isinstance(size, int) else _text(size) for size in sizes]
    return value_kinds.of_type(declared), named


def _domains(model: Numbered) -> set[str]:
    return {canonical_domain(entry.domain) for entry in model.proto.opset_import}


def _is_believed(outputs: Mapping[str, Kind], info: Any) -> bool:
    """Return whether a type is declared, and not contradicted by the producer of the value."""
    declared = value_kinds.of_type(info.type)
    return declared is not None and outputs.get(info.name) in (None, declared)


def _inputs(model: Numbered) -> Sequence[Any]:
    return [info for info in model.proto.graph.input if info.name in model.inputs]


def _text(name: str | bytes) -> str:
    """Return a name as text, decoded as Latin-1 if it is not UTF-8."""
    return name.decode("latin-1") if isinstance(name, bytes) else name


def _element(info: Any) -> int:
    return info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else TensorProto.UNDEFINED
