"""What onnxruntime's CUDA provider executes of real models and of our results, as a table.

    python benchmarks/placement.py FOLDER --markdown benchmarks/results/placement.md
    python benchmarks/placement.py FOLDER --to bfloat16        # one of the two, printed

FOLDER is any folder of models. Needs onnxruntime-gpu (`pip install
--no-deps onnxruntime-gpu` is enough) and, on a machine without CUDA, gcc.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from model_folder import models

from amp_rewrite import Options, rewrite
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.numerics.half import BY_NAME
from amp_rewrite.placement.placement import Placement
from amp_rewrite.placement.placing import Place, placer
from amp_rewrite.placement.saved_graph import FULL
from amp_rewrite.policy import kernel_table
from amp_rewrite.running.sessions import Device
from amp_rewrite.text import visible

TOOL, USED = Path(__file__).parents[1] / "tools" / "stub_libraries.py", "AMP_REWRITE_CUDA_STUBS"
NEAR = 1.1
"""How many times the nodes of the model a result may have to be called near it."""
PACKAGES = ("onnxruntime-gpu", "onnx", "onnx-ir")

HEADING = """# What onnxruntime's CUDA provider executes

Each of {all} models is opened in float32 and as our result in {halves}, at the defaults, as
`amp-rewrite placement` does; {known} of them load in float32. Numbers are of the graph that onnxruntime
executes after its own optimisation, subgraphs included: all nodes; of these, those that handle half, and
those with float32 but no half (Casts and copies count for neither); of these ("could be half") those on the
GPU for whose operator the provider has half kernels at some version; Casts between float32 and half. "Worse"
names what the result has more of than the model: Casts that onnxruntime inserts, copies between devices
(Memcpy), nodes on the CPU.

{where}

Made on {date} by `python benchmarks/placement.py FOLDER --markdown FILE` with {versions}.
FOLDER is a folder of models; it is not part of this repository.

## In all

"""
TOTALS = """Results are counted where the model loads as well; "as float32" has the nodes of the same models.

| | load | nodes | as float32 | half | float32 | could be half | Casts | inserted | copies | on the CPU |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""
RATIOS = """
Of the models that load in float32, the nodes of the result over those of the model:

| | median | nine of ten below | at most {near:.2f} | largest |
|---|--:|--:|--:|---|
"""
TABLE = """
## Model by model

{columns}

| model | nodes |{names}
|---|--:|{rulers}
"""
STUBS = (
    "This machine has no GPU: stub CUDA libraries stand in for it. The graphs are those that onnxruntime "
    "makes; nothing is computed."
)
DEVICE = "CUDA works on this machine."


@dataclass(frozen=True, slots=True)
class Row:
    """A model's placements: as it is, and as our result in each half type."""

    name: str
    original: Placement
    results: Mapping[str, Placement]

    def ratio(self, half: str) -> float | None:
        """Nodes of the result over those of the model; None where either does not load, or has none."""
        result = self.results[half]
        if self.original.refused or result.refused or not self.original.nodes:
            return None
        return result.nodes / self.original.nodes


def placed(name: str, model: Path, place: Place, halves: Sequence[str] = tuple(BY_NAME)) -> Row:
    """The row of a model, with results in these half types."""
    return Row(name, place(model, None), {half: _result(model, half, place) for half in halves})


def _result(model: Path, half: str, place: Place) -> Placement:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.onnx"
        try:
            rewrite(model, Options(half=half), output=output)
        except AmpRewriteError as error:
            return Placement(refused=f"not rewritten: {error.problem}")
        return place(output, None)


def markdown(rows: Sequence[Row], *, stubs: bool, halves: Sequence[str] = tuple(BY_NAME)) -> str:
    """The page: totals, ratios, and every model, with the results in these half types."""
    known = [row for row in rows if not row.original.refused]
    heading = HEADING.format(
        all=len(rows),
        known=len(known),
        halves=" and in ".join(halves),
        where=STUBS if stubs else DEVICE,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
    )
    totals = [_total("float32", [(row.original, row.original) for row in known])]
    totals += [_total(half, [(row.original, row.results[half]) for row in known]) for half in halves]
    ratios = [RATIOS.format(near=NEAR), *(_ratios(half, rows) for half in halves)]
    lines = "\n".join(_line(row, halves) for row in rows)
    refused = "\n".join(_refused(rows))
    return "".join([heading, TOTALS, *totals, *ratios, _table(halves), lines, "\n", refused])


def _table(halves: Sequence[str]) -> str:
    """The head of the table of all models: five columns for each half type."""
    each = (
        f"Behind the nodes of the model are five columns for the result in {', then five in '.join(halves)}."
    )
    names = " nodes | half | float32 | Casts | worse |" * len(halves)
    return TABLE.format(columns=each, names=names, rulers="--:|--:|--:|--:|---|" * len(halves))


