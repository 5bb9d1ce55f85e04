"""What a proof adds to a rewrite, the time of one by itself, and the most memory that it takes.

    python benchmarks/certificate.py [--nodes 10000 --nodes 100000] [--rounds 3] [--json FILE]
    python benchmarks/certificate.py --gib 4 [--rounds 3]     # a chain of products, its weights in a file

`with` and `without` are rewrites from file to file, `added` is the share of the first that the proof takes,
and `alone` is a proof of two files. Each is a process of its own; imports are not timed. The best counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from graphs import Transformer
from scale import circumstances
from size import build, layouts, settle

REWRITE = """
import json, sys, time
from amp_rewrite import Options, rewrite
start = time.perf_counter()
rewrite(sys.argv[1], Options(certify=sys.argv[3] == "with"), output=sys.argv[2])
print(json.dumps([time.perf_counter() - start, 0]))
"""
CERTIFY = """
import json, sys, time
from amp_rewrite import certify
def peak():
    status = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
certify  # which imports it
before, start = peak(), time.perf_counter()
assert certify(*sys.argv[1:3]).proved
print(json.dumps([time.perf_counter() - start, (peak() - before) / 1024]))
"""


def run(code: str, *given: Path | str) -> tuple[float, float]:
    """The seconds of one run in a process of its own, and by how many MiB its memory grew."""
    arguments = [sys.executable, "-W", "ignore", "-c", code, *map(str, given)]
    printed = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    seconds, memory = json.loads(printed.splitlines()[-1])
    return seconds, memory


def measure(nodes: int, rounds: int, folder: Path) -> dict[str, object]:
    """The best times of both for one graph, their ratio, and the memory of the proof."""
    source, result = folder / f"{nodes}.onnx", folder / f"{nodes}.out.onnx"
    made = Transformer(nodes)
    onnx.save(made.model(), source)
    return {"nodes": len(made.nodes), **_measured(source, result, rounds)}


def measure_weights(gib: float, rounds: int, folder: Path) -> dict[str, object]:
    """The same for a model with that much in weights."""
    source, result = folder / "model.onnx", folder / "model.out.onnx"
    build(layouts(gib)["layers"], source)
    return {"GiB": gib, **_measured(source, result, rounds)}


def _measured(source: Path, result: Path, rounds: int) -> dict[str, object]:
    turns = [_turn(source, result) for _ in range(rounds)]
    proved, plain, alone = (min(turn[kind][0] for turn in turns) for kind in range(3))
    return {
        "with": round(proved, 3),
        "without": round(plain, 3),
        "added": round(1 - plain / proved, 3),
        "alone": round(alone, 3),
        "MiB": round(max(turn[2][1] for turn in turns), 1),
    }


def _turn(source: Path, result: Path) -> tuple[tuple[float, float], ...]:
    codes = ((REWRITE, "with"), (REWRITE, "without"), (CERTIFY, ""))
    return tuple(_settled(code, source, result, kind) for code, kind in codes)


def _settled(code: str, source: Path, result: Path, kind: str) -> tuple[float, float]:
    settle(source.parent, cached=True)
    return run(code, source, result, kind)


def main() -> None:
    """Measures, prints a table, and writes JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--gib", type=float)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = arguments.nodes or [10_000, 100_000]
        if arguments.gib:
            rows = [measure_weights(arguments.gib, arguments.rounds, Path(folder))]
        else:
            rows = [measure(nodes, arguments.rounds, Path(folder)) for nodes in sizes]
    print("".join(f"{column:>9}" for column in rows[0]))
    for row in rows:
        print("".join(f"{value:>9}" for value in row.values()))
    if arguments.json:
        arguments.json.write_text(json.dumps({**circumstances(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
