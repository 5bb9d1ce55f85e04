"""Emulation against real half arithmetic, as a table: every model of a folder that WebGPU runs.

    python benchmarks/witness.py FOLDER --markdown benchmarks/results/witness.md

FOLDER is any folder of models with their inputs beside them (`model.npz` for `model.onnx`; model_folder.py
says more). Each model is rewritten at the defaults and compared with itself in float32 three times: with half
emulated, with sums in half too, and on WebGPU. Each runs in a separate process, within a time limit.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model_folder import Model, models, named

from amp_rewrite import Options, rewrite, verify
from amp_rewrite.running.verdict import Verdict

PACKAGES = ("onnx", "onnxruntime", "onnxruntime-ep-webgpu")
WITNESSES = {
    "emulated": {"device": "cpu"},
    "sums too": {"device": "cpu", "accumulate": "half"},
    "WebGPU": {"device": "webgpu"},
}
LIMIT = 300
"""Seconds for a model, rewritten and compared three times."""

HEADING = """# Emulation against real half arithmetic

Each model is rewritten to float16 {how} and runs on its own inputs; the error is the
relative L2 of the worst output against float32, with the number of values that are finite only in float32
in brackets. "emulated" rounds every half value, "sums too" rounds every product and partial sum as well, and
"WebGPU" computes in half. The ratios are those of the predicted error to the error
on WebGPU: {float_near} of {all} are within a factor of two with sums in float32, {half_near} with sums in
half. Errors below {least} are not counted, since half is almost exact there, nor are models that are as far
off on WebGPU in float32; that error is shown where the one in half exceeds twice the prediction. "nodes" is
how many nodes run on WebGPU, of those that are left after onnxruntime's fusions; the others run on the CPU.
"seconds" is the time of all three runs.

Made on {date} by `python benchmarks/witness.py FOLDER{flags} --markdown {file}`
with {versions}, on {adapter}.

| model | nodes | emulated | sums too | WebGPU | emulated / WebGPU | sums too / WebGPU | seconds |
|---|--:|--:|--:|--:|--:|--:|--:|
"""
LEAST = 1e-4
"""An error below which a ratio says nothing: a few roundings make it."""


def measure(model: Model, target: str) -> dict[str, Any]:
    """The errors of one model by each witness."""
    original, feeds = model.path, model.sample()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        options = Options(target=target)
        result = rewrite(original, options, output=Path(scratch) / "rewritten.onnx")
        for name, where in WITNESSES.items() if result.report.changed else ():
            began = time.perf_counter()
            found[name] = _errors(verify(original, result.model, feeds, **where))
            found[name]["seconds"] = time.perf_counter() - began
    if found and found["WebGPU"]["relative_l2"] > 2 * found["sums too"]["relative_l2"]:
        found["float32"] = _errors(verify(original, original, feeds, device="webgpu"))
    return found


def _errors(verdict: Verdict) -> dict[str, Any]:
    if verdict.signature:
        raise RuntimeError(verdict.signature[0])
    floats = [output.metrics for output in verdict.outputs if output.error is not None]
    return {
        "relative_l2": max((m.relative_l2 for m in floats), default=0.0),
        "non_finite": sum(m.non_finite for m in floats),
        "how": verdict.how,
    }


def rows(folder: Path, target: str, only: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and errors of every model that has inputs, or why there are none."""
    for name in (model.name for model in models(folder) if model.runs):
        if only and name not in only:
            continue
        asked = [sys.executable, "-W", "ignore", __file__, folder, "--target", target, "--one", name]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            yield name, {"failed": f"more than {LIMIT} s"}
            continue
        yield name, _row(done)


def _row(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return {"failed": last[:160]}


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    if "failed" in row:
        return f"| {name} | {row['failed'].replace('|', '/')} |  |  |  |  |  |  |"
    placed = row["WebGPU"]["how"].partition("WebGPU, ")[2].removesuffix(" nodes there")
    errors = " | ".join(_error(row[witness]) for witness in WITNESSES)
    ratios = " | ".join(f"{ratio(row, witness):.2f}" for witness in ("emulated", "sums too"))
    seconds = "/".join(f"{row[witness]['seconds']:.0f}" for witness in WITNESSES)
    wrong = f" (float32 there: {row['float32']['relative_l2']:.1e})" if "float32" in row else ""
    return f"| {name} | {placed} | {errors}{wrong} | {ratios} | {seconds} |"


def _error(found: dict[str, Any]) -> str:
    lost = f" ({found['non_finite']:,})" if found["non_finite"] else ""
    return f"{found['relative_l2']:.1e}{lost}"


def ratio(row: dict[str, Any], witness: str) -> float:
    """The predicted error, in relation to WebGPU's; 1 where both are nothing."""
    predicted, real = row[witness]["relative_l2"], row["WebGPU"]["relative_l2"]
    return predicted / real if real else (math.inf if predicted else 1.0)


def near(row: dict[str, Any], witness: str) -> bool:
    """Whether a prediction is within a factor of two."""
    return 0.5 <= ratio(row, witness) <= 2


def is_counted(row: dict[str, Any]) -> bool:
    """Whether the errors of a row say something of half: not where float32 is as wrong on WebGPU."""
    if "WebGPU" not in row or row["WebGPU"]["relative_l2"] < LEAST:
        return False
    return "float32" not in row or row["float32"]["relative_l2"] < row["WebGPU"]["relative_l2"] / 2


def main() -> None:
    """Measures, prints as it goes, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="onnxruntime-cuda")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(named(asked.folder, asked.one), asked.target)))
        return
    found: dict[str, dict[str, Any]] = {}
    for name, row in rows(asked.folder, asked.target, asked.only):
        if row:
            found[name] = row
            print(line(name, row), flush=True)
    counted = [row for row in found.values() if is_counted(row)]
    print(f"{sum(near(row, 'sums too') for row in counted)} of {len(counted)} within a factor of two")
    if asked.markdown:
        asked.markdown.write_text(_page(asked, found, counted))


def _page(asked: argparse.Namespace, found: dict[str, Any], counted: list[dict[str, Any]]) -> str:
    default = asked.target == "onnxruntime-cuda"
    heading = HEADING.format(
        how="at the defaults" if default else f"for the target {asked.target}",
        flags="" if default else f" --target {asked.target}",
        float_near=sum(near(row, "emulated") for row in counted),
        half_near=sum(near(row, "sums too") for row in counted),
        all=len(counted),
        least=LEAST,
        date=datetime.now(UTC).date().isoformat(),
        file=asked.markdown,
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
        adapter="Mesa's Vulkan driver for CPUs",
    )
    return heading + "".join(f"{line(name, row)}\n" for name, row in found.items())


if __name__ == "__main__":
    main()
