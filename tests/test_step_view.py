"""The parts of a train step, and the page that shows them."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest

from amp_rewrite import training
from amp_rewrite.rewriting.report import StepPart
from tests import train_steps
from tests.commands import run
from tests.test_training import TRAPS
from tests.train_steps import step
from tests.transcript_commands import page_data

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
def page(tmp_path):
    """The page of a step that the command writes."""
    onnx.save(step(TRAPS[CLIPPED]), tmp_path / "m.onnx")
    done = run("train", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx", "--html", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    return tmp_path / "page.html"


def test_the_page_has_the_parts_of_nodes(page):
    """By the names of their outputs; what has none is forward."""
    told = page_data(page)["step"]
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
