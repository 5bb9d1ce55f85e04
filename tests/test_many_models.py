"""Several models in one command."""

import json
import shutil
from xml.etree import ElementTree as ET

import onnx
import pytest
from onnx import TensorProto

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


def is_half(path):
    """Whether a model has a product in half."""
    model = onnx.load(path)
    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    return any(node.attribute[0].i == TensorProto.FLOAT16 for node in casts)


def test_a_folder_keeps_its_shape(folder):
    """Each result stands where its model stood; a broken model stops no other, and gives the exit code."""
    done = run("models", "-o", "half", *FAST)
    assert done.exit_code == 2
    assert files(folder / "half") == ["a.onnx", "deep/b.onnx"]
    assert all(is_half(folder / "half" / name) for name in files(folder / "half"))
    assert "models/broken.onnx: is not an ONNX model" in done.stderr
    assert "report" not in done.stdout  # its file is temporary
    assert done.stdout.splitlines()[-1] == "2 of 3 models done; no result: models/broken.onnx"


@pytest.mark.parametrize(
    "given", [("models/a.onnx", "models/deep/b.onnx"), ("models/[ad]*",), ("models/**/[ab].onnx",)]
)
def test_models_and_patterns(folder, given):
    """Paths and patterns, which a shell has not expanded, are the same."""
    done = run(*given, "-o", "half", *FAST)
    assert done.exit_code == 0, done.output
    assert files(folder / "half") == ["a.onnx", "b.onnx"]
    assert done.stdout.splitlines()[-1] == "2 of 2 models done"


def test_flags_count_for_every_model(folder):
    """As on the command line of one."""
    run("models/a.onnx", "models/deep/b.onnx", "-o", "half", "--deny", "MatMul", *FAST)
    assert not any(is_half(folder / "half" / name) for name in files(folder / "half"))


@pytest.mark.parametrize(
    "flags", [("--tolerance", "1e-3"), ("--allow", "Relux"), ("--dim", "batch"), ("--range", "x=1")]
)
def test_a_wrong_flag_is_refused_once(folder, flags):
    """Before anything is done to any model, and not once for each."""
    done = run("models", "-o", "half", *flags, *FAST)
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (folder / "half").exists()


def test_one_model_in_a_folder(folder):
    """With files of its own beside."""
    assert run("models/a.onnx", "-o", "half/", "--json", "r.json", *FAST).exit_code == 0
    assert files(folder / "half") == ["a.onnx"]
    assert (folder / "r.json").is_file()


def test_results_are_no_models(folder):
    """Results in the folder itself are not rewritten when it is rewritten again."""
    (folder / "models" / "broken.onnx").unlink()
    for _ in range(2):
        assert run("models", "-o", "models/half", *FAST).exit_code == 0
    assert files(folder / "models" / "half") == ["a.onnx", "deep/b.onnx"]


def test_in_place_and_dry_runs_need_no_folder(folder):
    """They write no results elsewhere."""
    pair = ("models/a.onnx", "models/deep/b.onnx")
    assert run(*pair, "--dry-run").exit_code == 0
    assert not is_half(folder / "models" / "a.onnx")
    assert run(*pair, "--in-place", *FAST).exit_code == 0
    assert is_half(folder / "models" / "a.onnx")
    assert is_half(folder / "models" / "deep" / "b.onnx")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("models/a.onnx", "models/deep/b.onnx"),
            "models/a.onnx and models/deep/b.onnx need a folder for their results",
        ),
        (("models",), "models: is a folder; name the model in it"),
        (("models", "--in-place"), "models: is a folder"),
        (("models/a.onnx", "models/deep/b.onnx", "-o", "r.onnx"), "a folder for the results with -o"),
        (("nothing/*.onnx", "-o", "half"), "nothing/*.onnx: matches no file"),
        (
            ("models/a.onnx", "empty", "-o", "half"),
            "empty: has no .onnx file; name a folder of models",
        ),
        (("models", "-o", "half", "--html", "r.html"), "--html is for one model"),
        (("models", "-o", "r.onnx"), "models: is a folder"),
        (("models/a.onnx", "-o", "half/", "--in-place"), "--output half has no effect with --in-place"),
        (("models/a.onnx", "copy/a.onnx", "-o", "half"), "would both become a.onnx"),
    ],
)
def test_what_is_refused(folder, arguments, problem):
    """One line, before anything is written."""
    (folder / "empty").mkdir()
    shutil.copytree(folder / "models", folder / "copy")
    before = files(folder)
    assert problem in failure(*arguments)
    assert files(folder) == before


def test_a_place_for_the_result_beside_in_place(folder):
    """It is no model, and nothing is overwritten."""
    before = files(folder)
    line = failure("models/a.onnx", "none.onnx", "--in-place", *FAST)
    assert "none.onnx: there is no such file; check the path; a place for the result goes without" in line
    assert files(folder) == before


def test_the_second_path_is_the_result(folder):
    """As other converters take it, also over a result of the same model; another model is replaced with
    --force alone.
    """
    pair = ("models/a.onnx", "half/r.onnx")
    for _ in range(2):
        assert run(*pair, *FAST).exit_code == 0
        assert is_half(folder / "half" / "r.onnx")
    other = ("models/deep/b.onnx", "models/a.onnx", *FAST)
    onnx.save(text.model(PRODUCT.replace("MatMul", "Add")), folder / "models" / "deep" / "b.onnx")
    assert "or the result of one model with -o" in failure(*other)
    assert "need a folder" in failure("models/deep/b.onnx", "half/r.onnx", *FAST)
    assert not is_half(folder / "models" / "a.onnx")
    assert run(*other, "--allow", "Add", "--force").exit_code == 0
    assert "Add" in {node.op_type for node in onnx.load("models/a.onnx").graph.node}
    assert run("models/a.onnx", "none.onnx", "--dry-run", *FAST).exit_code == 0
    assert not (folder / "none.onnx").exists()


def test_a_foreign_model_at_the_place_of_a_result(folder):
    """The remedy names the flag that was given."""
    (folder / "other").mkdir()
    onnx.save(text.model(PRODUCT.replace("MatMul", "Add")), folder / "other" / "a.onnx")
    done = run("models/a.onnx", "-o", "other", *FAST)
    foreign = "other/a.onnx is a model that amp-rewrite did not write"
    assert f"{foreign}; choose another folder with -o, or replace it with --force" in done.stderr
    assert (done.exit_code, is_half(folder / "other" / "a.onnx")) == (2, False)


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
