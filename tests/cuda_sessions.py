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

from amp_rewrite.errors import MissingPackageError
from amp_rewrite.placement import opening, placing, stub_libraries
from amp_rewrite.running.sessions import Device


def reason():
    """Why CUDA's provider cannot be asked here; nothing where it can be."""
    try:
        stub_libraries.installed()
    except MissingPackageError:
        return "onnxruntime-gpu is not installed"
    has_gcc = shutil.which("gcc") is not None and shutil.which("nm") is not None
    return (
        "" if has_gcc or not opening.needs_stubs(Device.CUDA) else "there is no GPU, and gcc is not installed"
    )


MARKS = [pytest.mark.cuda, pytest.mark.slow, pytest.mark.skipif(bool(reason()), reason=reason())]


def marks(test):
    """Marks a test that needs the CUDA provider."""
    for mark in MARKS:
        test = mark(test)
    return test


@contextlib.contextmanager
def cuda_placer():
    """A function that gives the placement of a model on CUDA."""
    with placing.placer(Device.CUDA) as place, tempfile.TemporaryDirectory() as folder:

        def placed(model):
            onnx.save(model, Path(folder) / "model.onnx")
            return place(Path(folder) / "model.onnx", None)

        yield placed