def _total(name: str, pairs: Sequence[tuple[Placement, Placement]]) -> str:
    loaded = [(before, after) for before, after in pairs if not after.refused]
    nodes, *others = map(sum, zip(*(_numbers(after) for _, after in loaded), _numbers(NOTHING), strict=True))
    sums = [nodes, sum(before.nodes for before, _ in loaded), *others]
    cells = [name, f"{len(loaded)} of {len(pairs)}", *(f"{number:,}" for number in sums)]
    return f"| {' | '.join(cells)} |\n"


NOTHING = Placement()


def _numbers(one: Placement) -> tuple[int, ...]:
    half, full = (sum(counts.values()) for counts in (one.half, one.full))
    casts = one.float_casts, one.inserted_casts
    return one.nodes, half, full, _left(one), *casts, one.copies, one.cpu_nodes


def _left(one: Placement) -> int:
    """The nodes on the GPU with float32 but no half whose operator has half kernels there."""
    full = Counter(one.full)
    for group in one.on_cpu:
        full[group.operator] -= group.count if group.precision == FULL else 0
    return sum(max(count, 0) for operator, count in full.items() if _has_half(operator))


@functools.cache
def _has_half(operator: str) -> bool:
    """Whether CUDA's provider has a kernel with half for any version of an operator."""
    spans = kernel_table.load("onnxruntime_cuda").get(operator, ())
    takes = [taken for kernels in spans for kernel in kernels.takes for taken in kernel.values()]
    return any(not taken.isdisjoint(BY_NAME) for taken in takes)


def _ratios(half: str, rows: Sequence[Row]) -> str:
    found = {row.name: ratio for row in rows if (ratio := row.ratio(half)) is not None}
    if not found:
        return f"| {half} | | | | |\n"
    largest = max(found, key=lambda name: found[name])
    ordered = sorted(found.values())
    ninth = ordered[int(0.9 * (len(ordered) - 1))]
    near = sum(ratio <= NEAR for ratio in ordered) / len(ordered)
    middle = f"{statistics.median(ordered):.2f} | {ninth:.2f} | {near:.0%}"
    return f"| {half} | {middle} | {largest} {found[largest]:.2f} |\n"


def _line(row: Row, halves: Sequence[str]) -> str:
    before = "does not load" if row.original.refused else f"{row.original.nodes:,}"
    cells = [row.name, before, *(cell for half in halves for cell in _cells(row.original, row.results[half]))]
    return f"| {' | '.join(cells)} |"


def _cells(original: Placement, result: Placement) -> list[str]:
    if result.refused:
        return ["" if original.refused else "**does not load**", "", "", "", ""]
    worse = ", ".join(worsened(original, result))
    nodes, half, full, _, casts, *_ = _numbers(result)
    return [*(f"{number:,}" for number in (nodes, half, full, casts)), worse]


def worsened(original: Placement, result: Placement) -> list[str]:
    """What a result has more of than its original, and no rewrite should raise."""
    pairs = {
        "inserted Casts": (original.inserted_casts, result.inserted_casts),
        "copies": (original.copies, result.copies),
        "nodes on the CPU": (original.cpu_nodes, result.cpu_nodes),
    }
    return [f"{what} {before:,} -> {after:,}" for what, (before, after) in pairs.items() if after > before]


def _refused(rows: Sequence[Row]) -> Iterator[str]:
    """What onnxruntime says of the models that load, and whose results do not; then of the others."""
    yield "\n## What does not load\n"
    for row in rows:
        kinds = {"float32": row.original} if row.original.refused else row.results
        for kind, found in kinds.items():
            if found.refused:
                yield f"- **{row.name}** ({kind}): {_text(found.refused)}"
    yield ""


def _text(text: str) -> str:
    return visible(text).replace("|", "&#124;").replace("<", "&lt;")


def main() -> None:
    """Places every model and prints the page, in a process with stub libraries where CUDA does not work."""
    if USED not in os.environ:
        sys.exit(subprocess.run([sys.executable, TOOL, sys.executable, *sys.argv], check=False).returncode)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--to", action="append", choices=tuple(BY_NAME), help="may be repeated; default: all")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    folder, halves = arguments.folder, arguments.to or tuple(BY_NAME)
    with placer(Device.CUDA) as place:
        rows = [placed(model.name, model.path, place, halves) for model in models(folder)]
    text = markdown(rows, stubs=bool(os.environ[USED]), halves=halves)
    text = text.replace(f"{folder}", "FOLDER")
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
