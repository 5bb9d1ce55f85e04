"""Time of a proof against that of the rewrite which it proves, without it, and the most memory that it takes.

    python benchmarks/certificate.py [--nodes 10000 --nodes 100000] [--rounds 3] [--json FILE]

Each is a process of its own that reads files; imports are not timed. The best of the rounds counts.
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

REWRITE = """
import json, sys, time
from amp_rewrite import Options, rewrite
start = time.perf_counter()
rewrite(sys.argv[1], Options(certify=False), output=sys.argv[2])
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
assert certify(*sys.argv[1:]).proved
print(json.dumps([time.perf_counter() - start, (peak() - before) / 1024]))
"""


def run(code: str, *paths: Path) -> tuple[float, float]:
    """The seconds of one run in a process of its own, and by how many MiB its memory grew."""
    arguments = [sys.executable, "-W", "ignore", "-c", code, *map(str, paths)]
    printed = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    seconds, memory = json.loads(printed.splitlines()[-1])
    return seconds, memory


def measure(nodes: int, rounds: int, folder: Path) -> dict[str, object]:
    """The best times of both for one graph, their ratio, and the memory of the proof."""
    source, result = folder / f"{nodes}.onnx", folder / f"{nodes}.out.onnx"
    made = Transformer(nodes)
    onnx.save(made.model(), source)
    turns = [(run(REWRITE, source, result), run(CERTIFY, source, result)) for _ in range(rounds)]
    rewrite, proof = min(turn[0][0] for turn in turns), min(turn[1][0] for turn in turns)
    return {
        "nodes": len(made.nodes),
        "rewrite": round(rewrite, 3),
        "proof": round(proof, 3),
        "share": round(proof / rewrite, 3),
        "MiB": round(max(turn[1][1] for turn in turns), 1),
    }


def main() -> None:
    """Measures, prints a table, and writes JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = arguments.nodes or [10_000, 100_000]
        rows = [measure(nodes, arguments.rounds, Path(folder)) for nodes in sizes]
    print(f"{'nodes':>8} {'rewrite s':>10} {'proof s':>8} {'share':>6} {'MiB':>6}")
    for row in rows:
        print(f"{row['nodes']:>8} {row['rewrite']:>10} {row['proof']:>8} {row['share']:>6} {row['MiB']:>6}")
    if arguments.json:
        arguments.json.write_text(json.dumps({**circumstances(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
