"""Whether two models have the same inputs and outputs: names, order, types but for precision, and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import TensorProto, TypeProto

from amp_rewrite.certificate import calls, stored_values, value_kinds
from amp_rewrite.certificate.certificate import DifferentError, Licence
from amp_rewrite.certificate.numbered import Numbered
from amp_rewrite.certificate.pairs import Pair, Proof
from amp_rewrite.certificate.stored_values import Held
from amp_rewrite.certificate.value_kinds import Kind


def problem(original: Numbered, rewritten: Numbered) -> str:
    """What is wrong with the inputs or outputs of a result; empty where nothing is."""
    if not original.outputs:
        return "the original has no outputs, so there is nothing to prove"
    if "" in _domains(original) - _domains(rewritten):
        return "the result does not say of which version its operators are"
    sides = (_inputs(original), _inputs(rewritten)), (_outputs(original), _outputs(rewritten))
    kinds = {name: original.kinds[number] for name, number in original.outputs}
    for what, (before, after) in zip(("inputs", "outputs"), sides, strict=True):
        names = [[_text(info.name) for info in infos] for infos in (before, after)]
        if names[0] != names[1]:
            return f"the {what} were {_listed(names[0])}, and are {_listed(names[1])}"
        for one, other in zip(before, after, strict=True):
            if _is_believed(kinds, one) and _interface(one.type) != _interface(other.type):
                return f"'{_text(one.name)}' of the {what} has another type or shape"
    wrong = _misdeclared(rewritten)
    if wrong and not _misdeclared(original):
        return f"the stored input '{_text(wrong)}' is declared with another type or shape than it has"
    return ""


def _misdeclared(model: Numbered) -> str | bytes:
    """The first input of a model before IR version 4 that is stored otherwise than it is declared, so that
    onnxruntime does not load the model; empty where there is none.
    """
    for info in model.proto.graph.input:
        tensor = None if info.name in model.inputs else model.initial.get(info.name)
        if isinstance(tensor, TensorProto) and not _declares(info.type.tensor_type, tensor):
            return info.name
    return ""


def _declares(declared: TypeProto.Tensor, tensor: TensorProto) -> bool:
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in declared.shape.dim]
    is_alike = len(sizes) == len(tensor.dims) and all(
        size in (None, stored) for size, stored in zip(sizes, tensor.dims, strict=True)
    )
    return declared.elem_type == tensor.data_type and (is_alike or not declared.HasField("shape"))


def _domains(model: Numbered) -> set[str]:
    return {calls.canonical(entry.domain) for entry in model.proto.opset_import}


def _is_believed(outputs: Mapping[str, Kind], info: Any) -> bool:
    """Whether the type that a model declares is there, and is not contradicted by what makes the value."""
    declared = value_kinds.of_type(info.type)
    return declared is not None and outputs.get(info.name) in (None, declared)


def _inputs(model: Numbered) -> Sequence[Any]:
    return [info for info in model.proto.graph.input if info.name in model.inputs]


def _outputs(model: Numbered) -> Sequence[Any]:
    names = {name for name, _ in model.outputs}
    return [info for info in model.proto.graph.output if info.name in names]


def _text(name: str | bytes) -> str:
    """A name; one that is not UTF-8 is read as Latin-1."""
    return name.decode("latin-1") if isinstance(name, bytes) else name


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "(none)"


def _interface(declared: TypeProto) -> object:
    """The kind and the shape that a declaration states, of what a sequence or an optional value holds."""
    kind, held = value_kinds.of_type(declared), declared
    while held.WhichOneof("value") in _HOLDERS:
        held = getattr(held, held.WhichOneof("value") or "").elem_type
    if not (held.HasField("tensor_type") and held.tensor_type.HasField("shape")):
        return kind, None
    dims = held.tensor_type.shape.dim
    return kind, [dim.dim_value if dim.HasField("dim_value") else _text(dim.dim_param) for dim in dims]


_HOLDERS = ("sequence_type", "optional_type")


def inputs(proof: Proof) -> Sequence[Pair]:
    """The inputs of one name, which are equal; DifferentError where their types or defaults are not."""
    a, b = proof.original, proof.rewritten
    defaults = a.initial, b.initial
    for (name, left), (other, right) in zip(a.inputs.items(), b.inputs.items(), strict=True):
        proof.same_kind(left, right)
        one, two = defaults[0].get(name), defaults[1].get(other)
        if (one is None) != (two is None):
            raise DifferentError(f"the input '{_text(name)}' has a default value in one of them")
        if one is not None:
            found = stored_values.compare(Held(one, a.folder), Held(two, b.folder))
            if found.problem:
                raise DifferentError(f"the default value of the input '{_text(name)}' differs")
            proof.count(found, None)
    for before, after in ((_inputs(a), _inputs(b)), (_outputs(a), _outputs(b))):
        for info, now in zip(before, after, strict=True):
            proof.uses[Licence.IO_TYPES] += _element(info) != _element(now)
    return [*zip(a.inputs.values(), b.inputs.values(), strict=True)]


def _element(info: Any) -> int:
    return info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else TensorProto.UNDEFINED
