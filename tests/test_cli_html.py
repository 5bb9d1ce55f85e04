"""--html: what it writes, and what it refuses."""

import json
import re

import onnx
import pytest

from amp_rewrite import demo
from tests.commands import run
from tests.text import RUNS

needs_runs = pytest.mark.skipif(not RUNS, reason="runs models, and onnxruntime is not installed")


@pytest.fixture
def model(tmp_path):
    """The demo in a folder of its own."""
    onnx.save(demo.network(), tmp_path / "demo.onnx")
    return tmp_path / "demo.onnx"


def data_of(path):
    """What the script of a page would read."""
    pattern = rb'<script type="application/json" id="data">(.*?)</script>'
    return json.loads(re.search(pattern, path.read_bytes(), re.DOTALL)[1])


@needs_runs
def test_what_is_overwritten_is_shown_as_it_was(model, tmp_path):
    """With --in-place the page still has the original, compared with what took its place."""
    before = data_of_a_rewrite(model, tmp_path / "a.html", "-o", tmp_path / "a.onnx")
    after = data_of_a_rewrite(model, tmp_path / "b.html", "--in-place")
    assert [box["name"] for box in after["boxes"]] == [box["name"] for box in before["boxes"]]
    assert after["verification"] == before["verification"]


def data_of_a_rewrite(model, html, *flags):
    """The page's data of a rewrite that goes well."""
    result = run(model, *flags, "--html", html)
    assert result.exit_code == 0, result.output
    return data_of(html)


def test_a_dry_run_and_explain_show_the_same_page(model, tmp_path):
    """What is decided and not done: one page, whichever command makes it, and no model is written."""
    assert run(model, "--dry-run", "--html", tmp_path / "dry.html").exit_code == 0
    assert run("explain", model, "--html", tmp_path / "explained.html").exit_code == 0
    pages = [data_of(tmp_path / name) for name in ("dry.html", "explained.html")]
    options = [page["card"]["facts"].pop()[1] for page in pages]
    assert pages[0] == pages[1]
    assert options == ["--dry-run --html dry.html", "--html explained.html"]
    assert {path.name for path in tmp_path.iterdir()} == {"demo.onnx", "dry.html", "explained.html"}


def test_flags_decide_what_the_page_shows(model, tmp_path):
    """The page is of the rewrite that was asked for."""
    run("explain", model, "--deny", "Softmax", "--to", "bfloat16", "--html", tmp_path / "r.html")
    data = data_of(tmp_path / "r.html")
    assert data["half"] == "bfloat16"
    shades = {box["name"]: box["shade"] for box in data["boxes"]}
    assert shades["score_softmax"] == "full"
