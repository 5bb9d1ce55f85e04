"""Models whose values leave float16, kept in float32 there and rescaled by powers of two, as a table.

    python benchmarks/rescaling.py FOLDER

FOLDER has a folder for each model, with `model.onnx` and `inputs.npz`. Both results are made with what a
float32 run on these inputs shows, and compared with the model with half emulated.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from amp_rewrite import Options, measure_coverage, observe, rewrite, verify
from amp_rewrite.rewriting.report import Report

HEADING = """| model | largest value | nodes in half | FLOPs in half | Casts | error | predicted | \
nodes in half, rescaled | FLOPs in half | Casts | error | predicted | weights | epsilons | Muls |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""


@dataclass(frozen=True)
class Measured:
    """A result: its report, the share of its FLOPs in half in percent, and its error."""

    report: Report
    flops: float
    error: float

    def cells(self) -> list[str]:
        """The five columns of a result."""
        report, prediction = self.report, self.report.prediction
        nodes = report.nodes
        counted = nodes.half + nodes.mixed
        speed = f"{prediction.speedup:.2f}x" if prediction else ""
        return [
            f"{counted} of {counted + nodes.full}",
            f"{self.flops:.1f} %",
            f"{report.casts_added}",
            f"{self.error:.1e}",
            speed,
        ]


def measure(model: Path, sample: dict[str, np.ndarray], observed: object, *, rescale: bool) -> Measured:
    """The result of a model, rescaled or not."""
    result = rewrite(onnx.load(model), Options(rescale=rescale), observed=observed)
    verdict = verify(model, result.model, [sample], device="cpu")
    coverage = measure_coverage(result.model)
    return Measured(result.report, 100 * (coverage.flops.share or 0), verdict.error)


def rows(folder: Path) -> Iterator[str]:
    """A line for each model."""
    for model in sorted(folder.glob("*/model.onnx")):
        with np.load(model.with_name("inputs.npz")) as file:
            sample = dict(file)
        observed = observe(model, [sample])
        before, after = (measure(model, sample, observed, rescale=each) for each in (False, True))
        scaled = after.report.rescaled
        changes = [f"{scaled.weights}", f"{scaled.epsilons}", f"{scaled.muls}"] if scaled else ["", "", ""]
        most = f"{scaled.most:.1e}" if scaled else ""
        yield f"| {' | '.join([model.parent.name, most, *before.cells(), *after.cells(), *changes])} |"


def main() -> None:
    """Prints the table, a model a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(HEADING, end="")
    for row in rows(asked.folder):
        print(row, flush=True)


if __name__ == "__main__":
    main()
