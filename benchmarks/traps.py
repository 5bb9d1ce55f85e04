"""Counts the numeric traps that the plain command gets right, warns of, or misses.

    python benchmarks/traps.py [--data] [--only PATTERN]

traps.zip holds 84 small networks on which a model in half precision is wrong: sums that cancel, angles,
logarithms, squares beyond float16, and so on; each with inputs that show it (`NAME.npz` for `NAME.onnx`).
Each is rewritten by the plain command, on synthetic inputs, or with --data on its own, and the result is
then compared with the original on its own inputs. It is

* right: within 1e-2;
* said: not right, but the command fails, is inconclusive, or warns with the word FAIL;
* silent: not right, and nothing is said.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import tempfile
import zipfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

import amp_rewrite
from amp_rewrite.cli import main as command

TRAPS = Path(__file__).with_name("traps.zip")


def measure(name: str, folder: Path, *, has_data: bool) -> tuple[str, str, str]:
    """Return the name of a trap, how it ends, and the figures and warnings behind that."""
    model, result = folder / "models" / f"{name}.onnx", folder / f"{name}.half.onnx"
    data = folder / "data" / f"{name}.npz"
    words = [str(model), "-o", str(result), "--json", str(result.with_suffix(".json"))]
    ended = CliRunner().invoke(command, words + (["--data", str(data)] if has_data else []))
    if ended.exit_code not in (0, 1):
        return name, "silent", ended.output
    verdict = amp_rewrite.verify(model, result, dict(np.load(data)), device="cpu")
    report = json.loads(result.with_suffix(".json").read_text())
    figures = f"{verdict.error:.1e}, {report['nodes']['half']} half"
    if verdict.ok:
        return name, "right", figures
    said = _warning(report, ended.exit_code)
    return name, "said" if said else "silent", f"{figures}  {said}"


def _warning(report: dict[str, Any], exit_code: int) -> str:
    """Return what a report says of a result that may be wrong; nothing if it says nothing."""
    if exit_code:
        return "FAIL"
    verdict = report["verification"]
    if verdict is None or not report["verified"]:
        return "inconclusive"
    warnings = (*report["warnings"], *verdict["warnings"])
    return next((each for each in warnings if "FAIL" in each or "inconclusive" in each), "")


def main() -> None:
    """Print a line for each trap that is not right, and the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", action="store_true", help="give the command the inputs of each trap")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="the traps of these names")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("-v", "--verbose", action="store_true", help="print those that are right as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, zipfile.ZipFile(TRAPS) as archive:
        folder = Path(work)
        for kind, suffix in (("models", ".onnx"), ("data", ".npz")):
            archive.extractall(folder / kind, [n for n in archive.namelist() if n.endswith(suffix)])
        names = sorted(path.stem for path in (folder / "models").iterdir())
        names = [name for name in names if fnmatch.fnmatch(name, arguments.only)]
        counts: Counter[str] = Counter()
        with ProcessPoolExecutor(arguments.jobs) as pool:
            for name, ending, words in pool.map(
                partial(measure, folder=folder, has_data=arguments.data), names
            ):
                counts[ending] += 1
                if ending != "right" or arguments.verbose:
                    print(f"{ending:7} {name}  {words}", flush=True)
    print(f"{len(names)} traps: {counts['right']} right, {counts['said']} said, {counts['silent']} silent")


if __name__ == "__main__":
    main()
