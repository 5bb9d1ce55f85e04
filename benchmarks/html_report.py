"""The time that an HTML report takes to open in Chromium.

    python benchmarks/html_report.py MODEL|FOLDER [--rounds 5]

The report is that of `amp-rewrite explain MODEL --html`; for a FOLDER, that of its model with the most nodes.
Each round opens a new page. Prints the medians in milliseconds: from the request until all scripts have run
and the graph is drawn, and of the graph layout alone. Needs playwright and Chromium (apt-get install
chromium).
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
from graphs import Transformer
from playwright.sync_api import sync_playwright

DRAWN = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(
    [performance.now(), performance.getEntriesByName("layout")[0].duration]))))"""


def chosen(asked: str, scratch: Path) -> Path:
    """The requested model; for a number of nodes, a generated one."""
    if asked.isdigit():
        onnx.save(Transformer(int(asked)).model(), scratch / "transformer.onnx")
        return scratch / "transformer.onnx"
    return largest(Path(asked)) if Path(asked).is_dir() else Path(asked)


def largest(folder: Path) -> Path:
    """The model with the most nodes in a folder and its subfolders."""
    sizes = {path: nodes(path) for path in sorted(folder.rglob("*.onnx"))}
    return max(sizes, key=sizes.__getitem__)


def nodes(path: Path) -> int:
    """The number of nodes of the main graph."""
    return len(onnx.load(str(path), load_external_data=False).graph.node)


def opened(browser: Any, report: Path, rounds: int) -> Iterator[tuple[float, float]]:
    """Milliseconds until the page is drawn, and of the layout, for each round."""
    for _ in range(rounds):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(report.as_uri())
        page.wait_for_function("document.body.dataset.ready")
        yield tuple(page.evaluate(DRAWN))
        page.close()


def main() -> None:
    """Writes the report, opens it, and prints the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        model, report = chosen(arguments.model, Path(scratch)), Path(scratch) / "report.html"
        command = [sys.executable, "-m", "amp_rewrite", "explain", str(model), "--html", str(report)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        drawn, layout = map(statistics.median, zip(*opened(browser, report, arguments.rounds), strict=True))
        browser.close()
        size = report.stat().st_size / 1e6
        print(f"{model.parent.name}/{model.name}: {nodes(model):,} nodes, {size:.1f} MB")
    print(f"drawn after {drawn:.0f} ms, of which layout {layout:.0f} ms")


if __name__ == "__main__":
    main()
