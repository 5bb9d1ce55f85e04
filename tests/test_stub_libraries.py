"""The stub CUDA libraries: what they are built from, where they go, and what is said where they cannot be."""

import importlib.util
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from amp_rewrite.errors import MissingPackageError, OptionError, OutputError
from amp_rewrite.placement import opening, stub_libraries
from amp_rewrite.placement.stub_libraries import Installed
from tests import text
from tests.test_cli import failure

has_gcc = shutil.which("gcc") is not None and shutil.which("nm") is not None
needs_gcc = pytest.mark.skipif(not has_gcc, reason="gcc or nm is not installed")

PROVIDER = """
int cudaMalloc(void **, unsigned long);
int cudaNothing(void);
int cuQuiet(void);
const char *looked_up[] = {"\\0cudnnCreate", "\\0cudnnSleep", "\\0cufft2"};
int provider(void) { return cudaMalloc(0, 0) + cudaNothing() + cuQuiet(); }
"""


@pytest.fixture
def provider(tmp_path):
    """A library that imports as onnxruntime's provider does, from a libcudart of a version."""

    def built(version=13):
        folder = tmp_path / f"cuda{version}"
        folder.mkdir()
        (folder / "rt.c").write_text("int cudaMalloc(void) { return 0; } int cudaNothing(void) { return 0; }")
        (folder / "rt.map").write_text(f"libcudart.so.{version} {{ global: *; }};")
        (folder / "provider.c").write_text(PROVIDER)
        runtime = folder / f"libcudart.so.{version}"
        shared = ["gcc", "-shared", "-fPIC", "-w"]
        scripts = [f"-Wl,-soname,{runtime.name}", f"-Wl,--version-script={folder / 'rt.map'}"]
        subprocess.run([*shared, *scripts, "-o", runtime, folder / "rt.c"], check=True)
        found = folder / "provider.so"
        subprocess.run([*shared, "-o", found, folder / "provider.c", runtime], check=True)
        return Installed("1.99.0", (found,))

    return built


def exported(library):
    """The functions of a library with their versions, and whether each is weak."""
    listed = subprocess.run(["nm", "-D", library], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return {row[-1]: row[-2] == "W" for row in rows if row[-2] in "TW" and len(row) == 3}


@needs_gcc
def test_what_a_provider_needs_is_built(provider, tmp_path):
    """What it imports and what it looks up; written functions override the generated, which are weak."""
    target = tmp_path / "lib"
    target.mkdir()
    stub_libraries.build(provider(), target)
    assert {file.name for file in target.iterdir()} == {one.soname for one in stub_libraries.LIBRARIES}
    runtime = exported(target / "libcudart.so.13")
    assert runtime["cudaMalloc@@libcudart.so.13"] is False
    assert runtime["cudaNothing@@libcudart.so.13"] is True
    assert exported(target / "libcuda.so.1")["cuQuiet@@libcuda.so.1"] is True
    cudnn = exported(target / "libcudnn.so.9")
    assert (cudnn["cudnnCreate@@libcudnn.so.9"], cudnn["cudnnSleep@@libcudnn.so.9"]) == (False, True)


@needs_gcc
def test_libraries_are_built_once_into_the_cache(provider, tmp_path, monkeypatch):
    """By onnxruntime's version, with nothing half done beside them."""
    runtime = provider()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stub_libraries, "installed", lambda: runtime)
    found = stub_libraries.folder()
    assert found.parent == tmp_path / "cache" / "amp-rewrite" / "cuda-stub"
    assert found.name.startswith("1.99.0-")
    assert list(found.parent.iterdir()) == [found]
    monkeypatch.setattr(stub_libraries, "build", lambda *_: pytest.fail("they are built already"))
    assert stub_libraries.folder() == found
    monkeypatch.setattr(stub_libraries, "installed", lambda: replace(runtime, version="2.0.0"))
    with pytest.raises(pytest.fail.Exception):
        stub_libraries.folder()


@needs_gcc
def test_another_cuda_is_refused(provider, tmp_path):
    """The structures in C are those of CUDA 13."""
    with pytest.raises(OptionError, match=r"1\.99\.0 is not built for CUDA 13"):
        stub_libraries.build(provider(12), tmp_path)


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    """With what would help."""
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stub_libraries, "installed", lambda: Installed("1.99.0", ()))
    with pytest.raises(OutputError, match="set XDG_CACHE_HOME"):
        stub_libraries.folder()


def test_a_relative_cache_is_ignored(monkeypatch):
    """As the XDG specification has it."""
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setattr(stub_libraries, "installed", lambda: Installed("1.99.0", ()))
    monkeypatch.setattr(stub_libraries, "_publish", lambda *_: None)
    assert stub_libraries.folder().parent == Path("~/.cache/amp-rewrite/cuda-stub").expanduser()


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model on a machine that has onnxruntime-gpu, no CUDA, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stub_libraries, "installed", lambda: Installed("1.99.0", ()))
    monkeypatch.setattr(opening, "needs_stubs", lambda _: True)
    path = tmp_path / "model.onnx"
    onnx.save(text.model("g (float[4] x) => (float[4] y) { y = Relu (x) }"), path)
    return path


def test_without_gcc_there_is_one_line(model, monkeypatch):
    """Exit code 2, and what to install."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    line = failure("placement", model)
    assert "placement on CUDA needs gcc" in line
    assert "install gcc" in line


def test_without_onnxruntime_gpu_there_is_one_line(model, monkeypatch):
    """Exit code 2, and what to install."""
    monkeypatch.undo()
    monkeypatch.setattr(stub_libraries.importlib.util, "find_spec", lambda _: None)
    opening.needs_stubs.cache_clear()
    line = failure("placement", model)
    assert "pip install onnxruntime-gpu" in line
    with pytest.raises(MissingPackageError):
        stub_libraries.installed()


def test_in_an_installation_for_the_cpu_nothing_is_installed_beside_it(model, monkeypatch, tmp_path):
    """The two packages share a folder; the CPU does without."""
    monkeypatch.undo()
    (tmp_path / "capi").mkdir()
    spec = importlib.util.spec_from_file_location("onnxruntime", tmp_path / "__init__.py")
    monkeypatch.setattr(stub_libraries.importlib.util, "find_spec", lambda _: spec)
    opening.needs_stubs.cache_clear()
    line = failure("placement", model)
    assert "pip install" not in line
    assert "in an environment without onnxruntime, which it would overwrite, or give --provider cpu" in line
