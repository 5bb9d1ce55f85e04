"""Stub CUDA libraries, against which onnxruntime's CUDA provider opens sessions on a machine without a GPU.

They are compiled by gcc, once for each version of onnxruntime, into the user's cache. The functions whose
results matter are written in C (`tools/cuda_stub`); every other one that the provider imports or looks up by
name is generated, and returns success.

    python tools/stub_libraries.py amp-rewrite placement MODEL --provider cuda

runs a command with them where CUDA does not work. The graphs are those that onnxruntime makes; nothing is
computed, so that a model whose shapes depend on values may fail to run. Needs gcc and onnxruntime-gpu
(`pip install --no-deps onnxruntime-gpu` is enough).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_rewrite.errors import AmpRewriteError, OptionError, OutputError


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library to stand in for: `lookups` matches the names that the provider looks up in it when it
    runs, and `imports` those that it imports without saying from which library.
    """

    name: str
    soname: str
    lookups: str = ""
    imports: str = ""


_TENSORRT = r"\w*(Infer|NvOnnx|Plugin)\w*"
"""Libraries of the TensorRT provider, which onnxruntime also loads when its kernels are queried."""

LIBRARIES = (
    Library("cudart", "libcudart.so.13"),
    Library("cublas", "libcublas.so.13"),
    Library("cublasLt", "libcublasLt.so.13"),
    Library("curand", "libcurand.so.10"),
    Library("cudnn", "libcudnn.so.9", lookups=r"cudnn[A-Z]\w+"),
    Library("cufft", "libcufft.so.12", lookups=r"cufft[A-Z]\w+"),
    Library("nvrtc", "libnvrtc.so.13", lookups=r"nvrtc[A-Z]\w+"),
    Library("cuda", "libcuda.so.1", lookups=r"cu[A-Z]\w+", imports=r"cu[A-Z]\w+"),
    Library("nvinfer", "libnvinfer.so.10", imports=_TENSORRT),
    Library("nvonnxparser", "libnvonnxparser.so.10", imports=_TENSORRT),
)
"""The libraries as CUDA 13 names them; the structures in `tools/cuda_stub` have its layout."""

_RUNTIME = LIBRARIES[0].soname
SOURCES = Path(__file__).resolve().parent / "cuda_stub"
"""The C files."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The onnxruntime-gpu that is installed: its version, and its provider libraries, that for CUDA first."""

    version: str
    providers: tuple[Path, ...]


def installed() -> Installed | None:
    """Return the installed onnxruntime-gpu, which is not imported; None without one."""
    spec = importlib.util.find_spec("onnxruntime")
    folder = Path(spec.origin).parent / "capi" if spec and spec.origin else None
    names = ("libonnxruntime_providers_cuda.so", "libonnxruntime_providers_tensorrt.so")
    if folder is None or not (folder / names[0]).is_file():
        return None
    libraries = tuple(folder / name for name in names if (folder / name).is_file())
    return Installed(importlib.metadata.version("onnxruntime-gpu"), libraries)


@functools.cache
def needed() -> bool:
    """Return whether onnxruntime-gpu is installed, and no driver of CUDA (probed in a process: it cannot be
    unloaded).
    """
    code = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    probe = [sys.executable, "-S", "-c", code]
    return installed() is not None and subprocess.run(probe, capture_output=True, check=False).returncode != 0


USED = "AMP_REWRITE_CUDA_STUBS"
"""The environment variable that has the folder of the libraries, and is empty where they are not needed."""


