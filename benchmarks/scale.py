"""Time against the size of the graph: amp-rewrite and onnxruntime.transformers.float16, file to file.

    python benchmarks/scale.py [--nodes 10000 --nodes 100000] [--family NAME] [--rounds 3] [--json FILE]

The families are those of `graphs.FAMILIES`, and `--family all` is every one; onnxruntime's converter runs on
the transformer alone. "per doubling" is by what our time grows when the size doubles: 2 is linear.

Each run is a separate process that reads a model, converts it and writes the result; imports are not timed.
Runs are interleaved, and the best of the rounds counts, since the machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import onnx
from graphs import FAMILIES

OURS = """
import json, sys, time
from amp_rewrite import rewrite
start = time.perf_counter()
report = rewrite(sys.argv[1], output=sys.argv[2], force=True).report  # the other tool has written there
print(json.dumps([time.perf_counter() - start, dict(report.seconds)]))
"""
THEIRS = """
import json, sys, time
import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16
start = time.perf_counter()
onnx.save(convert_float_to_float16(onnx.load(sys.argv[1]), keep_io_types=True), sys.argv[2])
print(json.dumps([time.perf_counter() - start, {}]))
"""


def run(code: str, source: Path) -> tuple[float, dict[str, float]]:
    """The seconds of one run in a separate process, and of its stages if it reports them."""
    arguments = [sys.executable, "-W", "ignore", "-c", code, source, source.with_suffix(".out.onnx")]
    printed = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    seconds, stages = json.loads(printed.splitlines()[-1])
    return seconds, stages


def measure(family: str, nodes: int, rounds: int, folder: Path) -> dict[str, object]:
    """Both tools on one graph: the best time of each, their ratio, and our time by stage."""
    source = folder / f"{nodes}.onnx"
    model = FAMILIES[family](nodes)
    onnx.save(model, source)
    compares = family == COMPARED
    turns = [(run(OURS, source), run(THEIRS, source) if compares else (0.0, {})) for _ in range(rounds)]
    (ours, stages), (theirs, _) = min(t[0] for t in turns), min(t[1] for t in turns)
    return {
        "family": family,
        "nodes": len(model.graph.node) if compares else nodes,
        "amp_rewrite": round(ours, 3),
        "onnxruntime": round(theirs, 3) if compares else None,
        "ratio": round(ours / theirs, 2) if compares else None,
        "stages": {name: round(seconds, 3) for name, seconds in stages.items()},
    }


COMPARED = "transformer"
"""The family that both tools convert."""


def main() -> None:
    """Measures, prints a table, and writes JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--family", action="append", choices=[*FAMILIES, "all"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = arguments.nodes or [10_000, 100_000]
        families = arguments.family or [COMPARED]
        rows: list[dict[str, object]] = []
        for family in FAMILIES if "all" in families else families:
            of_family = [measure(family, nodes, arguments.rounds, Path(folder)) for nodes in sizes]
            show(of_family)
            rows += of_family
    if arguments.json:
        arguments.json.write_text(json.dumps({**circumstances(), "rows": rows}, indent=1) + "\n")


def show(rows: list[dict[str, object]]) -> None:
    """Prints the table of a family, and how our time grows from the smallest to the largest graph."""
    print(f"{rows[0]['family']:<14} {'nodes':>8} {'amp-rewrite s':>14} {'onnxruntime s':>14} {'ratio':>6}")
    for row in rows:
        stages = ", ".join(f"{name} {seconds}" for name, seconds in row["stages"].items())
        theirs, ratio = row["onnxruntime"] or "", row["ratio"] or ""
        print(f"{'':<14} {row['nodes']:>8} {row['amp_rewrite']:>14} {theirs:>14} {ratio:>6}   {stages}")
    first, last = rows[0], rows[-1]
    growth, doublings = last["amp_rewrite"] / first["amp_rewrite"], math.log2(last["nodes"] / first["nodes"])
    if doublings:
        print(f"{'':<14} {growth ** (1 / doublings):.2f} times as long per doubling", flush=True)


def circumstances() -> dict[str, str]:
    """Date, machine and package versions of the measurement."""
    packages = ("onnx", "onnx-ir", "onnxruntime", "numpy")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.processor() or platform.machine()}, Python {platform.python_version()}",
        **{package: version(package) for package in packages},
    }


if __name__ == "__main__":
    main()
