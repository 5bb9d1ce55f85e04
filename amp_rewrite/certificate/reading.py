"""Reads a model as a protobuf, which is not changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from onnx import ModelProto

from amp_rewrite.certificate.tensors import Folder
from amp_rewrite.certificate.written_tensors import WrittenTensors
from amp_rewrite.errors import EXPORT_AGAIN, ModelError
from amp_rewrite.files import reading


@dataclass(frozen=True, slots=True)
class InFolder:
    """A model in memory, and the folder that its data files lie in."""

    model: ModelProto
    folder: Path


@dataclass(frozen=True, slots=True)
class JustWritten:
    """The path of a model, and what was seen of its tensors while its data files were written."""

    path: Path
    tensors: WrittenTensors


Source = str | os.PathLike[str] | bytes | ModelProto | InFolder | JustWritten
"""A path, serialised bytes, or a ModelProto, of which a folder may be known."""


def read(source: Any) -> tuple[ModelProto, Folder | None, str]:
    """A model, the folder of its data files, None where that is not known, and where it comes from.

    Raises ModelError for what is missing, truncated, or no model.
    """
    if isinstance(source, ModelProto):
        return source, None, "the given model"
    if isinstance(source, InFolder):
        return source.model, Folder.of(source.folder / "model.onnx"), "the given model"
    if isinstance(source, bytes):
        return _parsed(lambda: source, "the given bytes"), None, "the given bytes"
    if isinstance(source, JustWritten):
        return _in_file(source.path, source.tensors)
    if isinstance(source, (str, os.PathLike)):
        return _in_file(Path(source))
    raise ModelError(f"{type(source).__name__} is not a model", remedy="give a path, bytes, or a ModelProto")


def _in_file(path: Path, written: WrittenTensors | None = None) -> tuple[ModelProto, Folder, str]:
    return _parsed(lambda: reading.read(path), str(path)), Folder.of(path, written), str(path)


def _parsed(data: Callable[[], bytes], where: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data())
    except FileNotFoundError as error:
        raise ModelError("there is no such file", where=where, remedy="check the path") from error
    except OSError as error:
        raise ModelError(reading.problem(error), where=where, remedy=reading.remedy(error)) from error
    except (DecodeError, ValueError) as error:
        raise ModelError(
            "is not an ONNX model, or only a part of one", where=where, remedy=EXPORT_AGAIN
        ) from error
    if not (model.HasField("ir_version") and model.HasField("graph")):
        raise ModelError("is not an ONNX model", where=where, remedy=EXPORT_AGAIN)
    return model
