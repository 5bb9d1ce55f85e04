"""Tests that ask onnxruntime's CUDA provider: as it is where CUDA works, else against the stub libraries.

They are slow, as onnxruntime-gpu is: `marks` go on a test and MARKS on a file; `cuda_placer` places models in
one process.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

import onnx
import pytest

from amp_rewrite.placement import placing
from amp_rewrite.running.sessions import Device
from tools import stub_libraries


def reason():
    """Why CUDA's provider cannot be asked here; nothing where it can be."""
    if stub_libraries.installed() is None:
        return "onnxruntime-gpu is not installed"
    has_gcc = shutil.which("gcc") is not None and shutil.which("nm") is not None
    return "" if has_gcc or not stub_libraries.needed() else "there is no GPU, and gcc is not installed"


MARKS = [pytest.mark.cuda, pytest.mark.slow, pytest.mark.skipif(bool(reason()), reason=reason())]


def marks(test):
    """Marks a test that needs the CUDA provider."""
    for mark in MARKS:
        test = mark(test)
    return test


@contextlib.contextmanager
def cuda_placer():
    """A function that gives the placement of a model on CUDA, or of a file with one."""
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as folder:
        for name, value in stub_libraries.environment().items():
            patched.setenv(name, value)
        with placing.placer(Device.CUDA) as place:

            def placed(model, feeds=None):
                if isinstance(model, onnx.ModelProto):
                    onnx.save(model, Path(folder) / "model.onnx")
                    model = Path(folder) / "model.onnx"
                return place(model, feeds)

            yield placed


def worsened(original, result):
    """What a result has more of than its original, and no rewrite should raise."""
    pairs = {
        "inserted Casts": (original.inserted_casts, result.inserted_casts),
        "copies": (original.copies, result.copies),
        "nodes on the CPU": (original.cpu_nodes, result.cpu_nodes),
    }
    return [f"{what} {before} -> {after}" for what, (before, after) in pairs.items() if after > before]
