"""Errors of real models under emulation, as a table: every model of a folder, rewritten at the defaults.

    python benchmarks/accuracy.py FOLDER --markdown docs/accuracy.md

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

from amp_rewrite import Options, observe, rewrite, tune
from amp_rewrite.pipeline import Result
from amp_rewrite.repair import ObservePolicy, Outcome, Settings, repair
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.blame import blame
from amp_rewrite.running.sessions import Device, Feeds
from amp_rewrite.running.verdict import Verdict
from amp_rewrite.running.verification import verify
from amp_rewrite.tuning.tune import Tuned

PACKAGES = ("onnx", "onnx-ir", "onnxruntime")
HEADING = """# Accuracy on real models

Each model is rewritten to float16 at the defaults and compared with the original on its own inputs: float32
on onnxruntime's CPU provider against half emulated there (every half value is rounded after the node that
produces it). If a tolerance is exceeded, values are observed and the model is rewritten once more, then tuned
by a search if that does not help, as by `amp-rewrite MODEL`. "observed" counts the units
in float32 for that reason. Where float16 cannot store an output well, the last product before it stays
float32. {good} of {all} models are within the default tolerances; errors beyond them are bold. The error of
an output is the RMS of the difference divided by the RMS of the output, or by 2^-14 if that is larger. The
floor is the error of rounding the output alone, and the noise is the difference between float32 with and
without onnxruntime's optimisation. The last column names the node to look at: the first that produces an
infinite value, or else the one that adds most error.

Made on {date} by `python benchmarks/accuracy.py FOLDER --markdown docs/accuracy.md` with {versions}.
FOLDER is a folder of models with their inputs beside them (`model.npz` for `model.onnx`), and is not part of
this repository; `benchmarks/model_folder.py` describes it, so that you can use your own.

| model | half | Casts added | observed | error | floor | noise | relative L2 | not finite | worst node |
|---|--:|--:|--:|--:|--:|--:|--:|--:|---|
"""


class OnSample:
    """The steps of a repair on one sample."""

    trusts_synthetic = False

    def __init__(self, original: Path, sample: Feeds, target: Path) -> None:
        self._original, self._sample, self._target = original, sample, target

    def rewrite(self, settings: Settings) -> Result[Path]:
        """The result, in the target."""
        made_of = {"seen": settings.seen, "faint": settings.faint, "replay": settings.plan}
        return rewrite(self._original, settings.options, output=self._target, **made_of)

    def compare(self, result: Result[Path], *, fresh: bool) -> Verdict:
        """The verdict on the CPU; one sample leaves no other."""
        del fresh
        return verify(self._original, result.model, [self._sample], device=Device.CPU)

    def observe(self, _: object) -> Observed:
        """The ranges of all values."""
        return observe(self._original, [self._sample], device=Device.CPU)

    def tune(self, outcome: Outcome) -> Tuned:
        """A search as by the command."""
        known = {"seen": outcome.settings.seen, "faint": outcome.settings.faint}
        return tune(self._original, [self._sample], outcome.settings.options, **known)


def measure(model: Model) -> dict[str, Any]:
    """One model: rewritten and verified on its own inputs, with the node to look at if that fails."""
    original, feeds = model.path, model.sample()
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "rewritten.onnx"
        proof = repair(OnSample(original, feeds, target), Options(), ObservePolicy.ON_FAILURE)
        result, verdict = proof.result, proof.verification
        changed = result.report.changed
        worst = blame(original, result.model, feeds, device=Device.CPU).worst if changed else None
    nodes, floats = result.report.nodes, [output.metrics for output in verdict.outputs]
    return {
        "half": nodes.half + nodes.mixed,
        "nodes": nodes.half + nodes.mixed + nodes.full,
        "casts": result.report.casts_added,
        "observed": result.report.observed,
        "error": _worst(output.error for output in verdict.outputs),
        "floor": _worst(output.floor for output in verdict.outputs),
        "noise": _worst(output.noise for output in verdict.outputs),
        "relative_l2": max((m.relative_l2 for m in floats), default=0.0),
        "non_finite": sum(m.non_finite for m in floats),
        "ok": verdict.ok,
        "worst": f"{worst.operator} `{worst.node or worst.value}`" if worst else "",
    }


def _worst(found: Iterable[float | None]) -> float:
    return max((number for number in found if number is not None), default=0.0)


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
    return f"| {name} | {counts} | {error} | {others} | {row['non_finite']} | {row['worst']} |"


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
