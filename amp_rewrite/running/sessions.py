"""onnxruntime, where it is installed: sessions on the device that there is, and what they give."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import onnx
from onnx import parser

from amp_rewrite.errors import MissingPackageError, ModelError, RunError
from amp_rewrite.model import loading
from amp_rewrite.process import fork_safe, interruptible
from amp_rewrite.running import values

T = TypeVar("T")

Feeds = Mapping[str, Any]
"""The inputs of a run, by name."""

Runnable = onnx.ModelProto | str | Path
"""A model, or the path of one."""


class Device(enum.Enum):
    """Where a model runs: a CUDA device with TF32 off, or the CPU."""

    CUDA = "CUDA"
    CPU = "CPU"


_PROVIDERS: Mapping[Device, Sequence[Any]] = {
    Device.CUDA: (("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"),
    Device.CPU: ("CPUExecutionProvider",),
}
ERRORS_ONLY = 4
"""onnxruntime's log level at which it prints nothing but what ends the process."""


def onnxruntime() -> Any:
    """The module; MissingPackageError where it is not installed."""
    try:
        return fork_safe.import_module("onnxruntime")
    except ImportError as error:
        raise MissingPackageError("onnxruntime", extra="cpu", purpose="running a model") from error


def stopping(work: Callable[[Any], T]) -> T:
    """What `work` returns, which gets RunOptions for the runs that it makes: all that onnxruntime does of a
    user's model goes through here, so that signals and limits end it (see `interruptible`).
    """
    options = onnxruntime().RunOptions()
    return interruptible.call(partial(work, options), partial(setattr, options, "terminate", True))


@functools.cache
def best_device() -> Device:
    """CUDA where it works, else the CPU; MissingPackageError without onnxruntime.

    A GPU build lists its provider also where the CUDA libraries or the device are missing, so a model of
    one node is tried. That it falls back is all it says: its own wall of warnings is kept quiet.
    """
    runtime = onnxruntime()
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        return Device.CPU
    runtime.set_default_logger_severity(ERRORS_ONLY)
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    try:
        session = open_session(parser.parse_model(_PROBE), Device.CUDA)
    except ModelError:
        return Device.CPU
    return Device.CUDA if "CUDAExecutionProvider" in session.get_providers() else Device.CPU


_PROBE = '<ir_version: 8, opset_import: ["": 17]> probe (float[1] x) => (float[1] y) { y = Relu (x) }'


def open_session(model: Runnable, device: Device = Device.CPU) -> Any:
    """A session on a device; ModelError when onnxruntime refuses the model."""
    return _open(model, device, onnxruntime().SessionOptions())


def open_plain_session(model: Runnable, device: Device = Device.CPU) -> Any:
    """A session that runs every node as it stands: nothing is fused or folded; ModelError as above."""
    options = onnxruntime().SessionOptions()
    options.graph_optimization_level = onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    return _open(model, device, options)


def _open(model: Runnable, device: Device, options: Any) -> Any:
    options.log_severity_level = ERRORS_ONLY
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else _path(model)
    return stopping(lambda _: _opened(given, options, device))


def _opened(given: bytes | str, options: Any, device: Device) -> Any:
    try:
        return onnxruntime().InferenceSession(given, options, providers=list(_PROVIDERS[device]))
    except Exception as error:  # onnxruntime has no common class for its errors
        raise ModelError(f"onnxruntime refuses the model ({first_line(error)})") from error


def _path(model: str | Path) -> str:
    """The path as onnxruntime takes it, which would wait for a pipe; ModelError where no model can be."""
    with loading.open_file(Path(model)):
        return _in_utf8(model)


def _in_utf8(path: str | Path) -> str:
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ModelError(
            "has a path that is not UTF-8, which onnxruntime does not accept", where=path, remedy="rename it"
        ) from error
    return str(path)


def run_session(
    session: Any, feeds: Feeds, wanted: Container[str] | None = None, *, where: str = ""
) -> dict[str, Any]:
    """The outputs of a session, or those of them that are wanted, by name.

    Raises RunError when the run fails, with `where` for the inputs.
    """
    outputs = [o for o in session.get_outputs() if wanted is None or o.name in wanted]
    names = [output.name for output in outputs]
    kinds = {entry.name: entry.type for entry in session.get_inputs()}
    given = {name: values.typed(value, kinds.get(name, "")) for name, value in feeds.items()}
    plain = values.BFLOAT16 not in (*kinds.values(), *(output.type for output in outputs))
    run = partial(session.run, names, given) if plain else partial(_run_values, session, names, given, kinds)
    return dict(zip(names, stopping(partial(_found, run, where)), strict=True))


def _found(run: Callable[[Any], Sequence[Any]], where: str, options: Any) -> Sequence[Any]:
    try:
        return run(options)
    except Exception as error:  # as above
        raise RunError(
            f"the run failed ({first_line(error)})", where=where, remedy="give inputs that fit with `samples`"
        ) from error


def _run_values(
    session: Any, names: list[str], given: Feeds, kinds: Mapping[str, str], options: Any
) -> list[Any]:
    """A run on onnxruntime's own values, which is how bfloat16 goes in and comes out."""
    make = onnxruntime().OrtValue
    taken = {name: values.to_value(make, array, kinds[name]) for name, array in given.items()}
    return [values.to_array(value) for value in session.run_with_ort_values(names, taken, options)]


def run(model: Runnable, feeds: Feeds, device: Device = Device.CPU) -> dict[str, Any]:
    """The outputs of a model, by name.

    Raises ModelError when onnxruntime refuses the model, and RunError when it refuses the inputs.
    """
    return run_session(open_session(model, device), feeds)


def first_line(error: Exception) -> str:
    """The first line of an error, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
