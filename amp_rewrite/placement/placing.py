"""Models -> their placements, by onnxruntime or TensorRT in a process of its own, which may crash."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import onnx

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import FeedError, ResourceError
from amp_rewrite.model import loading
from amp_rewrite.placement import placement, saved_graph, tensorrt
from amp_rewrite.placement.placement import Placement, Profile
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.process.child_process import ChildProcess, CrashError
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device, Feeds, Libraries, is_scarce, reason

# In a process that opens sessions.


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A model to open on a device, and to run once where there are `feeds`.

    `folder` is for the files of the session, and `libraries` have its custom operators.
    """

    model: Path
    device: Device
    folder: Path
    feeds: Feeds | None = None
    libraries: Libraries = ()

    @property
    def log(self) -> Path:
        """The path of onnxruntime's verbose log."""
        return self.folder / "log.txt"

    @property
    def optimised(self) -> Path:
        """The path to which onnxruntime saves the graph that it executes."""
        return self.folder / "optimised.onnx"


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The answer to a request: why the model does not load, or why it does not run; both empty where it does.

    `profile` is that of the run, None without one.
    """

    refused: str = ""
    failed: str = ""
    profile: Profile | None = None


def _open(request: SessionRequest) -> SessionAnswer:
    """Open the session, and run it if the request has feeds; raise ResourceError for lack of memory."""
    runtime = sessions.onnxruntime()
    providers = list(dict.fromkeys((_PROVIDERS[request.device], _PROVIDERS[Device.CPU])))
    try:
        # the fallback would build a second failing session, for the CPU, and overwrite the saved graph
        session = runtime.InferenceSession(
            str(request.model), _options(runtime, request), providers=providers, enable_fallback=0
        )
    except Exception as error:  # onnxruntime has no common class for its errors
        if is_scarce(error):
            raise ResourceError(f"onnxruntime does not open the model ({reason(error)})") from error
        return SessionAnswer(refused=reason(error))
    if _PROVIDERS[request.device] not in session.get_providers():
        return SessionAnswer(refused=f"onnxruntime cannot start {_PROVIDERS[request.device]}")
    return SessionAnswer() if request.feeds is None else _ran(session, request.feeds)


_PROVIDERS: Mapping[Device, str] = {Device.CUDA: "CUDAExecutionProvider", Device.CPU: "CPUExecutionProvider"}


def _options(runtime: Any, request: SessionRequest) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = _VERBOSE
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(request.optimised)
    sessions.register(options, request.libraries)
    for entry in _WEIGHTS_OUTSIDE:
        options.add_session_config_entry(*entry)
    if request.feeds is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(request.folder / "profile")
    return options


_VERBOSE = 0
_KEY = "session.optimized_model_external_initializers"
_WEIGHTS_OUTSIDE = ((f"{_KEY}_file_name", "weights.data"), (f"{_KEY}_min_size_in_bytes", "1024"))
"""Options that save weights outside the graph, which could exceed protobuf's limit with them."""


def _ran(session: Any, feeds: Feeds) -> SessionAnswer:
    try:
        sessions.run_session(session, feeds)
    except FeedError as error:
        return SessionAnswer(failed=error.problem)
    return SessionAnswer(profile=placement.read_profile(Path(session.end_profiling())))


def _answer(request: SessionRequest) -> SessionAnswer:
    """Answer in the other process, where onnxruntime's log goes to the file that the request names."""
    with request.log.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    runtime = sessions.onnxruntime()
    if request.device is Device.CUDA and hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    return _open(request)


# In the user's process.

Place = Callable[[Path, Feeds | None], Placement]
"""A function that opens a model, runs it once on inputs if there are any, and returns its placement."""


@contextlib.contextmanager
def placer(provider: Device | str, libraries: Libraries = (), dims: Dims | None = None) -> Generator[Place]:
    """Yield a function that places models one after the other: on a device, in one process, with these
    libraries of custom operators, or by TensorRT (`tensorrt.NAME`), whose sizes of open dimensions are
    `dims`.

    Raises MissingPackageError without onnxruntime, and as `tensorrt.compiler` does; the function raises
    ModelError for an unreadable model, and TimeLimitError.
    """
    if isinstance(provider, Device):
        sessions.onnxruntime()
        with contextlib.closing(ChildProcess(_answer)) as process:
            yield partial(_place, process, provider, libraries)
    else:
        with tensorrt.compiler(dims or {}) as compile_model:
            yield lambda model, _: compile_model(model)


def place(
    model: onnx.ModelProto | str | Path,
    device: Device | Literal["tensorrt"] | None = None,
    feeds: Feeds | None = None,
    *,
    custom_ops: PathLike | Iterable[PathLike] = (),
    dims: Dims | None = None,
) -> Placement:
    """Return the placement of a model on a device, by default CUDA if it works, or by TensorRT, which runs
    nothing: its layers, the size of the engine, or in `refused` why it does not compile.

    `custom_ops` are the libraries of the model's custom operators; `dims` are sizes of open dimensions, for
    TensorRT. Raises the errors of `placer`, and OptionError for an invalid library or device.

    Examples:
        >>> from amp_rewrite import measure_placement
        >>> from amp_rewrite.demo import network
        >>> from amp_rewrite.running.sessions import Device
        >>> placement = measure_placement(network(), Device.CPU)
        >>> placement.operators["LayerNormalization"], placement.copies
        (2, 0)
    """
    if device is not None and device != tensorrt.NAME:
        arguments.instance("device", device, Device, f"it is a Device, or '{tensorrt.NAME}'")
    provider = device if device == tensorrt.NAME else sessions.check_device(device)
    libraries = sessions.check_libraries(custom_ops)
    with placer(provider, libraries, dims) as place_model, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx" if isinstance(model, onnx.ModelProto) else Path(model)
        if isinstance(model, onnx.ModelProto):
            onnx.save(model, path)
        return place_model(path, feeds)


def _place(
    process: ChildProcess, device: Device, libraries: Libraries, model: Path, feeds: Feeds | None = None
) -> Placement:
    original_nodes = placement.own_nodes(loading.load_graph(model))
    with tempfile.TemporaryDirectory(prefix="amp-rewrite-placement-") as folder:
        request = SessionRequest(model, device, Path(folder), feeds, libraries)
        try:
            answer: SessionAnswer = process.ask(request)
        except CrashError as error:
            answer = SessionAnswer(refused=f"onnxruntime crashes ({error})")
        if answer.refused and feeds is not None:  # a run that crashes says nothing of the load
            placed = _place(process, device, libraries, model)
            return placed if placed.refused else replace(placed, failed=answer.refused)
        if answer.refused:
            return Placement(refused=answer.refused)
        log, nodes = placement.read_log(request.log), saved_graph.read(request.optimised)
    placed = placement.of(nodes, log, original_nodes, cpu_asked=device is Device.CPU)
    return replace(placed, failed=answer.failed, profile=answer.profile)
