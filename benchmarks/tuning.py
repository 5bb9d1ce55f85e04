"""The plans that `tune` finds for real models within an error, as a table.

    python benchmarks/tuning.py FOLDER --markdown benchmarks/results/tuning.md NAME ...

FOLDER is any folder of models with their inputs beside them (`model.npz` for `model.onnx`; model_folder.py
says more). Each NAME is tuned in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model_folder import Model, named

from amp_rewrite import measure_coverage, rewrite, tune

PACKAGES = ("onnx", "onnx-ir", "onnxruntime")
HEADING = """# Plans within an error of {error:g}, on real models

`amp-rewrite tune --tolerance error={error:g} --prefer {prefer}` on each model's own inputs: how many values
half would round, how often the float32 model was run with some of them rounded, how many nodes the search
keeps in float32, the share of FLOPs in half by the default plan and by the tuned one, their errors, and the
noise of float32 (how far it is off when it is optimised differently). Half is emulated on the CPU. Errors
above {error:g} are bold.

Made on {date} by `{command}` with {versions}; seconds are of a machine with two cores.

| model | values | runs | kept | FLOPs, default | tuned | error, default | tuned | noise | seconds |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def measure(model: Model, error: float, prefer: str) -> dict[str, Any]:
    """One model: tuned, and rewritten by both plans."""
    source, feeds = model.path, model.sample()
    began = time.perf_counter()
    found = tune(source, feeds, max_error=error, prefer=prefer, budget=600)
    seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as scratch:
        results = [
            rewrite(source, output=Path(scratch) / f"{name}.onnx", replay=plan).model
            for name, plan in (("default", None), ("tuned", found.plan))
        ]
        shares = [measure_coverage(result).flops.share for result in results]
    return {
        "values": found.sites,
        "runs": found.runs,
        "kept": len(found.kept),
        "shares": shares,
        "errors": [found.walked[0].error, found.verdict.error],
        "noise": found.noise,
        "seconds": seconds,
    }


def markdown(rows: dict[str, dict[str, Any]], error: float, prefer: str) -> str:
    """The table, with an introduction that says how it was made."""
    flags = f"--max-error {error:g} --prefer {prefer}"
    heading = HEADING.format(
        error=error,
        prefer=prefer,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        command=f"python benchmarks/tuning.py FOLDER {flags} {' '.join(rows)}",
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
    )
    return heading + "\n".join(_line(name, row, error) for name, row in rows.items()) + "\n"


def _line(name: str, row: dict[str, Any], bound: float) -> str:
    shares = " | ".join(f"{share:.1%}" for share in row["shares"])
    errors = " | ".join(f"{e:.1e}" if e <= bound else f"**{e:.1e}**" for e in row["errors"])
    counts = f"{row['values']} | {row['runs']} | {row['kept']}"
    return f"| {name} | {counts} | {shares} | {errors} | {row['noise']:.1e} | {row['seconds']:.0f} |"


def main() -> None:
    """Tunes the named models and prints the table, or one model for a parent process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--max-error", type=float, default=1e-3)
    parser.add_argument("--prefer", default="flops")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--one", action="store_true")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(named(asked.folder, asked.names[0]), asked.max_error, asked.prefer)))
        return
    rows: dict[str, dict[str, Any]] = {}
    flags = ["--max-error", str(asked.max_error), "--prefer", asked.prefer, "--one"]
    for name in asked.names:
        command = [
            sys.executable,
            "-W",
            "ignore",
            __file__,
            str(asked.folder),
            name,
            *flags,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows[name] = json.loads(done.stdout.strip().splitlines()[-1])
        print(_line(name, rows[name], asked.max_error), flush=True)
    if asked.markdown:
        asked.markdown.write_text(markdown(rows, asked.max_error, asked.prefer))


if __name__ == "__main__":
    main()
