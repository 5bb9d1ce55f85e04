"""Memory and time against the size of the weights: amp-rewrite beside a plain copy of the same files.

    python benchmarks/size.py [--gib 4] [--layout layers --layout sharded --layout huge] [--rounds 2]
        [--folder FOLDER] [--json FILE]

Each model keeps its weights in external data. A run is a process of its own, `amp-rewrite --no-verify` from
its start to its end, and its memory the high-water mark that Linux keeps, mapped pages included. The copy is
`cp` (no reflinks) of the same files into the same folder. Both read from the disk: the source is dropped from
the page cache before; neither waits until what it wrote is on the disk. They take turns; the best of the
rounds counts. The folder needs room for three times the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper
from scale import circumstances

GIB = 1 << 30
OURS = """
import pathlib, re, sys
from amp_rewrite.cli import main
main([sys.argv[1], "-o", sys.argv[2], "--no-verify", "-q"], standalone_mode=False)
print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """Weights of `rows` x `columns` and `columns` x `rows` in turn, `count` of them, over so many files."""

    count: int
    rows: int
    columns: int
    files: int = 1

    def shapes(self) -> Iterator[tuple[int, int]]:
        """The shape of each weight, in the order in which they are multiplied."""
        for i in range(self.count):
            yield (self.rows, self.columns) if i % 2 == 0 else (self.columns, self.rows)


def layouts(gib: float) -> dict[str, Layout]:
    """The layouts with weights of about so many GiB: layers of 64 MiB, or three tensors in all."""
    count = max(2, round(gib * GIB / (4 * 4096**2)))
    wide = int((gib * GIB / 4 / 3) ** 0.5)
    return {
        "layers": Layout(count, 4096, 4096),
        "sharded": Layout(count, 4096, 4096, files=min(4, count)),
        "huge": Layout(3, wide, wide),
    }


def build(layout: Layout, path: Path) -> None:
    """Writes a chain of products with their weights in external data."""
    shapes = list(layout.shapes())
    names = ["x", *(f"h{i}" for i in range(1, len(shapes))), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(len(shapes))]
    borders = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", shapes[0][0]]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", shapes[-1][1]]),
    ]
    stored = list(_store(layout, path))
    graph = helper.make_graph(nodes, "size", borders[:1], borders[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def _store(layout: Layout, path: Path) -> Iterator[TensorProto]:
    """Random weights, in as many files as the layout has."""
    random = np.random.default_rng(0)
    noise = random.standard_normal(1 << 24, np.float32) * np.float32(0.02)
    for i, shape in enumerate(layout.shapes()):
        file = path.with_name(f"{path.name}.{i * layout.files // layout.count}.data")
        offset = file.stat().st_size if file.exists() else 0
        _append(noise, shape[0] * shape[1], file)
        weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=shape)
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file.name), ("offset", offset), ("length", 4 * shape[0] * shape[1])):
            weight.external_data.add(key=key, value=str(value))
        yield weight


def _append(noise: np.ndarray, size: int, file: Path) -> None:
    with file.open("ab") as stream:
        for start in range(0, size, noise.size):
            noise[: size - start].tofile(stream)


def forget(folder: Path) -> None:
    """Has the disk take what was written, and the page cache drop it."""
    os.sync()
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rewrite(source: Path, folder: Path) -> tuple[float, int]:
    """Seconds and peak bytes of one rewrite into a folder."""
    command = [sys.executable, "-W", "ignore", "-c", OURS, source, folder / "out.onnx"]
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - start, int(done.stdout) * 1024


def copy(source: Path, folder: Path) -> float:
    """Seconds of one copy of a model and its data into a folder."""
    start = time.perf_counter()
    subprocess.run(["cp", "--reflink=never", *source.parent.iterdir(), folder], check=True)
    return time.perf_counter() - start


def measure(name: str, layout: Layout, rounds: int, folder: Path) -> dict[str, object]:
    """The best seconds of both on one layout, and the highest peak of ours."""
    source = folder / "source" / "model.onnx"
    source.parent.mkdir()
    build(layout, source)
    copies, ours = [], []
    for _ in range(rounds):
        for run, found in ((copy, copies), (rewrite, ours)):
            forget(source.parent)
            with tempfile.TemporaryDirectory(dir=folder) as target:
                found.append(run(source, Path(target)))
    size = sum(path.stat().st_size for path in source.parent.iterdir())
    shutil.rmtree(source.parent)
    best = min(seconds for seconds, _ in ours)
    return {
        "layout": name,
        "gib": round(size / GIB, 2),
        "tensors": layout.count,
        "files": layout.files,
        "peak_mib": round(max(peak for _, peak in ours) / (1 << 20)),
        "seconds": round(best, 2),
        "copy_seconds": round(min(copies), 2),
        "ratio": round(best / min(copies), 2),
    }


def main() -> None:
    """Measures, prints a table and writes JSON where that is asked for."""
    known = list(layouts(1))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--layout", action="append", choices=known)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="Where the models are made; a temporary folder if not.")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    made = layouts(arguments.gib)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        chosen = arguments.layout or known
        rows = [measure(name, made[name], arguments.rounds, Path(folder)) for name in chosen]
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({**circumstances(), "rows": rows}, indent=1) + "\n")


def show(rows: list[dict[str, object]]) -> None:
    """The table."""
    heads = ("layout", "GiB", "tensors", "files", "peak MiB", "s", "cp s", "ratio")
    for line in (heads, *(row.values() for row in rows)):
        print("".join(f"{cell:>9}" for cell in line))


if __name__ == "__main__":
    main()
