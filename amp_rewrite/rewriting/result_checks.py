"""Checks of a result: a valid model, the inputs and outputs of the original, and a certificate."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.certificate.certificate import Certificate
from amp_rewrite.certificate.certifying import certify
from amp_rewrite.certificate.tensors import InFolder
from amp_rewrite.errors import EXPORT_AGAIN, AmpRewriteError, CertificateError, ModelError
from amp_rewrite.model import external_data, loading, serialization
from amp_rewrite.model.loading import ModelSource, root_cause
from amp_rewrite.model.serialization import Checkable
from amp_rewrite.model.writing import WrittenResult
from amp_rewrite.onnx_types import element_types
from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.process import worker
from amp_rewrite.process.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class IOType:
    """An input or output of the model: its name, type and shape."""

    name: str | None
    type: ir.TypeProtocol | None
    shape: str


Borders = tuple[IOType, ...]
"""All inputs and outputs of a model, in order."""


def io_types(model: ir.Model, types: Types) -> Borders:
    """Return the inputs and outputs of a model, in order, without initializers that IR 3 lists as inputs."""
    values = [v for v in model.graph.inputs if not v.is_initializer()]
    return tuple(
        IOType(value.name, types.get(value), str(value.shape)) for value in (*values, *model.graph.outputs)
    )


def broken_io(before: Borders, after: Borders) -> tuple[str, ...]:
    """Return the unwanted changes of inputs and outputs, a sentence each."""
    if len(before) != len(after):
        return (f"the model had {len(before)} inputs and outputs, and has {len(after)}",)
    return tuple(
        f"'{old.name}' was {old.type} {old.shape}, and is '{new.name}' {new.type} {new.shape}"
        for old, new in zip(before, after, strict=True)
        if old != new
    )


@dataclass(frozen=True, slots=True)
class Validity:
    """`broken` are the faults of the result; `warnings` those that the original has as well."""

    broken: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check(
    source: ModelSource,
    result: WrittenResult,
    model: ir.Model,
    graph: UnitGraph,
    io: Borders,
    options: Options,
) -> Validity:
    """Check a result, which is `model` with the units of `graph`, with onnx's checker, if the options ask for
    it, and that its inputs and outputs are still `io`, if they should.
    """
    broken = broken_io(io, io_types(model, graph.types)) if options.io is IOTypes.KEEP else ()
    if not options.check:
        return Validity(broken)
    nodes = element_types.node_count(model) if model.functions else sum(map(len, graph.nodes.values()))
    validity = validate(result.checkable, lambda: serialization.checkable(source), nodes)
    return replace(validity, broken=(*broken, *validity.broken))


FULL_UP_TO = 50_000
"""The number of nodes up to which onnx's checker also infers types. Beyond, that takes longer than the
rewrite (twenty times as long for ten times the nodes), and only the structure is checked.
"""


def validate(after: Checkable, before: Callable[[], Checkable], nodes: int) -> Validity:
    """Return the verdict of onnx's checker on a result with `nodes` nodes.

    The checker rejects some models that runtimes accept: if it rejects the original too, that is a warning.
    """
    if isinstance(after, str) and not _is_utf8(after):
        return Validity(warnings=(_NOT_ASKED,))
    full = nodes <= FULL_UP_TO
    complaint = _complaint(after, full=full)
    if not complaint:
        return Validity(warnings=() if full else (_NOT_IN_FULL,))
    if _complaint(before(), full=full):
        return Validity(warnings=(f"onnx's checker rejects this model: {complaint}",))
    return Validity(broken=(f"onnx's checker rejects the result: {complaint}",))


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # surrogate escapes, which onnx does not accept
        return False
    return True


_NOT_ASKED = "onnx's checker was not run on the result: it only accepts UTF-8 paths"
_NOT_IN_FULL = f"onnx's checker saw the structure only: the model has over {FULL_UP_TO:,} nodes"


@contextlib.contextmanager
def blaming(model: Callable[[], Checkable]) -> Generator[None]:
    """Convert an error other than AmpRewriteError, or a CertificateError, into a ModelError if onnx's checker
    rejects the model.

    If it accepts the model, the fault is ours, and the error passes through unchanged.
    """
    try:
        yield
    except CertificateError as error:
        remedy = f"{EXPORT_AGAIN}, or write what is not proved with `Options.certify=False`"
        raise (_rejection(model(), remedy) or error) from error
    except AmpRewriteError:
        raise
    except Exception as error:  # a damaged model can fail anywhere
        raise (_rejection(model(), EXPORT_AGAIN) or error) from error


def _rejection(model: Checkable, remedy: str) -> ModelError | None:
    """Return the objection of onnx's checker to a model as an error; None where it accepts it."""
    complaint = _complaint(model)
    if not complaint:
        return None
    where = model if isinstance(model, str) else "the given model"
    return ModelError(f"is not a valid model: {complaint}", where=where, remedy=remedy)


