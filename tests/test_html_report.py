"""The content of the HTML report and of its step view. What commands write is in pages.transcript."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_rewrite import demo, training
from amp_rewrite.coverage import counts
from amp_rewrite.model import constants
from amp_rewrite.pipeline import analyze, rewrite
from amp_rewrite.reporting import explanations, page
from amp_rewrite.reporting.page import RunEvidence
from amp_rewrite.rewriting.report import StepPart
from amp_rewrite.running import verdict_text
from tests import train_steps
from tests.commands import run
from tests.test_training import TRAPS
from tests.text import RUNS, model
from tests.train_steps import step
from tests.transcript_commands import page_data

needs_runs = pytest.mark.skipif(not RUNS, reason="runs models, and onnxruntime is not installed")
NOTHING = RunEvidence()
HOSTILE = "</script><script>window.pwned=1</script><!--&\"'\u2028\u202e"


def made(proto, evidence=NOTHING):
    """The page of a model."""
    analysis = analyze(proto)
    found = explanations.of_analysis(analysis)
    decided = page.decided(
        analysis.loaded.model, analysis.plan.half, found.decisions, found.causes, found.counted, analysis, ""
    )
    result = rewrite(proto)
    return page.of("model.onnx", result.report, decided, evidence, counts.measure(result.model))


@pytest.fixture(scope="module")
def evidence():
    """Results of runs of the demo."""
    from amp_rewrite.running import blame, observation, verification  # noqa: PLC0415 - needs onnxruntime

    proto, feeds = demo.network(), demo.feeds()
    after = rewrite(proto).model
    verdict = verification.verify(proto, after, [feeds])
    verdict = replace(verdict, blame=blame.blame(proto, after, feeds))
    return RunEvidence(verdict, magnitudes=page.magnitudes(observation.observe(proto, [feeds])))


@needs_runs
def test_a_page_has_what_was_compared(evidence):
    """Every node that was compared has its error and its magnitude, which values that were observed have from
    there; the verdict has the cells of the terminal's table.
    """
    data = made(demo.network(), evidence)
    assert len(data["errors"]) == len(evidence.verdict.blame.nodes) > 40
    assert [row["cells"] for row in data["verification"]["rows"]] == [
        verdict_text.cells(output) for output in evidence.verdict.outputs
    ]
    assert data["verification"]["ok"] is True
    assert data["worst"] is None
    seen = evidence.magnitudes
    assert data["magnitudes"] == pytest.approx(seen)
    compared = made(demo.network(), replace(evidence, magnitudes={}))["magnitudes"]
    assert len(compared) > 40
    assert compared == pytest.approx({name: seen[name] for name in compared})


@needs_runs
def test_an_infinite_error_is_still_json(evidence, tmp_path):
    """JSON has no infinity: scripts read a large number, and the text is `inf`."""
    blame = evidence.verdict.blame
    lost = replace(blame.nodes[0], error=float("inf"), added=float("inf"), non_finite=3, low=None)
    verdict = replace(evidence.verdict, blame=replace(blame, nodes=(lost, *blame.nodes[1:])))
    shown = made(demo.network(), replace(evidence, verdict=verdict))
    (tmp_path / "page.html").write_bytes(page.render(shown))
    error = page_data(tmp_path / "page.html")["errors"][0]
    assert (error["error"], error["non_finite"], error["reads"]) == ("inf", 3, None)
    assert error["size"] > 1
    assert error["lost"]


def test_stored_numbers_are_counted_by_binade():
    """Each number counts in its binade; zeros and infinities do not count."""
    array = np.array([1.0, 1.5, -2.0, 0.0, np.inf, np.nan, 2.0**-30, 7e4], np.float32)
    proto = model("g (float[8] x) => (float[8] y) <float[8] w> { y = Add (x, w) }", {"w": array})
    stored = constants.find(ir.from_proto(proto)).values()
    assert page.binades(stored) == {0: 2, 1: 1, -30: 1, 16: 1}


# ---- one file, in which nothing but our scripts runs


def test_nothing_of_a_model_ends_the_script(tmp_path):
    """Names with markup in them survive as data, and no byte of them is markup in the file."""
    proto = model("g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) { [name] y = MatMul (x, w) }")
    proto.graph.node[0].name = HOSTILE
    html = page.render(made(proto))
    assert HOSTILE.encode() not in html
    assert b"window.pwned" in html  # as data
    scripts = re.findall(rb"<script[^>]*>", html)
    assert scripts == [b'<script type="application/json" id="data">', b"<script>", b"<script>"]
    assert html.count(b"<!--") == 1  # the licences
    (tmp_path / "page.html").write_bytes(html)
    assert HOSTILE in [node["name"] for node in page_data(tmp_path / "page.html")["nodes"]]


@pytest.mark.parametrize(
    "text", [HOSTILE, "\ud800", "\x00\x07", "{{data}}", "\\u003c", "]]>", "ünïcode 名前"]
)
def test_what_is_embedded_comes_out_again(text):
    """Any text is ASCII without `<`, `>`, `&` inside the file, and itself again when it is parsed."""
    held = page.embedded({text: [text]})
    assert held.isascii()
    assert not set("<>&\u2028") & set(held)
    assert json.loads(held) == {text: [text]}


def test_the_file_needs_nothing_but_itself():
    """The policy forbids loading and other scripts, nothing in the file requests any, and the notices of the
    libraries are there. Equal reports have equal bytes.
    """
    html = page.render(made(demo.network())).decode()
    assert "default-src 'none'" in html
    assert "unsafe" not in re.search(r'content="(default-src[^"]*)"', html)[1]
    assert not re.search(r"<(link|img|iframe|base)\b|<script[^>]+src|@import|url\(|sourceMappingURL", html)
    assert "{{" not in html.split("<script>")[0].replace("{{}}", "")
    assert "Copyright 2010-2026 Mike Bostock" in html
    assert "Copyright (c) 2012-2014 Chris Pettitt" in html
    assert page.render(made(demo.network())).decode() == html


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (ir.AttrFloat32("a", 0.1), "0.1"),
        (ir.AttrInt64s("a", list(range(20))), "0, 1, 2, 3, 4, 5, 6, 7, ..."),
        (ir.AttrString("a", "x" * 100), f"{'x' * 77}..."),
        (ir.AttrTensor("a", ir.tensor(np.zeros((2, 3), np.float32))), "float32[2, 3]"),
        (ir.RefAttr("a", "outer", ir.AttributeType.INT), "of the function: outer"),
    ],
    ids=["float", "long list", "long text", "tensor", "reference"],
)
def test_attributes_are_short(attribute, text):
    """Long lists and texts are cut, and a tensor is its type and shape."""
    assert page.attribute_texts(ir.Node("", "Op", [], [attribute])) == [("a", text)]


# ---- the parts of a train step, and the page that shows them

CLIPPED = "clipped by norm, L2, momentum and decay"


def test_every_node_has_its_part():
    """Of a step that clips: around the loss, backward, optimiser, and where the scale enters and leaves."""
    parts = training.insert_loss_scale(step(TRAPS[CLIPPED])).step.parts
    by_part = {part: {name for name, other in parts.items() if other is part} for part in StepPart}
    assert by_part[StepPart.ENTERS] == {"loss_grad__scaled"}
    assert by_part[StepPart.LEAVES] == {"dw1__unscaled", "dw2__unscaled"}
    assert by_part[StepPart.BACKWARD] == {"dr", "dh", "dw1", "dw2"}
    assert {"loss", "sq", "dm", "dp"} <= by_part[StepPart.LOSS]
    assert {"norm", "clip", "w1_new__kept", "m2_new__kept"} <= by_part[StepPart.OPTIMISER]
    assert {"w1_new", "loss_scale.new", "grads_finite"} <= by_part[StepPart.SCALE]
    assert not by_part[StepPart.FORWARD]


def test_without_a_scale_nothing_enters():
    """In bfloat16 the parts are the same, without those of a scale."""
    parts = training.rewrite_train_step(step(), "bfloat16").step.parts
    assert set(parts.values()) == {StepPart.LOSS, StepPart.BACKWARD, StepPart.OPTIMISER}


@pytest.fixture
def step_page(tmp_path):
    """The page of a step that the command writes."""
    onnx.save(step(TRAPS[CLIPPED]), tmp_path / "m.onnx")
    done = run("train", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx", "--html", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    return tmp_path / "page.html"


def test_the_page_has_the_parts_of_nodes(step_page):
    """By the names of their outputs; what has none is forward."""
    told = page_data(step_page)["step"]
    assert [name for name, _ in told["lines"]] == ["step", "scale", "float32"]
    counts = Counter(told["parts"].values())
    assert (counts["enters"], counts["leaves"]) == (1, 2)
    assert {"dw1", "loss"} <= set(told["parts"])


def test_other_pages_have_none(tmp_path):
    """A model that is rewritten is no train step."""
    onnx.save(step(), tmp_path / "m.onnx")
    run(tmp_path / "m.onnx", "-o", tmp_path / "h.onnx", "--html", tmp_path / "page.html", "--skip=verify")
    assert page_data(tmp_path / "page.html")["step"] is None


@pytest.mark.slow
def test_the_page_opens_without_a_complaint(tmp_path):
    """Parts have colours of their own, and are shown one by one; a node says to which it belongs."""
    browser_tests = pytest.importorskip("tests.test_html_browser")
    train_steps.real("transformer_adam")
    source = train_steps.FOLDER / "transformer_adam.onnx"
    run("train", source, "-o", tmp_path / "t.onnx", "--html", tmp_path / "page.html")
    with browser_tests.playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_tests.CHROMIUM, args=["--no-sandbox"])
        with browser_tests.Shown(browser, tmp_path / "page.html") as shown:
            shown.page.check("#by-step")
            assert shown.page.is_visible(".legend.step")
            shown.page.locator(".parts button", has_text="the scale enters").click()
            shown.find("loss_grad__scaled")
            assert "the scale enters" in shown.details()
            assert shown.complaints == []
        browser.close()
