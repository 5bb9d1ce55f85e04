"""Is the result a valid model with the inputs and outputs that it should have?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from amp_rewrite.errors import EXPORT_AGAIN, AmpRewriteError, ModelError
from amp_rewrite.model.loading import root_cause
from amp_rewrite.model.writing import Checkable
from amp_rewrite.onnx_types import worker, worker_process
from amp_rewrite.onnx_types.element_types import Types


@dataclass(frozen=True, slots=True)
class IOType:
    """An input or output of the model: its name, type and shape."""

    name: str | None
    type: ir.TypeProtocol | None
    shape: str


def io_types(model: ir.Model, types: Types) -> tuple[IOType, ...]:
    """The inputs and outputs of a model, in order; weights that IR 3 lists as inputs are none."""
    values = [v for v in model.graph.inputs if not v.is_initializer()]
    return tuple(
        IOType(value.name, types.get(value), str(value.shape)) for value in (*values, *model.graph.outputs)
    )


def broken_io(before: tuple[IOType, ...], after: tuple[IOType, ...]) -> tuple[str, ...]:
    """What changed in inputs and outputs and should not have, in words."""
    if len(before) != len(after):
        return (f"the model had {len(before)} inputs and outputs, and has {len(after)}",)
    return tuple(
        f"'{old.name}' was {old.type} {old.shape}, and is '{new.name}' {new.type} {new.shape}"
        for old, new in zip(before, after, strict=True)
        if old != new
    )


@dataclass(frozen=True, slots=True)
class Validity:
    """`broken` says what is wrong with the result; `warnings` what was wrong before as well."""

    broken: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


FULL_UP_TO = 50_000
"""How many nodes onnx's checker infers types for again: beyond, that takes longer than all else together
(ten times the nodes, twenty times the time), and its check of the structure has to do.
"""


def validate(after: Checkable, before: Callable[[], Checkable], nodes: int) -> Validity:
    """onnx's checker on the result of so many nodes; where it complains, the original is asked too.

    The checker refuses some models that runtimes accept: what it says of both is a warning.
    """
    if isinstance(after, str) and not _is_utf8(after):
        return Validity(warnings=(_NOT_ASKED,))
    full = nodes <= FULL_UP_TO
    complaint = _complaint(after, full=full)
    if not complaint:
        return Validity(warnings=() if full else (_NOT_IN_FULL,))
    if _complaint(before(), full=full):
        return Validity(warnings=(f"onnx's checker refuses this model: {complaint}",))
    return Validity(broken=(f"onnx's checker refuses the result: {complaint}",))


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # bytes that Python carries through as they are, and onnx cannot take
        return False
    return True


_NOT_ASKED = "onnx's checker was not run on the result: it only accepts UTF-8 paths"
_NOT_IN_FULL = f"onnx's checker saw the structure only: the model has over {FULL_UP_TO:,} nodes"


@contextlib.contextmanager
def blaming(model: Callable[[], Checkable]) -> Generator[None]:
    """Turns an error of no kind of ours into a ModelError where onnx's checker refuses the model as well.

    Where it does not, the fault is ours, and the error goes on as it is.
    """
    try:
        yield
    except AmpRewriteError:
        raise
    except Exception as error:  # a damaged model fails in as many ways as it can be damaged
        given = model()
        complaint = _complaint(given)
        if not complaint:
            raise
        raise ModelError(
            f"is not a valid model: {complaint}",
            where=given if isinstance(given, str) else "the given model",
            remedy=EXPORT_AGAIN,
        ) from error


def _complaint(model: Checkable, *, full: bool = True) -> str:
    if isinstance(model, onnx.ModelProto):
        try:
            model = model.SerializeToString()
        except ValueError as error:  # over 2 GiB
            return root_cause(error)
    # the worker may have been started in another folder
    relative = isinstance(model, str) and bool(model) and not Path(model).is_absolute()
    known = str(Path.cwd() / str(model)) if relative else model
    found = worker.ask(worker_process.complaint, known, full=full)
    return _CRASHES if found is None else found[:300]


_CRASHES = "onnx's checker crashed"
