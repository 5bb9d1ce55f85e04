"""A model to instrument for several sessions: read once, with large weights in files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import onnx
import onnx_ir as ir

from amp_rewrite.model import external_data, inlining, loading, proto_traversal, serialization, writing
from amp_rewrite.model.loading import Loaded
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.options import ExternalData
from amp_rewrite.preparing import value_shapes
from amp_rewrite.process import startup
from amp_rewrite.rewriting import plan_files, widened_model
from amp_rewrite.running.sessions import Runnable

LARGE = 1 << 24
"""Weights of more bytes than these go into a temporary file: each session would take a copy of them, and so
would each step on the way to it.
"""


@dataclass(frozen=True, slots=True)
class LightModel:
    """A model with its functions inlined, and with the types of its values; `fingerprint` identifies the
    original model (`plan_files.fingerprint`).
    """

    fingerprint: str
    loaded: Loaded

    @property
    def opset(self) -> int:
        """The version of the default domain that it imports."""
        return element_types.default_opset(self.loaded.model.graph.opset_imports)

    def edited(self, edit: Callable[[ir.Model], T]) -> tuple[T, onnx.ModelProto, Path | None]:
        """Edit a copy of the model; return what `edit` returns, the edited copy, and the folder that its data
        files are relative to, as runtimes require; None without any.
        """
        with startup.paused():
            copy = replace(self.loaded, model=inlining.copied(self.loaded.model))
            result = edit(copy.model)
            return result, *runnable_proto(copy)


T = TypeVar("T")


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
    for value, kind in value_shapes.types(loaded.model).items():
        value.type = kind
    if not loaded.external and external_data.size_of(loaded.model) > LARGE:
        writing.save(loaded, folder / "model.onnx", ExternalData("always"))
        loaded = loading.load(folder / "model.onnx")
    return LightModel(fingerprint, loaded)


_NO_KERNELS = (ir.DataType.BFLOAT16,)
"""Half types for which onnxruntime's CPU provider has few kernels: what has them is observed in float32."""


def runnable_proto(loaded: Loaded) -> tuple[onnx.ModelProto, Path | None]:
    """Return the protobuf of a model, and the folder that its data files are relative to, as runtimes
    require; None without any.
    """
    proto = serialization.to_proto(loaded)
    if not loaded.external:
        return proto, None
    folder = Path(os.path.commonpath([file.parent for file in loaded.external]))
    for graph in proto_traversal.graphs(proto.graph):
        for tensor in graph.initializer:
            for entry in tensor.external_data:
                if entry.key == _LOCATION:
                    entry.value = os.path.relpath(entry.value, folder)
    return proto, folder


_LOCATION = "location"
