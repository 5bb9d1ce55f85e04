"""A process that opens models in onnxruntime."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_rewrite.errors import FeedError, ResourceError
from amp_rewrite.placement import profile
from amp_rewrite.placement.profile import Profile
from amp_rewrite.process.child_process import ChildProcess, CrashError
from amp_rewrite.running import sessions
from amp_rewrite.running.runtime_errors import is_scarce, reason
from amp_rewrite.running.sessions import Device, Feeds, Libraries

# The process that opens sessions: no crash of onnxruntime reaches the user's process.
# It reads requests from its standard input and answers each; all else that is printed, onnxruntime's log
# included, goes to the file that the request names.


@dataclass(frozen=True, slots=True)
class Request:
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
class Answer:
    """The answer to a request: why the model does not load, or why it does not run; both empty where it does.

    `profile` is that of the run, None without one.
    """

    refused: str = ""
    failed: str = ""
    profile: Profile | None = None


def opened(request: Request) -> Answer:
    """Open the session, and run it if the request has feeds; raise ResourceError for lack of memory."""
    runtime = sessions.onnxruntime()
    try:
        # the fallback would build a second failing session, for the CPU, and overwrite the saved graph
        session = runtime.InferenceSession(
            str(request.model), _options(runtime, request), providers=_providers(request), enable_fallback=0
        )
    except Exception as error:  # onnxruntime has no common class for its errors
        if is_scarce(error):
            raise ResourceError(f"onnxruntime does not open the model ({reason(error)})") from error
        return Answer(refused=reason(error))
    if _PROVIDERS[request.device] not in session.get_providers():
        return Answer(refused=f"onnxruntime cannot start {_PROVIDERS[request.device]}")
    return Answer() if request.feeds is None else _ran(session, request.feeds)


_PROVIDERS: Mapping[Device, str] = {Device.CUDA: "CUDAExecutionProvider", Device.CPU: "CPUExecutionProvider"}


def _providers(request: Request) -> list[str]:
    return list(dict.fromkeys((_PROVIDERS[request.device], _PROVIDERS[Device.CPU])))


def _options(runtime: Any, request: Request) -> Any:
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


def _ran(session: Any, feeds: Feeds) -> Answer:
    try:
        sessions.run_session(session, feeds)
    except FeedError as error:
        return Answer(failed=error.problem)
    return Answer(profile=profile.read(Path(session.end_profiling())))


def _answer(request: Request) -> Answer | ResourceError:
    _print_to(request.log)
    runtime = sessions.onnxruntime()
    if request.device is Device.CUDA and hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    try:
        return opened(request)
    except ResourceError as error:
        return error


def _print_to(file: Path) -> None:
    with file.open("wb") as opened_file:
        os.dup2(opened_file.fileno(), 1)
        os.dup2(opened_file.fileno(), 2)


class SessionProcess:
    """A process that opens sessions; it starts with the first request, and anew after a crash."""

    def __init__(self) -> None:
        self._child = ChildProcess(_answer)

    def opened(self, request: Request) -> Answer:
        """Return the answer to a request; raise TimeLimitError, ResourceError, and RunError if no process can
        be started.
        """
        try:
            answer = self._child.ask(request)
        except CrashError as error:
            return Answer(refused=f"onnxruntime crashes ({error})")
        if isinstance(answer, ResourceError):
            raise answer
        return answer

    def end(self) -> None:
        """End the process, if there is one."""
        self._child.end()


@contextlib.contextmanager
def session_process() -> Generator[SessionProcess]:
    """Yield a process for sessions; raise MissingPackageError without onnxruntime."""
    sessions.onnxruntime()
    process = SessionProcess()
    try:
        yield process
    finally:
        process.end()
