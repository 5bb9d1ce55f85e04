"""WebGPU sessions, each in a child process, as the provider or its driver crashes on some models."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Container
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import parser

from amp_rewrite.errors import AmpRewriteError, ModelError, OptionError, RunError
from amp_rewrite.process import child_process
from amp_rewrite.process.child_process import ChildProcess, CrashError
from amp_rewrite.running import sessions, webgpu
from amp_rewrite.running.sequences import Steps
from amp_rewrite.running.sessions import Device, Feeds, Libraries, Runnable

# A probe for half arithmetic on WebGPU: a model of two nodes whose square overflows half.

_PROBE = parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
probe (float16[1] x, float16[1] small) => (float16[1] y) {
  square = Mul (x, x)
  y = Mul (square, small)
}
""")


@functools.cache
def require() -> None:
    """Probe an adapter without keeping its session, as an open session affects the results of later ones.

    Raises MissingPackageError without onnxruntime or its package for WebGPU, and OptionError where there is
    no adapter, or none with half (WGSL's `f16`, Vulkan's shaderFloat16).
    """
    feeds = {"x": np.full(1, 300, np.float16), "small": np.full(1, 1e-3, np.float16)}
    try:
        square = sessions.run_session(sessions.open_session(_PROBE, Device.WEBGPU), feeds)["y"][0]
    except ModelError as error:
        raise OptionError("WebGPU finds no adapter here, neither a GPU nor software", remedy=_MESA) from error
    except RunError as error:
        raise OptionError(
            "the WebGPU adapter here has no half arithmetic (shaderFloat16)",
            remedy=f"choose another one with VK_ICD_FILENAMES, or {_MESA}",
        ) from error
    if not np.isinf(square):
        raise OptionError(
            "the WebGPU adapter here computes half in a wider type, and proves nothing", remedy=_MESA
        )


_MESA = (
    "install Mesa 25 or newer, whose Vulkan driver for CPUs has half "
    "(Debian 12: apt-get install -t bookworm-backports mesa-vulkan-drivers)"
)


class Argument(NamedTuple):
    """An input or output of a session, like onnxruntime's NodeArg."""

    name: str
    type: str
    shape: list[Any]


class Opened(NamedTuple):
    """The signature of an open session, and its placement (`webgpu.placed`)."""

    inputs: list[Argument]
    outputs: list[Argument]
    placed: str


class WitnessSession:
    """A WebGPU session in a child process. Raises ModelError as `sessions.open_session` does."""

    def __init__(
        self, model: Runnable, libraries: Libraries, *, optimised: bool, folder: Path | None = None
    ) -> None:
        self._child = ChildProcess(_CODE)
        weakref.finalize(self, self._child.end)
        try:
            self._opened: Opened = self._asked((model, libraries, optimised, folder))
        except CrashError as error:
            raise ModelError(f"onnxruntime's WebGPU provider crashes on the model ({error})") from error

    @property
    def placed(self) -> str:
        """The number of nodes on WebGPU, and of all nodes, in words."""
        return self._opened.placed

    def get_inputs(self) -> list[Argument]:
        """Return the inputs."""
        return self._opened.inputs

    def get_outputs(self) -> list[Argument]:
        """Return the outputs."""
        return self._opened.outputs

    def run(self, feeds: Feeds, selection: Container[str] | None) -> dict[str, Any]:
        """Run the session like `sessions.run_session`."""
        try:
            return self._asked((dict(feeds), selection))
        except CrashError as error:
            raise RunError(f"onnxruntime's WebGPU provider crashes in the run ({error})") from error

    def _asked(self, request: tuple[Any, ...]) -> Any:
        answer = self._child.ask(request)
        if isinstance(answer, AmpRewriteError):
            raise answer
        return answer


_CODE = "from amp_rewrite.running import witness_sessions; witness_sessions.serve()"


def open_session(
    model: Runnable,
    device: Device,
    libraries: Libraries = (),
    *,
    optimised: bool = True,
    folder: Path | None = None,
) -> Any:
    """Open a session for `run_session`: by `sessions.open_session`, or in a child process on WebGPU."""
    if device is Device.WEBGPU:
        return WitnessSession(model, libraries, optimised=optimised, folder=folder)
    return sessions.open_session(model, device, libraries, optimised=optimised, folder=folder)


def run_session(session: Any, feeds: Feeds, selection: Container[str] | None = None) -> dict[str, Any]:
    """Return all or the selected outputs of a session by name; raise RunError if the run fails."""
    if isinstance(feeds, Steps):
        return feeds.run(partial(run_session, session))
    if isinstance(session, WitnessSession):
        return session.run(feeds, selection)
    return sessions.run_session(session, feeds, selection)


def serve() -> None:
    """Serve in the child process: open the session on the first request, and run it on each further one."""
    current: list[Any] = []

    def answer(request: tuple[Any, ...]) -> Any:
        try:
            if current:
                return sessions.run_session(current[0], *request)
            model, libraries, optimised, folder = request
            session = sessions.open_session(
                model, Device.WEBGPU, libraries, optimised=optimised, folder=folder
            )
        except AmpRewriteError as error:
            return error
        current.append(session)
        sides = session.get_inputs(), session.get_outputs()
        inputs, outputs = ([Argument(each.name, each.type, each.shape) for each in side] for side in sides)
        return Opened(inputs, outputs, webgpu.placed(session))

    child_process.serve(answer)
