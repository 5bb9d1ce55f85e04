"""What NVIDIA's management library says of the first CUDA device that is visible, where it is at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from amp_rewrite.process import fork_safe

Answer = TypeVar("Answer")


def ask(question: Callable[[Any, Any], Answer]) -> Answer | None:
    """The answer of NVML to a question that gets its module and the device's handle.

    None without the package nvidia-ml-py, without a driver, or where NVML cannot tell.
    """
    try:
        nvml = fork_safe.import_module("pynvml")
        nvml.nvmlInit()
        return question(nvml, _handle(nvml))
    except Exception:  # NVML has its own errors, and nothing here must depend on it
        return None


def _handle(nvml: Any) -> Any:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    return nvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)