def environment() -> dict[str, str]:
    """Return the environment of a process that asks the CUDA provider, with stub libraries where needed."""
    if not needed():
        return {**os.environ, USED: ""}
    paths = (str(folder()), os.environ.get("LD_LIBRARY_PATH"))
    return {**os.environ, USED: str(folder()), "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}


def folder() -> Path:
    """Return the folder of the stub libraries for the installed onnxruntime, which are built if missing; it
    goes first into LD_LIBRARY_PATH before a process starts.

    Raises OptionError without gcc or for an onnxruntime-gpu of
    another CUDA than 13, and OutputError where the cache cannot be written.
    """
    runtime = installed()
    assert runtime is not None, "they are needed for one alone"
    target = _cache() / f"{runtime.version}-{_digest()}"
    if not target.is_dir():
        try:
            _publish(runtime, target)
        except OSError as error:
            problem = f"the stub CUDA libraries cannot be written ({error.strerror})"
            remedy = "set XDG_CACHE_HOME to a folder that you may write to"
            raise OutputError(problem, where=target.parent, remedy=remedy) from error
    return target


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = base if base.is_absolute() else Path("~/.cache").expanduser()
    return home / "amp-rewrite" / "cuda-stub"


def _digest() -> str:
    """Return a digest of this module and the C files: newer ones build their own libraries."""
    files = (Path(__file__), *sorted(SOURCES.glob("*.[ch]")))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _publish(runtime: Installed, target: Path) -> None:
    """Build in a scratch folder and rename it, so that other processes see all libraries or none."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as scratch:
        staging = Path(scratch) / "lib"
        staging.mkdir()
        build(runtime, staging)
        try:
            staging.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster, with the same libraries
                raise


def build(runtime: Installed, target: Path) -> None:
    """Compile all libraries into a folder; raises OptionError as `folder` does."""
    for tool in ("gcc", "nm"):
        if shutil.which(tool) is None:
            raise OptionError(
                f"stub libraries need {tool}",
                remedy="install gcc and binutils (apt-get install gcc)",
            )
    imported = [symbol for provider in runtime.providers for symbol in _imports(provider)]
    if f"@{_RUNTIME}" not in "".join(imported):
        raise OptionError(
            f"onnxruntime-gpu {runtime.version} is not built for CUDA 13, as the stub libraries are",
            remedy="install a newer onnxruntime-gpu, or use a machine with a GPU",
        )
    with tempfile.TemporaryDirectory() as scratch:
        for library in LIBRARIES:
            symbols = sorted({*_symbols(library, imported), *_lookups(library, runtime.providers[0])})
            _compile(library, symbols, Path(scratch), target)


def _imports(provider: Path) -> list[str]:
    """Return the symbols that a library imports, `name@soname` or `name` alone."""
    listing = _run(["nm", "-D", "--undefined-only", str(provider)])
    return [line.split()[-1].replace("@@", "@") for line in listing.splitlines() if line.strip()]


def _symbols(library: Library, imported: Sequence[str]) -> Iterator[str]:
    for symbol in imported:
        name, _, soname = symbol.partition("@")
        if soname == library.soname or (not soname and re.fullmatch(library.imports, name)):
            yield name


def _lookups(library: Library, provider: Path) -> set[str]:
    if not library.lookups:
        return set()
    names = re.compile(rb"\0(" + library.lookups.encode() + rb")(?=\0)")
    with provider.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {symbol.decode() for symbol in names.findall(data)}


def _compile(library: Library, symbols: Sequence[str], scratch: Path, target: Path) -> None:
    """Compile one library; its handwritten functions override the generated ones, which are weak."""
    generated, versions = scratch / f"{library.name}.c", scratch / f"{library.name}.map"
    body = "".join(f"__attribute__((weak)) int {name}(void) {{ return 0; }}\n" for name in symbols)
    generated.write_text(body)
    versions.write_text(f"{library.soname} {{ global: *; }};\n")
    source = SOURCES / f"{library.name}.c"
    files = [generated, source] if source.is_file() else [generated]
    linked = [f"-Wl,-soname,{library.soname}", f"-Wl,--version-script={versions}"]
    output = ["-o", str(target / library.soname)]
    _run(["gcc", "-O1", "-shared", "-fPIC", "-w", *linked, *output, *map(str, files)])


def _run(command: Sequence[str]) -> str:
    process = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    if process.returncode:
        message = " ".join(process.stderr.split())[:300]
        raise AmpRewriteError(f"the stub CUDA libraries cannot be built ({command[0]}: {message})")
    return process.stdout


def main() -> None:
    """Run the command that was given."""
    try:
        sys.exit(subprocess.run(sys.argv[1:], env=environment(), check=False).returncode)
    except AmpRewriteError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
