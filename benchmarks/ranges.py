"""How much of real models is proven to stay inside the range of float16, whatever their inputs.

    python benchmarks/ranges.py MODELS... [--markdown FILE]

MODELS are folders with a `model.onnx` in them, or models. Inputs that are floats are declared to be from -1
to 1; ids are those of their tables, and masks 0 or 1. Counted are the float32 units that make a value which
varies with the inputs. `half` counts the units that are half at the defaults, `seconds` is the time taken.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from amp_rewrite import pipeline
from amp_rewrite.bounds import unit_ranges
from amp_rewrite.bounds.bounding import Proven
from amp_rewrite.bounds.unit_ranges import Knowledge
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.model.traversal import varying_values
from amp_rewrite.policy.options import Options


@dataclass(frozen=True, slots=True)
class Row:
    """A model: its varying units and half units, each with how many are proven; the first that is not."""

    name: str
    units: int
    proven: int
    half_units: int
    half_proven: int
    seconds: float
    first: str

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        halves = f"{self.half_proven / self.half_units:.0%}" if self.half_units else ""
        shares = f"{self.proven / max(1, self.units):.0%}", f"{self.half_units:,}", halves
        return self.name, f"{self.units:,}", *shares, f"{self.seconds:.2f}", self.first


HEADER = ("model", "units", "proven", "half", "proven", "seconds", "first unit that is not")


def measure(path: Path) -> Row:
    """The row of a model whose float inputs are from -1 to 1."""
    floats = [
        value.name or ""
        for value in pipeline.analyze(path).graph.root.inputs
        if value.dtype == ir.DataType.FLOAT and not value.is_initializer()
    ]
    analysis = pipeline.analyze(path, Options(ranges=dict.fromkeys(floats, (-1.0, 1.0))))
    start = time.perf_counter()
    subject = analysis.loaded.model, analysis.facts, analysis.options
    proven = Proven(*subject)
    seconds = time.perf_counter() - start
    found = unit_ranges.find(analysis.facts, _varying(analysis), proven, {}, analysis.options.half).units
    others = [unit for unit, each in found.items() if each.knowledge is not Knowledge.PROVEN]
    first = f"{analysis.graph.units[others[0]].node.op_type}" if others else ""
    halves = analysis.ranges().counts
    name = path.parent.name if path.name == "model.onnx" else path.stem
    return Row(name, len(found), len(found) - len(others), halves.half_units, halves.proven, seconds, first)


def _varying(analysis: Analysis) -> list[int]:
    """The units that make a value that varies with the inputs."""
    changing = varying_values(analysis.graph.nodes)
    return [unit.index for unit in analysis.graph.units if not changing.isdisjoint(unit.defs)]


def main() -> None:
    """Prints a table, and writes it if requested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = [HEADER, ("---", "--:", "--:", "--:", "--:", "--:", "---")]
    paths = (given / "model.onnx" if given.is_dir() else given for given in arguments.models)
    rows += (measure(path).cells() for path in paths)
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    print(text, end="")
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
