"""Errors of real models under emulation, as a table: every model of a folder, rewritten at the defaults.

    python benchmarks/accuracy.py FOLDER --markdown benchmarks/results/accuracy.md

FOLDER is any folder of models with their inputs beside them (`model.npz` for `model.onnx`; model_folder.py
says more); models without inputs are left out. Each model runs in a separate process: a runtime that crashes
costs one row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model_folder import Model, models, named

PACKAGES = ("onnx", "onnx-ir", "onnxruntime")
HEADING = """# Accuracy on real models

Each model is rewritten to float16 at the defaults and compared with the original on its own inputs: float32
on onnxruntime's CPU provider against half emulated there (every half value is rounded after the node that
produces it). If a tolerance is exceeded, values are observed and the model is rewritten once more, then tuned
by a search if that does not help, as by `amp-rewrite MODEL`. "observed" counts the units
in float32 for that reason. Where float16 cannot store an output well, the last product before it stays
float32. {good} of {all} models are within the default tolerances; the errors of others are bold, 0 where all
outputs are constant, which proves nothing. The error of an output is the RMS of the difference divided by
the spread of the output. The
floor is the error of rounding the output alone, and the noise is the difference between float32 with and
without onnxruntime's optimisation. The last column names the node to look at: the first that produces an
infinite value, or else the one that adds most error.

Made on {date} by `python benchmarks/accuracy.py FOLDER --markdown FILE` with {versions}.
FOLDER is a folder of models with their inputs beside them (`model.npz` for `model.onnx`), and is not part of
this repository; `benchmarks/model_folder.py` describes it, so that you can use your own.

| model | half | Casts added | observed | error | floor | noise | relative L2 | not finite | worst node |
|---|--:|--:|--:|--:|--:|--:|--:|--:|---|
"""


def measure(model: Model) -> dict[str, Any]:
    """One model: rewritten and verified on its own inputs, with the node to look at if that fails."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        data = [str(word) for path in model.data for word in ("--data", path)]
        files = ["-o", str(report.with_name("rewritten.onnx")), "--json", str(report)]
        command = [sys.executable, "-m", "amp_rewrite", str(model.path), *data, *files, *_FLAGS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not report.exists():
            raise SystemExit(done.stderr.strip())
        told = json.loads(report.read_text())
    nodes, verdict = told["nodes"], told["verification"]
    outputs = [output for output in verdict["outputs"] if output["error"] is not None]
    blamed = verdict["blame"] or {"nodes": []}
    worst = next(iter(blamed["nodes"]), None)
    return {
        "half": nodes["half"] + nodes["mixed"],
        "nodes": nodes["half"] + nodes["mixed"] + nodes["full"],
        "casts": told["casts_added"],
        "observed": told["observed"],
        **{name: _worst(output[name] for output in outputs) for name in ("error", "floor", "noise")},
        "relative_l2": _worst(output["metrics"]["relative_l2"] for output in outputs),
        "non_finite": sum(output["metrics"]["non_finite"] for output in verdict["outputs"]),
        "ok": verdict["ok"],
        "worst": f"{worst['operator']} `{worst['node'] or worst['value']}`" if worst else "",
    }


_LONGEST = 64
_FLAGS = ("--provider", "cpu", "--show=nodes", "--require=verify")


def _worst(found: Iterable[float | str | None]) -> float:
    return max((float(number) for number in found if number is not None), default=0.0)


def rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and measurement of every model that has inputs, or its error."""
    for model in models(folder):
        if model.runs:
            command = [sys.executable, "-W", "ignore", __file__, folder, "--one", model.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            yield model.name, _row(done)


def _row(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The measurements of a child; for one that failed, its exception, or that it was killed."""
    if done.returncode == 0:
        return json.loads(done.stdout.strip().splitlines()[-1])
    said = done.stderr.strip().splitlines()
    return {"failed": said[-1][:200] if done.returncode > 0 and said else "the process crashed"}


def markdown(measured: list[tuple[str, dict[str, Any]]]) -> str:
    """The table, with an introduction that says how it was made."""
    good = sum(row.get("ok", False) for _, row in measured)
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    heading = HEADING.format(good=good, all=len(measured), versions=versions, date=date)
    return heading + "\n".join(_line(name, row) for name, row in measured) + "\n"


def _line(name: str, row: dict[str, Any]) -> str:
    name = name.replace("|", "/")
    if "failed" in row:
        return f"| {name} | | | | | | | | | {row['failed'].replace('|', '/')} |"
    share = f"{row['half']} of {row['nodes']}"
    error = f"{row['error']:.1e}" if row["ok"] else f"**{row['error']:.1e}**"
    others = " | ".join(f"{row[key]:.1e}" for key in ("floor", "noise", "relative_l2"))
    counts = f"{share} | {row['casts']} | {row['observed'] or ''}"
    return f"| {name} | {counts} | {error} | {others} | {row['non_finite']} | {_cut(row['worst'])} |"


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"


def main() -> None:
    """Measures every model and prints the table, or one model for a parent process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--one")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(named(arguments.folder, arguments.one))))
        return
    text = markdown(list(rows(arguments.folder)))
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
