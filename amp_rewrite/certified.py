"""The proof of a result before it stands where it was asked for."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from amp_rewrite.certificate.certificate import Certificate
from amp_rewrite.certificate.certifying import certify
from amp_rewrite.certificate.reading import InFolder
from amp_rewrite.errors import CertificateError, ModelError
from amp_rewrite.model import external_data, serialization
from amp_rewrite.model.loading import ModelSource

Proofs = list[Certificate]
"""The certificate of a result, once there is one; that of the original with itself, where even that fails."""


def proof(source: ModelSource, found: Proofs) -> Callable[[Any], None]:
    """What proves a result, a path, bytes or a ModelProto, to be `source` but for precision, and adds the
    certificate to `found`.

    It raises CertificateError for a result that is not proved. A model that is not even proved equal to
    itself, as one in memory with tensors in the files of several folders, adds what says so.
    """
    return functools.partial(_prove, source, found)


def _certified(source: Any, result: Any) -> Certificate:
    try:
        return certify(source, result)
    except ModelError as error:
        return Certificate(False, 0, problem=error.problem)
    except Exception as error:  # a fault of the proof proves nothing, and must not hide where it is
        return Certificate(False, 0, problem=f"the proof failed ({type(error).__name__}: {error})")


def _prove(source: ModelSource, found: Proofs, result: Any) -> None:
    given: Any = serialization.checkable(source)
    folder = external_data.folder(source) if isinstance(source, ir.Model) else None
    if folder is not None:
        given, result = InFolder(given, folder), InFolder(result, folder)
    certificate = _certified(given, result)
    itself = certificate if certificate.proved else _certified(given, given)
    if itself.proved and not certificate.proved:
        raise CertificateError(
            f"the result is {certificate}",
            where=str(source) if isinstance(source, (str, os.PathLike)) else "the given model",
            remedy="please report this fault of amp-rewrite; `Options.certify=False` writes it all the same",
        )
    found.append(itself)  # what cannot be proved equal to itself says nothing of a rewrite
