"""Sessions on WebGPU, each in a process of its own: the provider, or its driver, crashes on some models."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import parser

from amp_rewrite.errors import AmpRewriteError, ModelError, OptionError, RunError
from amp_rewrite.process import child_process
from amp_rewrite.process.child_process import ChildProcess, CrashError
from amp_rewrite.running import sessions, webgpu
from amp_rewrite.running.sessions import Device, Feeds, Libraries, Runnable

# Whether WebGPU computes in half here: a model of two nodes is tried, whose square overflows half.

_PROBE = parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
probe (float16[1] x, float16[1] small) => (float16[1] y) {
  square = Mul (x, x)
  y = Mul (square, small)
}
""")


@functools.cache
def require() -> None:
    """Tries an adapter; it is not kept open, since what a session leaves there changes what later ones give.

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
    """An input or output of a session, as onnxruntime's NodeArg has it."""

    name: str
    type: str
    shape: list[Any]


class Opened(NamedTuple):
    """What a session says of itself; `placed` is that of `webgpu`."""

    inputs: list[Argument]
    outputs: list[Argument]
    placed: str


class WitnessSession:
    """A session on WebGPU in a process of its own. Raises ModelError as `sessions.open_session` does."""

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
        """How many nodes run on WebGPU, of how many."""
        return self._opened.placed

    def get_inputs(self) -> list[Argument]:
        """The inputs."""
        return self._opened.inputs

    def get_outputs(self) -> list[Argument]:
        """The outputs."""
        return self._opened.outputs

    def run(self, feeds: Feeds, wanted: Container[str] | None) -> dict[str, Any]:
        """As `sessions.run_session`."""
        try:
            return self._asked((dict(feeds), wanted))
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
    """A session of `sessions.open_session`, on WebGPU in a process of its own, for `run_session` here."""
    if device is Device.WEBGPU:
        return WitnessSession(model, libraries, optimised=optimised, folder=folder)
    return sessions.open_session(model, device, libraries, optimised=optimised, folder=folder)


def run_session(session: Any, feeds: Feeds, wanted: Container[str] | None = None) -> dict[str, Any]:
    """The outputs of a session by name, or only those in `wanted`; RunError if the run fails."""
    if isinstance(session, WitnessSession):
        return session.run(feeds, wanted)
    return sessions.run_session(session, feeds, wanted)


def serve() -> None:
    """In the process of a session: opens it with the first request, and runs it with each further one."""
    opened: list[Any] = []

    def answer(request: tuple[Any, ...]) -> Any:
        try:
            if opened:
                return sessions.run_session(opened[0], *request)
            model, libraries, optimised, folder = request
            session = sessions.open_session(
                model, Device.WEBGPU, libraries, optimised=optimised, folder=folder
            )
        except AmpRewriteError as error:
            return error
        opened.append(session)
        sides = session.get_inputs(), session.get_outputs()
        inputs, outputs = ([Argument(each.name, each.type, each.shape) for each in side] for side in sides)
        return Opened(inputs, outputs, webgpu.placed(session))

    child_process.serve(answer)
