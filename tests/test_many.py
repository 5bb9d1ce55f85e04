"""Many models: a line for each, whatever happens to its process, and what is done is not done again."""

import json
import os

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite import many
from amp_rewrite.files import staging
from tests import text
from tests.commands import run
from tests.test_executors import dask

PLAIN = "g (float[2,8] x) => (float[2,8] y) <float[8,8] w> { a = MatMul (x, w) y = Relu (a) }"
FAST = ("--skip=verify", "--skip=check", "-q")


def write(path, source=PLAIN):
    """A model with weights around one, written to a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(text.model(source, {"w": np.eye(8, dtype=np.float32)}), path)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A folder with two models, one of them below."""
    write(tmp_path / "models" / "one.onnx")
    write(tmp_path / "models" / "deep" / "two.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "models"


@pytest.fixture
def runs(monkeypatch):
    """The models of the processes that are started."""
    started, ran = [], many._ran
    monkeypatch.setattr(many, "_ran", lambda words, start: started.append(words[-1]) or ran(words, start))
    return started


def record(folder):
    """The lines of a record."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_each_model_is_rewritten_as_by_the_command(models, tmp_path):
    """The same bytes, and the report of --json; a broken model beside them has a line as well."""
    (models / "broken.onnx").write_bytes(b"no model")
    lines = {line["model"]: line for line in amp_rewrite.convert_all("models", "half", "--to bfloat16")}
    assert list(lines) == ["models/broken.onnx", "models/deep/two.onnx", "models/one.onnx"]
    assert "not an ONNX model" in lines["models/broken.onnx"]["why"]
    assert [(line["exit_code"], line["result"]) for line in lines.values()] == [
        (2, None),
        (0, "half/deep/two.onnx"),
        (0, "half/one.onnx"),
    ]
    assert run("models/one.onnx", "-o", "single.onnx", "--to", "bfloat16", "--json", "r.json").exit_code == 0
    assert (tmp_path / "half/one.onnx").read_bytes() == (tmp_path / "single.onnx").read_bytes()
    report, alone = lines["models/one.onnx"]["report"], json.loads((tmp_path / "r.json").read_text())
    assert (report["half"], report["nodes"]) == ("bfloat16", alone["nodes"])
    assert record(tmp_path / "half") == list(lines.values())


@pytest.mark.slow
def test_what_is_done_is_not_done_again(models, tmp_path, runs):
    """By the bytes of the model and of what belongs to it, the flags and the version; what failed is tried
    again, and so is what lacks its result.
    """

    def again(*flags):
        runs.clear()
        lines = amp_rewrite.convert_all(models, "half", (*FAST, *flags))
        assert len(lines) == len(list(models.rglob("*.onnx")))
        return [os.path.relpath(model, models) for model in runs]

    assert [again(), again()] == [["deep/two.onnx", "one.onnx"], []]
    os.utime(models / "one.onnx")
    assert again() == []
    write(models / "one.onnx", PLAIN.replace("Relu", "Tanh"))
    assert again() == ["one.onnx"]
    np.savez(models / "one.npz", x=np.ones((2, 8), np.float32))
    assert again() == ["one.onnx"]
    (tmp_path / "half" / "one.onnx").write_bytes(b"")
    (models / "bad.onnx").write_bytes(b"")
    assert [again() for _ in range(2)] == [["bad.onnx", "one.onnx"], ["bad.onnx"]]
    assert len(again("--to", "bfloat16")) == 3
    with (tmp_path / "half" / "results.jsonl").open("a") as file:
        file.write('{"model": "half a line of a run that was ki')
    assert again("--to", "bfloat16") == ["bad.onnx"]
    assert {line["model"] for line in record(tmp_path / "half")} == set(map(str, models.rglob("*.onnx")))


@pytest.mark.slow
def test_the_files_that_flags_name_count(models, runs):
    """A folder of samples that grows makes the results old."""
    samples = models.parent / "samples"
    samples.mkdir()
    for count, name in enumerate("ab"):
        np.savez(samples / f"{name}.npz", x=np.full((2, 8), count, np.float32))
        amp_rewrite.convert_all(models / "one.onnx", "half", ("--calibrate", "samples", *FAST))
        assert len(runs) == count + 1


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import sys; sys.exit(7)", "ended with exit code 7"),
    ],
)
def test_a_process_that_dies_fails_alone(models, tmp_path, monkeypatch, start, why):
    """Its line says how it ended, and no result of before passes for its own."""
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "one.onnx").write_bytes(b"old")
    dying = f"import sys\nif sys.argv[-1].endswith('one.onnx'): {start}\n"
    monkeypatch.setattr(many, "_START", dying + many._START)
    two, one = amp_rewrite.convert_all(models, "half", FAST)
    assert (two["exit_code"], one["exit_code"], one["why"], one["result"]) == (0, 2, why, None)
    assert (tmp_path / "half" / "one.onnx").read_bytes() == b"old"


@pytest.mark.slow
@pytest.mark.usefixtures("models")
def test_a_cluster_runs_the_models():
    """Dask's workers do, and what a lost one leaves is done here."""
    with dask() as executor:
        lines = amp_rewrite.convert_all("models", "half", FAST, executor=executor)
    assert [line["exit_code"] for line in lines] == [0, 0]
    with dask() as executor:
        executor.shutdown()
        lines = amp_rewrite.convert_all("models", "other", FAST, executor=executor)
    assert [line["exit_code"] for line in lines] == [0, 0]


def test_what_a_killed_run_left_is_no_model(models):
    """Its unfinished results are in a folder that is named so."""
    found = many.models_in(models, None)
    write(models / f".one.onnx.{staging.UNFINISHED}" / "one.onnx")
    assert many.models_in(models, None) == found
