"""A model to instrument for several sessions: read once, with large weights in files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Generator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from amp_rewrite.model import external_data, inlining, loading, proto_traversal, serialization, writing
from amp_rewrite.model.loading import Loaded
from amp_rewrite.onnx_types import element_types, shape_inference
from amp_rewrite.policy.options import ExternalData
from amp_rewrite.process import startup
from amp_rewrite.rewriting import plan_files, widened_model
from amp_rewrite.running import reductions
from amp_rewrite.running.reductions import FloatTypes
from amp_rewrite.running.sessions import Runnable

LARGE = 1 << 24
"""Weights of more bytes than these go into a temporary file: each session would take a copy of them, and so
would each step on the way to it.
"""


@dataclass(frozen=True, slots=True)
class LightModel:
    """A model with its functions inlined, the types of its floats, and its opset.

    `fingerprint` identifies the original model (`plan_files.fingerprint`). Its data files are relative to
    `folder`; None without any.
    """

    fingerprint: str
    proto: onnx.ModelProto
    types: FloatTypes
    opset: int
    folder: Path | None

    def copy(self) -> onnx.ModelProto:
        """Return an editable copy of the model."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        return proto


@contextlib.contextmanager
def light(model: Runnable) -> Generator[LightModel]:
    """Yield the model, for use within the context.

    Raises ModelError if it cannot be read, and OutputError if there is no room for a temporary file.
    """
    with tempfile.TemporaryDirectory() as folder:
        with startup.paused():
            readable = _load(model, Path(folder))
        yield readable


def _load(model: Runnable, folder: Path) -> LightModel:
    loaded = loading.load(model)
    fingerprint = plan_files.fingerprint(loaded.model.graph)
    inlining.inline(loaded.model)
    if widened_model.has_half(loaded.model, _NO_KERNELS):
        widened_model.widen(loaded.model, _NO_KERNELS, kept_io=())
    types = reductions.float_types(loaded.model, shape_inference.types(loaded.model))
    opset = element_types.default_opset(loaded.model.graph.opset_imports)
    if loaded.external or external_data.size_of(loaded.model) <= LARGE:
        proto = serialization.to_proto(loaded)
        return LightModel(fingerprint, proto, types, opset, _relocate(proto, loaded.external))
    return LightModel(fingerprint, _externalise(loaded, folder / "model.onnx"), types, opset, folder)


_NO_KERNELS = (ir.DataType.BFLOAT16,)
"""Half types for which onnxruntime's CPU provider has few kernels: what has them is observed in float32."""


def _externalise(loaded: Loaded, path: Path) -> onnx.ModelProto:
    writing.save(loaded, path, ExternalData("always"))
    return onnx.load(path, load_external_data=False)


def _relocate(proto: onnx.ModelProto, files: Collection[Path]) -> Path | None:
    """Make data file paths relative to a folder, as runtimes require, and return it; None without files."""
    if not files:
        return None
    folder = Path(os.path.commonpath([file.parent for file in files]))
    for graph in proto_traversal.graphs(proto.graph):
        for tensor in graph.initializer:
            for entry in tensor.external_data:
                if entry.key == _LOCATION:
                    entry.value = os.path.relpath(entry.value, folder)
    return folder


_LOCATION = "location"
