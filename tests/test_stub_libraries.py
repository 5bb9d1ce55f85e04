"""The stub CUDA libraries: what they are built from, where they go, and what is said where they cannot be."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from amp_rewrite.errors import OptionError, OutputError
from tools import stub_libraries
from tools.stub_libraries import Installed

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
def test_another_cuda_is_refused(provider, tmp_path):
    """The structures in C are those of CUDA 13."""
    with pytest.raises(OptionError, match=r"1\.99\.0 is not built for CUDA 13"):
        stub_libraries.build(provider(12), tmp_path)


@pytest.fixture
def without(monkeypatch):
    """An onnxruntime of which nothing is built yet."""
    monkeypatch.setattr(stub_libraries, "installed", lambda: Installed("1.99.0", ()))
    return monkeypatch


def test_libraries_are_built_once_into_the_cache(tmp_path, without):
    """By onnxruntime's version, with nothing half done beside them."""
    built = []
    without.setattr(stub_libraries, "build", lambda runtime, _: built.append(runtime.version))
    without.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = stub_libraries.folder()
    assert found.parent == tmp_path / "cache" / "amp-rewrite" / "cuda-stub"
    assert found.name.startswith("1.99.0-")
    assert list(found.parent.iterdir()) == [found]
    assert stub_libraries.folder() == found
    without.setattr(stub_libraries, "installed", lambda: Installed("2.0.0", ()))
    assert stub_libraries.folder() != found
    assert built == ["1.99.0", "2.0.0"]


def test_where_the_cache_is(tmp_path, without):
    """One that cannot be written is said, with what would help; a relative one is ignored, as XDG has it."""
    (tmp_path / "cache").write_text("a file")
    without.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(OutputError, match="set XDG_CACHE_HOME"):
        stub_libraries.folder()
    without.setenv("XDG_CACHE_HOME", "here")
    without.setattr(stub_libraries, "_publish", lambda *_: None)
    assert stub_libraries.folder().parent == Path("~/.cache/amp-rewrite/cuda-stub").expanduser()


def test_a_command_runs_with_them(tmp_path, without):
    """Where they are needed they come first, and its exit code is that of the tool; else nothing changes."""
    without.setattr(stub_libraries, "folder", lambda: tmp_path)
    without.setattr(stub_libraries, "needed", lambda: True)
    without.setenv("LD_LIBRARY_PATH", "/before")
    assert stub_libraries.environment()["LD_LIBRARY_PATH"] == f"{tmp_path}:/before"
    code = "import os, sys; sys.exit(int(os.environ['LD_LIBRARY_PATH'].startswith(sys.argv[1])) + 4)"
    without.setattr(sys, "argv", ["tool", sys.executable, "-c", code, str(tmp_path)])
    with pytest.raises(SystemExit, match="5"):
        stub_libraries.main()
    without.setattr(stub_libraries, "needed", lambda: False)
    assert stub_libraries.environment()["LD_LIBRARY_PATH"] == "/before"


def test_what_is_missing_is_said(tmp_path, without):
    """Without gcc one line says what to install; without onnxruntime-gpu none are needed."""
    without.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    without.setattr(stub_libraries, "needed", lambda: True)
    without.setattr(shutil, "which", lambda _: None)
    without.setattr(sys, "argv", ["tool", "true"])
    with pytest.raises(SystemExit, match="stub libraries need gcc; install gcc"):
        stub_libraries.main()
    without.undo()
    without.setattr(stub_libraries.importlib.util, "find_spec", lambda _: None)
    stub_libraries.needed.cache_clear()
    assert stub_libraries.installed() is None
    assert stub_libraries.needed() is False
    stub_libraries.needed.cache_clear()
