"""The cost of an emulation: its time over that of the float32 model, on the CPU provider.

    python benchmarks/emulation.py FOLDER [--json FILE]

FOLDER is any folder of models with their inputs beside them (`model.npz` for `model.onnx`; model_folder.py
says more). Runs of original and emulation are interleaved in one process, and the medians compared. Models
under 2 ms are left out (`--shortest`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model_folder import Model, models
from scale import circumstances

from amp_rewrite import rewrite
from amp_rewrite.running import sessions
from amp_rewrite.running.emulation import emulate

SHORTEST = 2e-3
ROUNDS = 15


def seconds(session: Any, feeds: dict[str, Any]) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - start


def measure(model: Model) -> tuple[float, float] | None:
    """Median seconds of original and emulation; None for a model that does not change."""
    original, feeds = model.path, model.sample()
    with tempfile.TemporaryDirectory() as scratch:
        result = rewrite(original, output=Path(scratch) / "rewritten.onnx")
        if not result.report.changed:
            return None
        pair = [sessions.open_session(original), sessions.open_session(emulate(result.model, late=True))]
    for session in pair:
        session.run(None, feeds)
    rounds = [[seconds(session, feeds) for session in pair] for _ in range(ROUNDS)]
    before, after = (statistics.median(column) for column in zip(*rounds, strict=True))
    return before, after


def rows(folder: Path, shortest: float) -> Iterator[dict[str, Any]]:
    """A row for every model that has inputs, is changed, and takes long enough."""
    for model in models(folder):
        found = measure(model) if model.runs else None
        if found is not None and found[0] >= shortest:
            before, after = found
            yield {"model": model.name, "float32_ms": before * 1e3, "ratio": after / before}


def main() -> None:
    """Measures, prints a table with the median last, and writes JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shortest", type=float, default=SHORTEST, help="seconds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    measured = list(rows(arguments.folder, arguments.shortest))
    if not measured:
        parser.error("no model is changed and takes long enough; lower --shortest")
    for row in measured:
        print(f"{row['model']:<40} {row['float32_ms']:8.1f} ms   {row['ratio']:.2f}")
    ratios = [row["ratio"] for row in measured]
    print(f"{len(ratios)} models: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}")
    if arguments.json:
        content = {**circumstances(), "rounds": ROUNDS, "rows": measured}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
