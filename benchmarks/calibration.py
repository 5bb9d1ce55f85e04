"""The cost of a calibration: time and memory of observing many samples, over those of plain float32 runs.

    python benchmarks/calibration.py FOLDER [--samples 64] [--shortest 1] [--only NAME] [--json FILE]

FOLDER is any folder of models with their inputs beside them (`model.npz` for `model.onnx`; model_folder.py
says more); samples are repeated. Each measurement is a separate process on the CPU provider: one opens a
session at the defaults and runs it on all samples, the other calls `amp_rewrite.observe` with them, which
opens two or more. Both count from before the model is read to the end of the last run; imports and making the
samples are not timed. Memory is the peak that Linux records of the process (VmHWM). CPU time is shown beside
wall time, which says little where other processes run. Models whose plain runs take less than `--shortest`
seconds are left out: what it takes to open sessions and not the number of samples decides there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model_folder import models
from scale import circumstances

SHARED = """
import json, re, sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[3]]
from model_folder import named
import amp_rewrite.running.observation
from amp_rewrite.running import sessions
found = named(Path(sys.argv[1]), sys.argv[2])
model, samples = found.path, list(found.samples(int(sys.argv[4])))
sessions.onnxruntime()
start, start_cpu = time.perf_counter(), time.process_time()
{work}
seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3
print(json.dumps({"s": seconds, "cpu_s": cpu, "mb": peak}))
"""
PLAIN = SHARED.replace(
    "{work}",
    """
session = sessions.open_session(model)
for feeds in samples:
    session.run(None, feeds)
""",
)
OBSERVED = SHARED.replace("{work}", 'amp_rewrite.observe(model, samples, device="cpu")')


def run(code: str, folder: Path, name: str, samples: int) -> dict[str, float]:
    """Seconds of wall and CPU time, and the peak of memory in MB, of a process of its own."""
    here = Path(__file__).parent
    told = (folder, name, here, samples)
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, told)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(printed.splitlines()[-1])


def rows(folder: Path, samples: int, shortest: float, only: list[str]) -> Iterator[dict[str, Any]]:
    """A row for every model that has inputs and takes long enough."""
    for model in models(folder):
        if not model.runs or (only and model.name not in only):
            continue
        try:
            plain = run(PLAIN, folder, model.name, samples)
        except subprocess.CalledProcessError as error:  # such as inputs that only OrtValues can hold
            print(f"{model.name:<32} left out: {str(error.stderr).strip()[-200:]}", flush=True)
            continue
        if plain["s"] < shortest:
            continue
        observed = run(OBSERVED, folder, model.name, samples)
        yield {
            "model": model.name,
            **{f"plain_{unit}": round(number, 2) for unit, number in plain.items()},
            **{f"observed_{unit}": round(number, 2) for unit, number in observed.items()},
            "ratio": round(observed["s"] / plain["s"], 2),
            "cpu_ratio": round(observed["cpu_s"] / plain["cpu_s"], 2),
        }


def main() -> None:
    """Measures, prints a table with the median and the worst last, and writes JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--shortest", type=float, default=1.0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    measured = list[dict[str, Any]]()
    for row in rows(given.folder, given.samples, given.shortest, given.only):
        measured.append(row)
        times = f"{row['plain_s']:8.2f} s -> {row['observed_s']:8.2f} s"
        times += f"   {row['ratio']:.2f} (CPU {row['cpu_ratio']:.2f})"
        print(
            f"{row['model']:<32} {times}   {row['plain_mb']:.0f} MB -> {row['observed_mb']:.0f} MB",
            flush=True,
        )
    if not measured:
        parser.error("no model takes long enough; lower --shortest")
    ratios, used = ([row[name] for row in measured] for name in ("ratio", "cpu_ratio"))
    above = [row["observed_mb"] - 1.5 * row["plain_mb"] for row in measured]
    for what, found in (("time", ratios), ("CPU time", used)):
        print(f"{len(found)} models: {what} median {statistics.median(found):.2f}, worst {max(found):.2f}")
    print(f"memory beyond 1.5 times: at most {max(above):.0f} MB")
    if given.json:
        content = {**circumstances(), "samples": given.samples, "rows": measured}
        given.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
