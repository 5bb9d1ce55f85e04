"""Proof that a result equals the original up to precision: `certify`."""

from __future__ import annotations

from onnx import ModelProto

from amp_rewrite.certificate import loss_scale, numbering
from amp_rewrite.certificate.certificate import Certificate, DifferentError, Place
from amp_rewrite.certificate.numbered import MISSING, Numbered
from amp_rewrite.certificate.numbering import functions_of, inlined_size
from amp_rewrite.certificate.proving import Proving, equal_inputs, interface_problem
from amp_rewrite.certificate.tensors import Folder, Source, read_model
from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.process import startup

_MOST_NODES = 1 << 20
"""The most nodes that a model may have once its functions are inlined."""


def certify(original: Source, rewritten: Source) -> Certificate:
    """Return the proof that `rewritten` equals `original` up to precision, or the first difference.

    Both are paths, bytes, or ModelProtos. They may differ only in Casts between float32, float16 and
    bfloat16, in constants rounded to half, and as Licence permits. Raises ModelError for an invalid model.

    Examples:
        >>> from amp_rewrite import certify, rewrite
        >>> from amp_rewrite.demo import network
        >>> certify(network(), rewrite(network()).model).proved
        True
        >>> certify(network(), network(seed=1)).problem
        'element 0 was -0.16635707020759583, and is 0.07106806337833405'
    """
    with startup.paused():
        before = _numbered(*read_model(original))
        after = _numbered(*read_model(rewritten), believed=False)
        try:
            plain, uses = loss_scale.take_out(before, after)
            problem = interface_problem(before, plain)
            if problem:
                return Certificate(False, 0, problem=problem)
            proving = Proving(before, plain)
            proving.uses.update(uses)
            for pair in equal_inputs(proving):
                proving.assume(*pair)
        except DifferentError as difference:
            left, right, name = difference.at or (MISSING, MISSING, "")
            place = Place(name, before.describe(left), after.describe(right)) if right != MISSING else None
            return Certificate(False, 0, problem=difference.problem, place=place)
        return proving.run()


def _numbered(model: ModelProto, folder: Folder | None, where: str, *, believed: bool = True) -> Numbered:
    """Number the values of a model; errors name its source, `where`."""
    try:
        functions = functions_of(model)
        if functions and inlined_size(model, functions) > _MOST_NODES:
            problem = f"would have more than {_MOST_NODES:,} nodes with its functions taken apart"
            raise ModelError(problem, remedy="give a smaller model")
        return numbering.number(model, folder, functions, believed=believed)
    except ModelError as error:
        raise ModelError(error.problem, where=error.where or where, remedy=error.remedy) from error
    except RecursionError as error:
        raise ModelError("nests bodies too deeply", where=where, remedy=EXPORT_AGAIN) from error
