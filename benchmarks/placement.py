"""What onnxruntime's CUDA provider executes of real models and of our results, as a table.

    python benchmarks/placement.py FOLDER --markdown docs/placement.md

FOLDER holds models with an `index.json`, as for benchmarks/accuracy.py. Needs onnxruntime-gpu (`pip install
--no-deps onnxruntime-gpu` is enough) and, on a machine without CUDA, gcc.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from amp_rewrite import Options, rewrite
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.escaping import visible
from amp_rewrite.placement import opening
from amp_rewrite.placement.differences import between
from amp_rewrite.placement.placement import Placement
from amp_rewrite.placement.placing import Place, placer
from amp_rewrite.running.sessions import Device

HALVES = ("float16", "bfloat16")
PACKAGES = ("onnxruntime-gpu", "onnx", "onnx-ir")

HEADING = """# What onnxruntime's CUDA provider executes

Each of {all} models is opened in float32 and as our result in float16 and in bfloat16, at the defaults, as
`amp-rewrite placement` does; {known} of them load in float32. Numbers are of the graph that onnxruntime
executes after its own optimisation, subgraphs included: all nodes; of these, those that handle half, and
those with float32 but no half (Casts and copies count for neither); Casts between float32 and half. "Worse"
names what the result has more of than the model: Casts that onnxruntime inserts, copies between devices
(Memcpy), nodes on the CPU.

{where}

Made on {date} by `python benchmarks/placement.py FOLDER --markdown docs/placement.md` with {versions}.
FOLDER holds models with an `index.json`; it is not part of this repository.

## In all

"""
TOTALS = """Results are counted where the model loads as well; "as float32" has the nodes of the same models.

| | load | nodes | as float32 | in half | in float32 | Casts | inserted | copies | on the CPU |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""
RATIOS = """
Of the models that load in float32, the nodes of the result over those of the model:

| | median | nine of ten below | largest |
|---|--:|--:|---|
"""
TABLE = """
## Model by model

The first five columns of results are those of float16, the last five those of bfloat16.

| model | nodes | nodes | half | float32 | Casts | worse | nodes | half | float32 | Casts | worse |
|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|---|
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


def placed(name: str, model: Path, place: Place) -> Row:
    """The row of a model."""
    return Row(name, place(model, None), {half: _result(model, half, place) for half in HALVES})


def _result(model: Path, half: str, place: Place) -> Placement:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.onnx"
        try:
            rewrite(model, Options(half=half), output=output)
        except AmpRewriteError as error:
            return Placement(refused=f"not rewritten: {error.problem}")
        return place(output, None)


def markdown(rows: Sequence[Row], *, stubs: bool) -> str:
    """The page: totals, ratios, and every model."""
    known = [row for row in rows if not row.original.refused]
    heading = HEADING.format(
        all=len(rows),
        known=len(known),
        where=STUBS if stubs else DEVICE,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
    )
    totals = [_total("float32", [(row.original, row.original) for row in known])]
    totals += [_total(half, [(row.original, row.results[half]) for row in known]) for half in HALVES]
    lines = "\n".join(map(_line, rows))
    refused = "\n".join(_refused(rows))
    return "".join(
        [
            heading,
            TOTALS,
            *totals,
            RATIOS,
            *(_ratios(half, rows) for half in HALVES),
            TABLE,
            lines,
            "\n",
            refused,
        ]
    )


def _total(name: str, pairs: Sequence[tuple[Placement, Placement]]) -> str:
    loaded = [(before, after) for before, after in pairs if not after.refused]
    nodes, *others = map(sum, zip(*(_numbers(after) for _, after in loaded), _numbers(NOTHING), strict=True))
    sums = [nodes, sum(before.nodes for before, _ in loaded), *others]
    cells = [name, f"{len(loaded)} of {len(pairs)}", *(f"{number:,}" for number in sums)]
    return f"| {' | '.join(cells)} |\n"


NOTHING = Placement()


def _numbers(one: Placement) -> tuple[int, ...]:
    half, full = (sum(counts.values()) for counts in (one.half, one.full))
    return one.nodes, half, full, one.float_casts, one.inserted_casts, one.copies, one.cpu_nodes


def _ratios(half: str, rows: Sequence[Row]) -> str:
    found = {row.name: ratio for row in rows if (ratio := row.ratio(half)) is not None}
    if not found:
        return f"| {half} | | | |\n"
    largest = max(found, key=lambda name: found[name])
    ordered = sorted(found.values())
    ninth = ordered[int(0.9 * (len(ordered) - 1))]
    return f"| {half} | {statistics.median(ordered):.2f} | {ninth:.2f} | {largest} {found[largest]:.2f} |\n"


def _line(row: Row) -> str:
    before = "does not load" if row.original.refused else f"{row.original.nodes:,}"
    cells = [row.name, before, *(cell for half in HALVES for cell in _cells(row.original, row.results[half]))]
    return f"| {' | '.join(cells)} |"


def _cells(original: Placement, result: Placement) -> list[str]:
    if result.refused:
        return ["" if original.refused else "**does not load**", "", "", "", ""]
    worse = ", ".join(map(str, between(original, result).worse))
    return [*(f"{number:,}" for number in _numbers(result)[:4]), worse]


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
    """Places every model and prints the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    entries = json.loads((arguments.folder / "index.json").read_text())
    with placer(Device.CUDA) as place:
        rows = [placed(entry["name"], arguments.folder / entry["file"], place) for entry in entries]
    text = markdown(rows, stubs=opening.needs_stubs(Device.CUDA)).replace(f"{arguments.folder}", "FOLDER")
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
