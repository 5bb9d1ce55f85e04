"""Proof that a result equals the original up to precision: `certify`."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto

from amp_rewrite.certificate import numbering
from amp_rewrite.certificate.certificate import Certificate, DifferentError, Licence, Place
from amp_rewrite.certificate.numbered import MISSING, Numbered, fixed_inputs
from amp_rewrite.certificate.numbering import functions_of, inlined_size
from amp_rewrite.certificate.proving import Proving, equal_inputs, interface_problem
from amp_rewrite.certificate.tensors import Folder, Source, read_model
from amp_rewrite.certificate.value_kinds import is_operator
from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.operators import declared_types
from amp_rewrite.operators.declared_types import OpTypes
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
        texts = {**declared_types.recorded(metadata, is_operator), **(op_types or {})}
        declared = declared_types.by_operator(texts)
        fixed = [fixed_inputs(model, models[1][0]) for model, *_ in models]
        before = _numbered(*models[0], declared, fixed[0])
        after = _numbered(*models[1], declared, fixed[1], believed=False)
        try:
            problem = _scale_problem(before, after) or interface_problem(before, after)
            if problem:
                return Certificate(False, 0, problem=problem)
            proving = Proving(before, after)
            proving.uses[Licence.DEFAULT] = len(fixed[0] - fixed_inputs(models[0][0], models[0][0]))
            for pair in equal_inputs(proving):
                proving.assume(*pair)
        except DifferentError as difference:
            left, right, name = difference.at or (MISSING, MISSING, "")
            place = Place(name, before.describe(left), after.describe(right)) if right != MISSING else None
            return Certificate(False, 0, problem=difference.problem, place=place)
        return proving.run()


def _scale_problem(original: Numbered, rewritten: Numbered) -> str:
    """Return the reason why a train step with a loss scale is not proved against one without; else empty."""
    before, after = ({each.key for each in model.proto.metadata_props} for model in (original, rewritten))
    return _ADDS_A_SCALE if _LOSS_SCALE in after - before else ""


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
