"""Several models in one command."""

import json
from xml.etree import ElementTree as ET

import onnx
import pytest

from amp_rewrite.cli import many_models
from tests import text
from tests.commands import failure, run

PRODUCT = "g (float[4,4] x, float[4,4] w) => (float[4,4] y) { y = MatMul(x, w) }"
FAST = ("--skip=verify", "--skip=check")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two models, and a file that is none, in two folders."""
    (tmp_path / "models" / "deep").mkdir(parents=True)
    for name in ("a", "deep/b"):
        onnx.save(text.model(PRODUCT), tmp_path / "models" / f"{name}.onnx")
    (tmp_path / "models" / "broken.onnx").write_text("no model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder):
    """All files below a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "results.jsonl")
    return sorted(str(path.relative_to(folder)) for path in paths)


def test_the_coverage_of_several(folder):
    """One file of each kind has them all: a suite a model, and the exit code of the worst."""
    (folder / "models" / "broken.onnx").unlink()
    run("models/a.onnx", "-o", "models/deep/b.onnx", "--force", *FAST)
    files_ = ("--json", "c.json", "--report", "junit=c.xml", "--report", "markdown=c.md")
    done = run("coverage", "models", "--rules", "min-flops=1", *files_)
    assert done.exit_code == 1
    told = json.loads((folder / "c.json").read_text())
    assert [(one["model"], one["ok"]) for one in told["models"]] == [
        ("models/a.onnx", False),
        ("models/deep/b.onnx", True),
    ]
    assert not told["ok"]
    suites = ET.parse(folder / "c.xml").getroot()
    names = [suite.find("testcase").get("classname") for suite in suites]
    assert names == ["models/a.onnx", "models/deep/b.onnx"]
    assert (suites.get("tests"), suites.get("failures")) == ("2", "1")
    assert (folder / "c.md").read_text().count("Precision coverage of") == 2
    assert "a baseline is for one model" in failure("coverage", "models", "--report", "baseline=b.json")


def test_a_model_is_found_once(folder):
    """Though a folder and a pattern have it."""
    found = many_models.find([folder / "models" / "a.onnx", folder / "models" / "*.onnx"])
    assert [each.model.name for each in found] == ["a.onnx", "broken.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize(("more", "code"), [((), 2), (("--tolerance", "error=1e-30"), 1)], ids=["bad", "far"])
def test_the_exit_code_is_that_of_the_worst_model(folder, more, code):
    """2 where one is no model, 1 where a result is too far off; and 0 where all are done."""
    pytest.importorskip("onnxruntime")
    if code == 1:
        (folder / "models" / "broken.onnx").unlink()
    flags = ("--skip", "repair", *more)
    assert run("models", "-o", "half", *flags).exit_code == code