def _complaint(model: Checkable, *, full: bool = True) -> str:
    if isinstance(model, onnx.ModelProto):
        try:
            model = model.SerializeToString()
        except ValueError as error:  # over 2 GiB
            return root_cause(error)
    # the worker may have been started in another folder
    relative = isinstance(model, str) and bool(model) and not Path(model).is_absolute()
    checkable = str(Path.cwd() / str(model)) if relative else model
    complaint = worker.call(worker.complaint, checkable, full=full)
    return _CRASHES if complaint is None else complaint[:300]


_CRASHES = "onnx's checker crashed"


@dataclass(slots=True)
class ResultProof:
    """Proves a result, a path, bytes or a ModelProto, to be `source`, after a `transform` of it if there is
    one, but for precision.

    `certificate` is that of the result, once it is proved. CertificateError is raised for a result that is
    not proved. Of a model that is not even proved equal to itself, as one in memory with tensors in the files
    of several folders, `certificate` says so. `op_types` are the declared ones. The proof is a stage of
    `timed`.
    """

    source: ModelSource
    op_types: Mapping[str, str] = field(default_factory=dict[str, str])
    timed: Stopwatch = field(default_factory=Stopwatch)
    transform: Callable[[ir.Model], object] | None = None
    certificate: Certificate | None = None

    def __call__(self, result: Any) -> None:
        """Prove it."""
        with self.timed.stage("prove"):
            certificate, itself = self._certificates(result)
        if itself.proved and not certificate.proved:
            is_path = isinstance(self.source, (str, os.PathLike))
            raise CertificateError(
                f"the result is {certificate}",
                where=str(self.source) if is_path else "the given model",
                remedy=_REPORT,
            )
        self.certificate = itself  # a model that is not proved equal to itself says nothing about the rewrite

    def _certificates(self, result: Any) -> tuple[Certificate, Certificate]:
        """Return the certificate of the result and, if that proves nothing, of the source with itself."""
        source: Any = serialization.checkable(self.source)
        folder = external_data.folder(self.source) if isinstance(self.source, ir.Model) else None
        if self.transform is not None:
            loaded = loading.load(self.source)
            self.transform(loaded.model)
            source, folder = serialization.to_proto(loaded), external_data.folder(loaded.model)
            if folder is None and isinstance(self.source, (str, os.PathLike)):
                folder = Path(self.source).resolve().parent
        if folder is not None and not isinstance(result, Path):
            result = InFolder(result, folder)
        if folder is not None:
            source = InFolder(source, folder)
        certificate = self._certified(source, result)
        return certificate, certificate if certificate.proved else self._certified(source, source)

    def _certified(self, source: Any, result: Any) -> Certificate:
        try:
            return certify(source, result, op_types=self.op_types)
        except ModelError as error:
            return Certificate(False, 0, problem=error.problem)
        except Exception as error:  # a fault in the prover proves nothing; its traceback must stay visible
            return Certificate(False, 0, problem=f"the proof failed ({type(error).__name__}: {error})")


_REPORT = "please report this fault of amp-rewrite; `Options.certify=False` writes it all the same"
