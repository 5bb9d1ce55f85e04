"""--html, --plots and --show latency: what they write, and what they refuse."""

import importlib.util
import json
import re

import numpy as np
import onnx
import pytest
from onnx import parser

from amp_rewrite import demo
from amp_rewrite.cli import html_and_plots
from amp_rewrite.placement import stub_libraries
from amp_rewrite.running.sessions import Device
from tests import text
from tests.commands import failure, run
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
    assert [picture["title"] for picture in data["pictures"]] == [
        "Relative error of each node",
        "Magnitudes against the limits of float16",
        "Error that rounding at each node adds",
    ]


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


@needs_runs
def test_plots_are_files_of_their_own(model, tmp_path):
    """Each is an SVG."""
    assert run(model, "-o", tmp_path / "a.onnx", "--plots", tmp_path / "plots").exit_code == 0
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {"errors.svg", "ranges.svg", "sensitivity.svg"}


@pytest.mark.slow
@needs_runs
def test_latency_is_a_plot_too(model, tmp_path, monkeypatch):
    """Both models are timed, in the order before and after."""
    monkeypatch.setattr("amp_rewrite.running.latency.TimingBudget.__init__.__defaults__", (5, 0, 0.0))
    result = run(model, "-o", tmp_path / "a.onnx", "--show=latency", "--html", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    (chart,) = [p for p in data_of(tmp_path / "r.html")["pictures"] if p["title"].startswith("Latency")]
    labels = [shape["text"] for shape in chart["shapes"] if shape["shape"] == "text"][::2]
    assert [label.split("/")[-1] for label in labels] == ["demo.onnx", "a.onnx"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--show=latency"], "--show latency is for --html and --plots"),
        (["--show=latency", "--html", "r.html", "--dry-run"], "two models"),
        (["--show=latency", "--html", "r.html", "--in-place"], "two models"),
        (["--html", "."], "is a folder"),
        (
            ["--show=placement"],
            "--show placement is for --html; add --html FILE, or use amp-rewrite placement",
        ),
        (["--show=placement", "--plots", "p"], "--show placement is for --html"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(model, flags, said):
    """In one line, and nothing is written."""
    refused = run(model, *flags)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert [path.name for path in model.parent.iterdir()] == ["demo.onnx"]


def test_plots_where_no_folder_can_be(model, tmp_path):
    """A file in the way is one line, not a traceback."""
    (tmp_path / "plots").write_text("")
    refused = run("explain", model, "--plots", tmp_path / "plots")
    assert refused.exit_code == 2
    assert "plots" in refused.stderr


@needs_runs
def test_what_cannot_be_timed_has_no_latency(tmp_path):
    """A model that no runtime takes is rewritten and shown all the same."""
    made = parser.parse_model("""<ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[2,2] x) => (float[2,2] y) { a = MatMul (x, x) y = own.Op (a) }""")
    onnx.save(made, tmp_path / "own.onnx")
    result = run(tmp_path / "own.onnx", "--show=latency", "--html", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r.html").exists()


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


@pytest.fixture
def on_the_cpu(monkeypatch):
    """--show placement asks the CPU provider, which is everywhere."""
    monkeypatch.setattr(html_and_plots, "_DEVICE", Device.CPU)


@needs_runs
@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("flags", ["--skip=verify", "--skip verify --in-place", "--dry-run", "explain"])
def test_a_placement_is_in_the_page_and_in_json(model, tmp_path, flags):
    """What is executed of the result beside what is of the original, whichever command asks."""
    page, told = tmp_path / "r.html", tmp_path / "r.json"
    command = [flags, model] if flags == "explain" else [model, *flags.split()]
    result = run(*command, "--html", page, "--show=placement", "--json", told)
    assert result.exit_code == 0, result.output
    placed, found = data_of(page)["placement"], json.loads(told.read_text())["placement"]
    assert placed["runtime"] == {key: found[key] for key in ("onnxruntime", "provider", "stubs")}
    assert (placed["runtime"]["provider"], placed["refused"]) == ("cpu", "")
    counts = {row["what"]: (row["before"], row["after"], row["is_worse"]) for row in placed["counts"]}
    nodes = found["original"]["nodes"], found["result"]["nodes"]
    assert counts["nodes"] == (*nodes, False)
    assert counts["inserted Casts"] == (0, found["result"]["inserted_casts"], True)
    assert found["result"]["against"]["totals"]["nodes"] == list(nodes)
    drawn = [box for box in placed["executed"]["boxes"] if box["executed"]]
    assert len(drawn) == nodes[1]


@needs_runs
@pytest.mark.usefixtures("on_the_cpu")
def test_executed_nodes_lead_to_planned_ones(model, tmp_path):
    """Each names the nodes that it stands for, and where they are in the plan; Casts that were added, too."""
    run(model, "-o", tmp_path / "a.onnx", "--skip=verify", "--html", tmp_path / "r.html", "--show=placement")
    data = data_of(tmp_path / "r.html")
    boxes = data["boxes"]
    executed = [box for box in data["placement"]["executed"]["boxes"] if box["executed"]]
    of = {origin["name"]: origin for box in executed for origin in box["executed"]["origins"]}
    assert {boxes[origin["box"]]["name"] for origin in of.values()} >= {"stem_conv1", "mlp_down", "rms_sqrt"}
    cast = boxes[of["image__float16"]["box"]]
    assert (cast["shade"], cast["name"]) == ("cast", "image to float16")
    assert all(boxes[origin["box"]]["operator"] == origin["operator"] for origin in of.values())


@needs_runs
@pytest.mark.usefixtures("on_the_cpu")
def test_a_model_that_was_rewritten_before_is_placed_alone(model, tmp_path):
    """Its original is not known."""
    run(model, "-o", tmp_path / "a.onnx", "--skip=verify")
    page = tmp_path / "r.html"
    assert run("explain", tmp_path / "a.onnx", "--html", page, "--show=placement").exit_code == 0
    placed = data_of(page)["placement"]
    assert {row["before"] for row in placed["counts"]} == {None}
    origins = [box["executed"]["origins"] for box in placed["executed"]["boxes"] if box["executed"]]
    assert {origin["box"] is None for found in origins for origin in found} == {False}


@needs_runs
@pytest.mark.usefixtures("on_the_cpu")
def test_a_result_that_is_refused_is_shown_as_such(tmp_path):
    """That a provider does not take a model is a result, not an error."""
    made = parser.parse_model("""<ir_version: 9, opset_import: ["": 17, "own": 1]>
        g (float[2,2] x) => (float[2,2] y) { a = MatMul (x, x) y = own.Op (a) }""")
    onnx.save(made, tmp_path / "own.onnx")
    result = run(tmp_path / "own.onnx", "--html", tmp_path / "r.html", "--show=placement")
    assert result.exit_code == 0, result.output
    placed = data_of(tmp_path / "r.html")["placement"]
    assert "own:Op" in placed["refused"]
    assert "own:Op" in placed["original_refused"]
    assert (placed["counts"], placed["executed"]) == ([], None)


def test_without_the_runtime_for_it_nothing_is_done(model, monkeypatch):
    """One line before any work: for onnxruntime without CUDA, and without a GPU for want of gcc."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    html_and_plots.opening.needs_stubs.cache_clear()
    asked = [model, "--html", model.parent / "r.html", "--show=placement"]
    assert "onnxruntime-gpu" in failure(*asked)
    assert "onnxruntime-gpu" in failure("explain", *asked)
    monkeypatch.setattr(html_and_plots.opening, "needs_stubs", lambda _: True)
    monkeypatch.setattr(stub_libraries.shutil, "which", lambda _: None)
    monkeypatch.setattr(
        stub_libraries, "installed", lambda: stub_libraries.Installed("1", (model.parent / "none",))
    )
    assert "needs gcc" in failure(*asked)
    assert [path.name for path in model.parent.iterdir()] == ["demo.onnx"]


@needs_runs
@pytest.mark.usefixtures("on_the_cpu")
def test_a_time_limit_ends_a_placement(model, tmp_path):
    """The result is kept, and the page says why it has no graph."""
    flags = ["--skip=verify", "--timeout", "0.001", "--html", tmp_path / "r.html", "--show=placement"]
    result = run(model, "-o", tmp_path / "a.onnx", *flags)
    assert result.exit_code == 0, result.output
    assert "longer than --timeout" in data_of(tmp_path / "r.html")["placement"]["refused"]
