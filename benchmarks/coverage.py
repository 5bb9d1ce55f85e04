"""Precision coverage of real models, as a table: every model of a folder, rewritten at the defaults.

    python benchmarks/coverage.py FOLDER --markdown benchmarks/results/coverage.md

FOLDER is any folder of models with their inputs beside them (`model.npz` for `model.onnx`; model_folder.py
says more). Only the shapes of the inputs matter here: they determine the sizes of open dimensions. For a
model without inputs, open dimensions count as 1.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from model_folder import Model, models

from amp_rewrite import Options, analyze, rewrite
from amp_rewrite.coverage.counts import Coverage, Precision, measure
from amp_rewrite.coverage.coverage_rules import percent
from amp_rewrite.coverage.faces import flops
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.explaining.causes import RootCause
from amp_rewrite.explaining.sentences import of_cause
from amp_rewrite.reporting.explanations import of_analysis
from amp_rewrite.text import plural, visible

PACKAGES = ("onnx", "onnx-ir", "onnxruntime")
BOUND = 0.9
"""Models with a smaller share of FLOPs in half are listed with their causes."""

WORTH = 0.01
"""Causes with a smaller share of a model's floating-point FLOPs are not listed."""

PRODUCTS = frozenset(
    """Conv ConvTranspose MatMul Gemm LSTM GRU RNN Attention Einsum QLinearConv QLinearMatMul MatMulInteger
    ConvInteger com.microsoft:FusedConv com.microsoft:FusedMatMul com.microsoft:FusedGemm
    com.microsoft:MatMulNBits com.microsoft:Attention com.microsoft:MultiHeadAttention
    com.microsoft:GroupQueryAttention""".split()
)
"""Operators typical of networks: a model with most of its FLOPs elsewhere is a test of an operator."""

HEADING = """# Precision coverage of real models

Each model is rewritten to float16 at the defaults and measured by `amp-rewrite coverage`
(docs/ci.md says what that counts). Open dimensions have the sizes of each model's own
inputs, or 64 if it has none. Shares are of floats; FLOPs on integers are listed separately. The cause is the
one that keeps most FLOPs in float32 according to `amp-rewrite explain`, with its share of all FLOPs.

{networks} of the {all} models are networks: most of their arithmetic is in products (matrices,
convolutions, recurrent cells, attention). {good} of these have at least 90 % of their floating-point FLOPs
in half; the others are listed below the table, with all their causes of float32.

Made on {date} by `python benchmarks/coverage.py FOLDER --markdown FILE` with {versions}.
FOLDER is a folder of models with their inputs beside them (`model.npz` for `model.onnx`), and is not part of
this repository; `benchmarks/model_folder.py` describes it, so that you can use your own.

| model | nodes in half | FLOPs | in half | weights in half | Casts added | largest cause of float32 |
|---|--:|--:|--:|--:|--:|---|
"""
BELOW = """
## Networks below 90 % of FLOPs in half
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """A model's coverage after the rewrite and its causes of float32; or in `failed` why there is none."""

    name: str
    coverage: Coverage | None = None
    casts_added: int = 0
    causes: tuple[RootCause, ...] = ()
    failed: str = ""

    @property
    def is_network(self) -> bool:
        """Whether most of its arithmetic is in products."""
        if self.coverage is None:
            return False
        products = sum(row.flops.total for row in self.coverage.rows if row.operator in PRODUCTS)
        return 2 * products > self.coverage.flops.total

    @property
    def is_below(self) -> bool:
        """Whether it is a network with too small a share of FLOPs in half."""
        share = self.coverage.flops.share if self.coverage is not None else None
        return self.is_network and (share is None or share < BOUND)


def measured(folder: Path, model: Model) -> Measured:
    """One model: analysed for the causes, rewritten, counted."""
    try:
        dims = model.dims()
        analysis = analyze(model.path, Options(dims=dims))
        explained = of_analysis(analysis)
        with tempfile.TemporaryDirectory() as scratch:
            result = rewrite(model.path, output=Path(scratch) / "rewritten.onnx")
            coverage = measure(result.model, dims)
    except AmpRewriteError as error:
        return Measured(model.name, failed=str(error).replace(str(folder), "FOLDER"))
    causes = tuple(cause for cause in explained.causes if _holds_back(cause, coverage))
    return Measured(model.name, coverage, result.report.casts_added, causes)


def _holds_back(cause: RootCause, coverage: Coverage) -> bool:
    """Whether any node of a cause is not half in the result: an affected unit may be without floats."""
    outside = {n.name for n in coverage.node_list if n.precision in (Precision.FULL, Precision.MIXED)}
    affected = (cause.decisions.all[unit] for unit in cause.affected)
    return any(outside & {decision.node, *decision.outputs} for decision in affected)


def markdown(found: Sequence[Measured]) -> str:
    """The table, with an introduction, and below it the models below the bound."""
    networks = [row for row in found if row.is_network]
    heading = HEADING.format(
        networks=len(networks),
        all=len(found),
        good=sum(not row.is_below for row in networks),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
    )
    lines = [_line(row) for row in found]
    below = [line for row in networks if row.is_below for line in _below(row)]
    return heading + "\n".join([*lines, *((BELOW, *below) if below else ())]) + "\n"


def _line(row: Measured) -> str:
    if row.coverage is None:
        return f"| {row.name} | | | | | | {_text(row.failed)} |"
    found = row.coverage
    known = flops(found.flops.floats) + (
        f" and {flops(found.flops.other)} on integers" if found.flops.other else ""
    )
    shares = [percent(counts.share) for counts in (found.nodes, found.flops, found.weights)]
    cells = [row.name, shares[0], known, shares[1], shares[2], f"{row.casts_added}", _largest(row)]
    return f"| {' | '.join(cells)} |"


def _largest(row: Measured) -> str:
    return _cause(row.causes[0]) if row.causes else ""


def _cause(cause: RootCause) -> str:
    """The size of a cause, its operators and its reason."""
    share = "" if cause.flop_share is None else f"{percent(cause.flop_share)} of FLOPs, "
    words = of_cause(cause)
    return _text(
        f"{share}{plural(len(cause.affected), 'node')}: {', '.join(cause.operators)}: {words.reason}"
    )


def _below(row: Measured) -> Iterator[str]:
    """A model with its causes of float32."""
    found = row.coverage
    aside = found.flops.other / found.flops.total if found.flops.total else 0.0
    quantised = f"; {percent(aside)} of all arithmetic is on integers or converts them" if aside else ""
    yield f"- **{row.name}**: {percent(found.flops.share)} of floating-point FLOPs in half{quantised}"
    floats = 1.0 - aside
    for cause in row.causes:
        if (cause.flop_share or 0.0) >= WORTH * floats:
            yield f"  - {_cause(cause)}"


def _text(text: str) -> str:
    return visible(text).replace("|", "&#124;").replace("<", "&lt;")


def main() -> None:
    """Measures every model and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    text = markdown([measured(arguments.folder, model) for model in models(arguments.folder)])
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
