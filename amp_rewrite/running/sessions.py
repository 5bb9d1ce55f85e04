"""onnxruntime, where it is installed: sessions on the CPU, and what they give."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from amp_rewrite.errors import FeedError, MissingPackageError, ModelError

Feeds = Mapping[str, Any]
"""The inputs of a run, by name."""


def onnxruntime() -> Any:
    """The module; MissingPackageError where it is not installed."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingPackageError("onnxruntime", extra="cpu", purpose="running a model") from error


def run(model: onnx.ModelProto | str | Path, feeds: Feeds) -> dict[str, Any]:
    """The outputs of a model on the CPU, by name.

    Raises ModelError when onnxruntime refuses the model, and FeedError when it refuses the inputs.
    """
    session = open_session(model)
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))
    except Exception as error:  # onnxruntime has no common class for its errors
        raise FeedError(f"the run failed ({_first_line(error)})") from error


def open_session(model: onnx.ModelProto | str | Path) -> Any:
    """A session on the CPU provider; ModelError when onnxruntime refuses the model."""
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    try:
        return runtime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise ModelError(f"onnxruntime refuses the model ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
