"""The proof of a result before it stands where it was asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from amp_rewrite.certificate.certificate import Certificate
from amp_rewrite.certificate.certifying import certify
from amp_rewrite.certificate.element_checks import WrittenTensors
from amp_rewrite.certificate.tensors import InFolder, JustWritten
from amp_rewrite.errors import CertificateError, ModelError
from amp_rewrite.model import external_data, serialization
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.process.stopwatch import Stopwatch


@dataclass(slots=True)
class Proof:
    """Proves a result, a path, bytes or a ModelProto, to be `source` but for precision.

    `certificate` is that of the result, once it is proved. CertificateError is raised for a result that is
    not proved. Of a model that is not even proved equal to itself, as one in memory with tensors in the files
    of several folders, `certificate` says so. The proof is a stage of `timed`; `written` has the tensors that
    were proved while they were written.
    """

    source: ModelSource
    timed: Stopwatch = field(default_factory=Stopwatch)
    certificate: Certificate | None = None
    written: WrittenTensors = field(default_factory=WrittenTensors)

    def __call__(self, result: Any) -> None:
        """Proves it."""
        with self.timed.stage("prove"):
            certificate, itself = self._certificates(result)
        if itself.proved and not certificate.proved:
            is_path = isinstance(self.source, (str, os.PathLike))
            raise CertificateError(
                f"the result is {certificate}",
                where=str(self.source) if is_path else "the given model",
                remedy=_REPORT,
            )
        self.certificate = itself  # what cannot be proved equal to itself says nothing of a rewrite

    def _certificates(self, result: Any) -> tuple[Certificate, Certificate]:
        """The certificate of the result, and of the source with itself where the first proves nothing."""
        given: Any = serialization.checkable(self.source)
        folder = external_data.folder(self.source) if isinstance(self.source, ir.Model) else None
        if folder is not None:
            given, result = InFolder(given, folder), InFolder(result, folder)
        elif isinstance(result, Path):
            result = JustWritten(result, self.written)
        certificate = _certified(given, result)
        return certificate, certificate if certificate.proved else _certified(given, given)


_REPORT = "please report this fault of amp-rewrite; `Options.certify=False` writes it all the same"


def _certified(source: Any, result: Any) -> Certificate:
    try:
        return certify(source, result)
    except ModelError as error:
        return Certificate(False, 0, problem=error.problem)
    except Exception as error:  # a fault of the proof proves nothing, and must not hide where it is
        return Certificate(False, 0, problem=f"the proof failed ({type(error).__name__}: {error})")
