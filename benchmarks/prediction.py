"""Predicted times of real models: in float32, as our result, and with everything in half, as a table.

    python benchmarks/prediction.py FOLDER --markdown FILE [--device t4] [--to bfloat16]

FOLDER is any folder of models. Nothing is run or measured.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from model_folder import models

from amp_rewrite import Options, analyze
from amp_rewrite.colouring import classification, rules
from amp_rewrite.costs import model_costs
from amp_rewrite.costs.model_costs import AS_GIVEN, ModelCosts, Prediction, Scale
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.policy import devices
from amp_rewrite.text import visible

PACKAGES = ("onnx", "onnx-ir")
HEADING = """# Predicted times of real models

Predicted, not measured: a roofline of bytes and FLOPs with a launch for each kernel, as
docs/decisions.md describes it, for {device} and {half} at the defaults. "x float32" is how
many times as fast as float32 (without TF32) the model is predicted to be; "unpruned" is the same without the
rule `prune`, and "everything" with all that the types allow in half, whether there are kernels or not. At
large sizes, the small sizes of demonstrations count as large, and open dimensions; as given, only these. At
large batches, inner products keep their length.

Made on {date} by `python benchmarks/prediction.py FOLDER --markdown FILE` with {versions}.
FOLDER is a folder of models; it is not part of this repository.

{networks} of the {all} models are networks: they have products of matrices, and something becomes half.

| geometric means of these | unpruned | x float32 | with the gate | everything |
|---|--:|--:|--:|--:|
"""
TABLE = """
The gate counts a model as 1 that is predicted to be slower than float32: {slow} of them at large sizes, and
{slower} as given.

| model | units | pruned | Casts unpruned | Casts | unpruned | x float32 | everything | as given |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A model: how many units it has and how many of them are pruned, and predictions without and with that.

    `large`, `batch` (only values count as large) and `given` say at which sizes, `failed` why there are none.
    """

    name: str
    units: int = 0
    pruned: int = 0
    is_network: bool = False
    before: Prediction | None = None
    large: Prediction | None = None
    batch: Prediction | None = None
    given: Prediction | None = None
    failed: str = ""


def predicted(name: str, model: Path, options: Options) -> Row:
    """The row of a model."""
    try:
        analysis = analyze(model, options)
    except AmpRewriteError as error:
        return Row(name, failed=error.problem)
    found = model_costs.measure_prices(analysis.graph, options)
    after = [analysis.painting.is_half(unit.index) for unit in analysis.graph.units]
    before = _unpruned(analysis)
    large = found.costs.large
    return Row(
        name,
        len(after),
        sum(before) - sum(after),
        any(before) and _has_products(found.costs),
        found.predict(before, large),
        found.predict(after, large),
        found.predict(after, Scale(large.batch)),
        found.predict(after, AS_GIVEN),
    )


def _unpruned(analysis: Analysis) -> list[bool]:
    """The colours as the rules give them."""
    entries = classification.classify(
        analysis.graph, analysis.findings, analysis.options, analysis.facts.freed
    )
    painting = rules.paint(analysis.graph, entries, follow=analysis.options.follow)
    return [painting.is_half(unit.index) for unit in analysis.graph.units]


def _has_products(costs: ModelCosts) -> bool:
    return any(kernel.product and kernel.units for kernel in costs.kernels)


def markdown(rows: Sequence[Row], options: Options) -> str:
    """The page: geometric means, and every model."""
    networks = [row for row in rows if row.is_network]
    heading = HEADING.format(
        device=options.device.name,
        half=options.half.name,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
        networks=len(networks),
        all=len(rows),
    )
    table = TABLE.format(
        slow=sum(row.large.speedup < 1 for row in networks),
        slower=sum(row.given.speedup < 1 for row in networks),
    )
    return "\n".join([heading.rstrip("\n"), *_means(networks), table.rstrip("\n"), *map(_line, rows), ""])


def _means(networks: Sequence[Row]) -> Iterator[str]:
    large = [row.large for row in networks]
    given = [row.given for row in networks]
    for name, found, before in (
        ("at large sizes", large, [row.before for row in networks]),
        ("at large batches", [row.batch for row in networks], []),
        ("as given", given, []),
    ):
        cells = [
            _mean(one.speedup for one in before),
            _mean(one.speedup for one in found),
            _mean(max(one.speedup, 1.0) for one in found),
            _mean(one.speedup / one.of_everything for one in found),
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def _mean(found: Iterable[float]) -> str:
    """The geometric mean; nothing of nothing."""
    logarithms = [math.log(one) for one in found]
    return f"{math.exp(sum(logarithms) / len(logarithms)):.2f}" if logarithms else ""


def _line(row: Row) -> str:
    if row.before is None:
        return f"| {row.name} | | | | | {visible(row.failed).replace('|', '&#124;')} | | | |"
    cells = [
        f"{row.units:,}",
        f"{row.pruned:,}",
        f"{row.before.result.casts:,}",
        f"{row.large.result.casts:,}",
    ]
    speeds = (
        row.before.speedup,
        row.large.speedup,
        row.large.speedup / row.large.of_everything,
        row.given.speedup,
    )
    return f"| {row.name} | {' | '.join((*cells, *(f'{speed:.2f}' for speed in speeds)))} |"


def main() -> None:
    """Predicts for every model and prints the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--device", choices=devices.BY_NAME, default=devices.H200.name)
    parser.add_argument("--to", choices=("float16", "bfloat16"), default="float16")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    options = Options(half=arguments.to, device=arguments.device)
    rows = [predicted(model.name, model.path, options) for model in models(arguments.folder)]
    text = markdown(rows, options)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
