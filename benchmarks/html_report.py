"""How long an HTML report takes to open in Chromium.

    python benchmarks/html_report.py MODEL|FOLDER [--rounds 5]

The report is that of `amp-rewrite explain MODEL --html`; of a FOLDER, that of its model with the most nodes.
Each round is a page of its own. Printed are the medians in milliseconds: from the request until all scripts
have run and the graph is drawn, and of that the layout of the graph. Needs playwright and a Chromium (apt-get
install chromium).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from playwright.sync_api import sync_playwright

DRAWN = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(
    [performance.now(), performance.getEntriesByName("layout")[0].duration]))))"""


def largest(folder: Path) -> Path:
    """The model with the most nodes of a folder, and of the folders below it."""
    sizes = {path: nodes(path) for path in sorted(folder.rglob("*.onnx"))}
    return max(sizes, key=sizes.__getitem__)


def nodes(path: Path) -> int:
    """How many nodes the main graph of a model has."""
    return len(onnx.load(str(path), load_external_data=False).graph.node)


def opened(browser: Any, report: Path, rounds: int) -> Iterator[tuple[float, float]]:
    """Milliseconds until all is drawn, and of the layout, for each round."""
    for _ in range(rounds):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(report.as_uri())
        page.wait_for_function("document.body.dataset.ready")
        yield tuple(page.evaluate(DRAWN))
        page.close()


def main() -> None:
    """Makes the report, opens it, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    model = largest(arguments.model) if arguments.model.is_dir() else arguments.model
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        report = Path(scratch) / "report.html"
        command = [sys.executable, "-m", "amp_rewrite", "explain", str(model), "--html", str(report)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        drawn, layout = map(statistics.median, zip(*opened(browser, report, arguments.rounds), strict=True))
        browser.close()
        size = report.stat().st_size / 1e6
    print(f"{model}: {nodes(model):,} nodes, {size:.1f} MB, {drawn:.0f} ms, layout {layout:.0f} ms")


if __name__ == "__main__":
    main()
