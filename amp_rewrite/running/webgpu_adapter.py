"""Whether WebGPU computes in half here: a model of two nodes is tried, whose square overflows half."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from onnx import parser

from amp_rewrite.errors import ModelError, OptionError, RunError
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device

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
    if not np.isinf(_square(_open())):
        raise OptionError(
            "the WebGPU adapter here computes half in a wider type, and proves nothing", remedy=_MESA
        )


def _open() -> Any:
    try:
        return sessions.open_session(_PROBE, Device.WEBGPU)
    except ModelError as error:
        raise OptionError("WebGPU finds no adapter here, neither a GPU nor software", remedy=_MESA) from error


def _square(session: Any) -> Any:
    feeds = {"x": np.full(1, 300, np.float16), "small": np.full(1, 1e-3, np.float16)}
    try:
        return sessions.run_session(session, feeds)["y"][0]
    except RunError as error:
        raise OptionError(
            "the WebGPU adapter here has no half arithmetic (shaderFloat16)",
            remedy=f"choose another one with VK_ICD_FILENAMES, or {_MESA}",
        ) from error


_MESA = (
    "install Mesa 25 or newer, whose Vulkan driver for CPUs has half "
    "(Debian 12: apt-get install -t bookworm-backports mesa-vulkan-drivers)"
)
