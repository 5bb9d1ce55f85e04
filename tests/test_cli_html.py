"""--html: what it writes, and what it refuses."""

import json
import re

import numpy as np
import onnx
import pytest

from amp_rewrite import demo
from tests import text
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
def test_a_rewrite_shows_the_comparison_and_what_each_node_adds(model, tmp_path):
    """The page has verdict and errors; the terminal says no more than without the page, but its name."""
    plain = run(model, "-o", tmp_path / "a.onnx").output
    result = run(model, "-o", tmp_path / "a.onnx", "--html", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    wrote = f"wrote    {tmp_path / 'r.html'}\n"
    assert result.output.replace(wrote, "") == plain != result.output
    data = data_of(tmp_path / "r.html")
    assert data["verification"]["ok"] is True
    assert len(data["errors"]) > 40
    assert list(data["histograms"]) == ["stored numbers", "node outputs, each by its largest magnitude"]


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


@needs_runs
def test_the_json_of_a_good_verdict_has_no_blame_that_nobody_asked_for(model, tmp_path):
    """A page changes nothing in what else is written."""
    paths = [tmp_path / "with.json", tmp_path / "without.json"]
    run(model, "-o", tmp_path / "a.onnx", "--json", paths[0], "--html", tmp_path / "r.html")
    run(model, "-o", tmp_path / "a.onnx", "--json", paths[1])
    found = [json.loads(path.read_text()) for path in paths]
    assert found[0]["verification"] == found[1]["verification"]
    assert found[0]["verification"]["blame"] is None


def test_without_a_comparison_the_page_says_so(model, tmp_path):
    """--skip verify leaves the decisions, and a word on why there is no verdict."""
    result = run(model, "-o", tmp_path / "a.onnx", "--skip=verify", "--html", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    data = data_of(tmp_path / "r.html")
    assert data["verification"]["ok"] is None
    assert "not compared" in data["verification"]["how"]
    assert len(data["reasons"]) > 40


def test_a_dry_run_and_explain_show_the_same_page(model, tmp_path):
    """What is decided and not done: one page, whichever command makes it, and no model is written."""
    assert run(model, "--dry-run", "--html", tmp_path / "dry.html").exit_code == 0
    assert run("explain", model, "--html", tmp_path / "explained.html").exit_code == 0
    pages = [data_of(tmp_path / name) for name in ("dry.html", "explained.html")]
    options = [page["card"]["facts"].pop()[1] for page in pages]
    assert pages[0] == pages[1]
    assert options == ["--dry-run --html dry.html", "--html explained.html"]
    assert {path.name for path in tmp_path.iterdir()} == {"demo.onnx", "dry.html", "explained.html"}


def test_the_coverage_of_a_plan_is_that_of_its_result(model, tmp_path):
    """What explain shows before is what the rewrite reaches after."""
    run("explain", model, "--html", tmp_path / "before.html")
    run(model, "-o", tmp_path / "a.onnx", "--skip=verify", "--html", tmp_path / "after.html")
    before, after = (data_of(tmp_path / f"{name}.html")["coverage"] for name in ("before", "after"))
    assert before == after
    assert before["flops"]["share"] > 0.9


def test_flags_decide_what_the_page_shows(model, tmp_path):
    """The page is of the rewrite that was asked for."""
    run("explain", model, "--deny", "Softmax", "--to", "bfloat16", "--html", tmp_path / "r.html")
    data = data_of(tmp_path / "r.html")
    assert data["half"] == "bfloat16"
    shades = {box["name"]: box["shade"] for box in data["boxes"]}
    assert shades["score_softmax"] == "full"


def test_a_saved_plan_is_shown_on_its_model(model, tmp_path):
    """With --plan the page has the plan's decisions; a plan alone has no graph."""
    run(model, "--dry-run", "--save-plan", tmp_path / "plan.json", "--deny", "Softmax")
    run("explain", model, "--plan", tmp_path / "plan.json", "--html", tmp_path / "r.html")
    shades = {box["name"]: box["shade"] for box in data_of(tmp_path / "r.html")["boxes"]}
    assert shades["score_softmax"] == "full"
    refused = run("explain", tmp_path / "plan.json", "--html", tmp_path / "s.html")
    assert refused.exit_code == 2
    assert "no graph to draw" in refused.stderr


def test_a_folder_as_the_page_is_refused_before_anything_runs(model):
    """In one line, and nothing is written."""
    refused = run(model, "--html", ".")
    assert refused.exit_code == 2
    assert "is a folder" in refused.stderr
    assert [path.name for path in model.parent.iterdir()] == ["demo.onnx"]


@needs_runs
@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_the_sizes_of_the_data_count(tmp_path, flags):
    """Where --data brings the inputs, open dimensions have their sizes, and none counts as the default."""
    path, data = tmp_path / "open.onnx", tmp_path / "data.npz"
    source = "g (float[n, 4] x, float[n, m] z) => (float[n, n] y, float[n, m] u) <float[4, 4] w> {"
    body = "a = MatMul(x, w)  b = Transpose <perm = [1, 0]> (x)  y = MatMul(a, b)  u = Relu(z) }"
    onnx.save(text.model(source + body), path)
    x, z = (np.random.default_rng(0).random(size, np.float32) for size in ((8, 4), (8, 3)))
    np.savez(data, x=x, z=z)
    page = tmp_path / "r.html"
    assert run(path, *flags, "--html", page).exit_code == 0
    assert "count as 64 (n, m)" in data_of(page)["coverage"]["assumptions"][0]
    result = run(path, *flags, "--html", page, "--data", data)
    assert result.exit_code == 0, result.output
    assert data_of(page)["coverage"]["assumptions"] == []
    assert [box["flops"] for box in data_of(page)["boxes"] if box["operator"] == "MatMul"] == [256, 512]
