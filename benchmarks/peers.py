"""The tools that convert a float32 model to half, each in a separate process.

    python benchmarks/peers.py VENVS [--only onnxconverter-common]

creates a virtual environment for each tool that is not part of onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_FRAME = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import onnx
source, target = sys.argv[1:]
{imports}
start = time.perf_counter()
{convert}
seconds = time.perf_counter() - start
try:
    onnx.checker.check_model(target, full_check=True)
    broken = ""
except Exception as error:
    broken = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
print()
print(json.dumps([seconds, broken]))
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A converter: Python code that imports it, and that converts the file `source` to the file `target`.

    `package` is the package to install in its own environment; empty if it is available in ours.
    """

    name: str
    imports: str
    convert: str
    package: str = ""

    @property
    def code(self) -> str:
        """The whole program."""
        return _FRAME.format(imports=self.imports, convert=self.convert)


def _ours(name: str, options: str) -> Peer:
    imports = "import amp_rewrite\nfrom amp_rewrite.policy.options import Level, Options"
    return Peer(name, imports, f"amp_rewrite.rewrite(source, {options}, output=target)")


OURS = _ours("amp-rewrite", "Options()")
ALL_HALF = _ours("amp-rewrite, all half", "Options(level=Level.UNSAFE_FORCE_ALL)")
ORT = Peer(
    "onnxruntime",
    "from onnxruntime.transformers.float16 import convert_float_to_float16",
    "onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)",
)
CONVERTER_COMMON = Peer(
    "onnxconverter-common",
    "from onnxconverter_common.float16 import convert_float_to_float16",
    "onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)",
    package="onnxconverter-common",
)
AUTOCAST = Peer(
    "modelopt autocast",
    "from modelopt.onnx.autocast import convert_to_mixed_precision",
    "onnx.save(convert_to_mixed_precision(source, low_precision_type='fp16', keep_io_types=True), target)",
    package="nvidia-modelopt[onnx]",
)
PEERS = (OURS, ALL_HALF, ORT, CONVERTER_COMMON, AUTOCAST)


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of a conversion: the file, the seconds, the error of onnx's checker; or a failure."""

    peer: Peer
    path: Path
    seconds: float = 0.0
    broken: str = ""
    failure: str = ""


def convert(peer: Peer, source: Path, venvs: Path | None, limit: float) -> Converted:
    """Runs a tool on a file, for at most `limit` seconds; the result describes any failure."""
    target = source.with_name(f"{source.stem}.{peer.name.replace(' ', '_').replace(',', '')}.onnx")
    python = python_of(peer, venvs)
    if python is None:
        return Converted(peer, target, failure="not installed")
    start = time.perf_counter()
    try:
        child = subprocess.run(
            [python, "-c", peer.code, source, target],
            capture_output=True,
            text=True,
            timeout=limit,
            env={**os.environ, "PYTHONPATH": _path(peer)},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Converted(peer, target, time.perf_counter() - start, failure=f"no result in {limit:.0f} s")
    if child.returncode != 0:
        return Converted(peer, target, failure=_last_line(child.stderr) or f"exit code {child.returncode}")
    seconds, broken = json.loads(child.stdout.splitlines()[-1])
    return Converted(peer, target, seconds, broken)


def python_of(peer: Peer, venvs: Path | None) -> Path | None:
    """The interpreter with a tool: ours, that of its folder in `venvs`, or of `venvs` itself."""
    if not peer.package:
        return Path(sys.executable)
    folders = [venvs / peer.name.replace(" ", "_"), venvs] if venvs else []
    return next((python for f in folders if (python := f / "bin" / "python").exists()), None)


def _path(peer: Peer) -> str:
    """The child's PYTHONPATH: our checkout for amp-rewrite, nothing for the others."""
    if peer.package:
        return ""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:200]


def install(peer: Peer, venvs: Path) -> None:
    """Creates the environment of a tool."""
    folder = venvs / peer.name.replace(" ", "_")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", peer.package], check=True)


def main() -> None:
    """Creates the environments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("venvs", type=Path)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    for peer in PEERS:
        if peer.package and arguments.only in (None, peer.name):
            install(peer, arguments.venvs.resolve())
            print(f"{peer.name} is in {arguments.venvs}")


if __name__ == "__main__":
    main()
