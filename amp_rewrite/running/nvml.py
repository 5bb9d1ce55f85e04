"""Queries to NVML, NVIDIA's management library, about the first visible CUDA device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from amp_rewrite.process import fork_safe

Answer = TypeVar("Answer")


def query(question: Callable[[Any, Any], Answer]) -> Answer | None:
    """The result of `question`, which is called with the module `pynvml` and the handle of the device.

    None without the package nvidia-ml-py, without a driver, or if NVML raises an error.
    """
    try:
        nvml = fork_safe.import_module("pynvml")
        nvml.nvmlInit()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        if first.startswith("GPU-"):
            return question(nvml, nvml.nvmlDeviceGetHandleByUUID(first))
        return question(nvml, nvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0))
    except Exception:  # NVML has its own errors, and nothing here may depend on it
        return None
