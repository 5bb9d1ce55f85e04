"""Memory and time against the size of the weights: amp-rewrite compared with a copy of the same files.

    python benchmarks/size.py [--gib 4] [--layout layers --layout sharded --layout huge] [--rounds 2]
        [--cached] [--folder FOLDER] [--json FILE]

Each model keeps its weights in external data. A run is a separate process, `amp-rewrite --skip=verify` from
start to end; its memory is the peak that Linux records, mapped pages included, plus that of the process that
runs onnx's checker. The copy is `cp` (no reflinks) of the same files into the same folder. Both read from
disk: the source is dropped from the page cache before, or with `--cached` read into it; neither waits until
its output is on disk. Before every run, as many bytes as the weights have are written and removed: a virtual
machine is much slower to provide memory that it has not used yet, whichever process asks first. The call of
`rewrite`, without Python's start-up and the imports that a pipeline has already done, is timed as well, in a
third process. Runs are interleaved, and the best of the rounds counts. The folder needs room for three times
the weights.
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
COMMAND = """
from amp_rewrite.__main__ import main
try:
    main()
finally:
    import os, re
    from pathlib import Path
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    peaks = [Path(f"/proc/{pid}/status").read_text() for pid in ("self", *children)]
    print(sum(int(re.search(r"VmHWM:\\s+(\\d+)", peak)[1]) for peak in peaks))
"""
CALL = """
import sys, time
import amp_rewrite.cli
from amp_rewrite import rewrite
start = time.perf_counter()
rewrite(sys.argv[1], output=sys.argv[2])
print(time.perf_counter() - start)
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """`count` weights of alternately `rows` x `columns` and `columns` x `rows`, in `files` files."""

    count: int
    rows: int
    columns: int
    files: int = 1

    def shapes(self) -> Iterator[tuple[int, int]]:
        """The shape of each weight, in the order in which they are multiplied."""
        for i in range(self.count):
            yield (self.rows, self.columns) if i % 2 == 0 else (self.columns, self.rows)


def layouts(gib: float) -> dict[str, Layout]:
    """The layouts with about this many GiB of weights: layers of 64 MiB, or three tensors in total."""
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
    """Random weights, in the files of the layout."""
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


def settle(folder: Path, *, cached: bool) -> None:
    """Creates equal conditions for every run: memory that was used before, an idle disk, and the files of a
    folder in the page cache or not.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        copy(folder / "model.onnx", Path(beside))
    os.sync()
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while cached and file.read(1 << 24):
                pass


@dataclass(frozen=True, slots=True)
class Run:
    """One process: wall seconds, CPU seconds, and its output."""

    seconds: float
    cpu: float
    printed: str


def timed(*command: str | Path) -> Run:
    """Runs a command to its end."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(seconds, cpu, done.stdout)


def command(source: Path, folder: Path) -> Run:
    """One rewrite into a folder by the command, which prints its peak memory in KiB."""
    flags = ("-o", folder / "out.onnx", "--skip=verify", "-q")
    return timed(sys.executable, "-c", COMMAND, source, *flags)


def call(source: Path, folder: Path) -> Run:
    """One rewrite into a folder by a process with amp-rewrite imported; prints the seconds of the call."""
    return timed(sys.executable, "-W", "ignore", "-c", CALL, source, folder / "out.onnx")


def copy(source: Path, folder: Path) -> Run:
    """One copy of a model and its data into a folder."""
    return timed("cp", "--reflink=never", *source.parent.iterdir(), folder)


def measure(name: str, layout: Layout, rounds: int, folder: Path, *, cached: bool) -> dict[str, object]:
    """The best times on one layout, and the highest peak memory of amp-rewrite."""
    source = folder / "source" / "model.onnx"
    source.parent.mkdir()
    build(layout, source)
    copies, ours, calls = [], [], []
    for _ in range(rounds):
        for run, found in ((copy, copies), (command, ours), (call, calls)):
            settle(source.parent, cached=cached)
            with tempfile.TemporaryDirectory(dir=folder) as target:
                found.append(run(source, Path(target)))
    called = min(float(run.printed) for run in calls)
    size = sum(path.stat().st_size for path in source.parent.iterdir())
    shutil.rmtree(source.parent)
    best, copied = (min(found, key=lambda run: run.seconds) for found in (ours, copies))
    return {
        "layout": name,
        "gib": round(size / GIB, 2),
        "tensors": layout.count,
        "files": layout.files,
        "cached": cached,
        "peak_mib": max(int(run.printed) for run in ours) >> 10,
        "seconds": round(best.seconds, 2),
        "copy_seconds": round(copied.seconds, 2),
        "ratio": round(best.seconds / copied.seconds, 2),
        "call_seconds": round(called, 2),
        "call_ratio": round(called / copied.seconds, 2),
        "cpu_seconds": round(min(run.cpu for run in ours), 2),
        "copy_cpu_seconds": round(min(run.cpu for run in copies), 2),
    }


def main() -> None:
    """Measures, prints a table, and writes JSON if requested."""
    known = list(layouts(1))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--layout", action="append", choices=known)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cached", action="store_true", help="With the source in the page cache.")
    parser.add_argument(
        "--folder", type=Path, help="Where to write the models (default: a temporary folder)."
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    made = layouts(arguments.gib)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        chosen = arguments.layout or known
        rows = [
            measure(name, made[name], arguments.rounds, Path(folder), cached=arguments.cached)
            for name in chosen
        ]
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps({**circumstances(), "rows": rows}, indent=1) + "\n")


def show(rows: list[dict[str, object]]) -> None:
    """The table."""
    heads = (
        "layout",
        "GiB",
        "tensors",
        "files",
        "cached",
        "peak MiB",
        "s",
        "cp s",
        "ratio",
        "call s",
        "ratio",
        "cpu s",
        "cp cpu s",
    )
    for line in (heads, *(row.values() for row in rows)):
        print("".join(f"{cell:>9}" for cell in line))


if __name__ == "__main__":
    main()
