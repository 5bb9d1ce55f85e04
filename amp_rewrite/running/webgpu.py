"""onnxruntime's WebGPU provider: a plugin library, selected by its devices.

It computes half nodes in half, on a GPU or with Mesa's Vulkan driver for CPUs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Generator
from typing import Any

from amp_rewrite.errors import MissingPackageError
from amp_rewrite.process import startup

PROVIDER = "WebGpuExecutionProvider"
"""The name of the provider in sessions and profiles."""

_PACKAGE = "onnxruntime_ep_webgpu"
_LOCK = threading.Lock()


def select(runtime: Any, options: Any) -> None:
    """Select WebGPU's devices in session options: one per adapter, and one that may be software. Nodes
    without a WebGPU kernel run on the CPU.

    Raises MissingPackageError without the package onnxruntime-ep-webgpu.
    """
    options.add_session_config_entry(_RECORD_PLACES, "1")
    with _LOCK:
        if not (devices := _registered(runtime)):
            try:
                package = startup.import_module(_PACKAGE)
            except ImportError as error:
                purpose = "running a model on WebGPU"
                raise MissingPackageError("onnxruntime-ep-webgpu", extra="webgpu", purpose=purpose) from error
            os.environ.setdefault(_SOFTWARE, "1")
            runtime.set_default_logger_severity(_FATAL_ONLY)  # it warns about software adapters
            runtime.register_execution_provider_library(_PACKAGE, package.get_library_path())
            devices = _registered(runtime)
    options.add_provider_for_devices(devices, {})


def _registered(runtime: Any) -> list[Any]:
    return [device for device in runtime.get_ep_devices() if device.ep_name == PROVIDER]


def placed(session: Any) -> str:
    """Return the number of WebGPU nodes of a session, and that of all nodes after fusion, in words."""
    parts = [(part.ep_name, len(part.get_nodes())) for part in session.get_provider_graph_assignment_info()]
    there = sum(count for name, count in parts if name == PROVIDER)
    return f"{there:,} of {sum(count for _, count in parts):,} nodes"


_RECORD_PLACES = "session.record_ep_graph_assignment_info"


_SOFTWARE = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"
"""The environment variable that makes the provider offer a device without a GPU."""
_FATAL_ONLY = 4


@contextlib.contextmanager
def without_notes() -> Generator[None]:
    """Silence standard error: Dawn prints two lines on limits when it opens an adapter, at any log level."""
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
