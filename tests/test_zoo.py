"""Many models: each is rewritten as the command does it, and whatever becomes of one, the others go on."""

import html
import json
import os
import re
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.errors import ListError, ModelError, OptionError
from amp_rewrite.rewriting import records
from amp_rewrite.zoo import model_entries, row
from amp_rewrite.zoo import run as job
from amp_rewrite.zoo.row import Status
from tests.commands import failure, run
from tests.test_executors import dask, end_worker
from tests.test_stress import LOUD
from tests.text import model

pytest.importorskip("onnxruntime")
CHAIN = """g (float[2, 8] x) => (float[2, 8] y) <float[8, 8] w> {{
    a = MatMul (x, w) b = Abs (a) {more} y = MatMul (b, w) }}"""
PLAIN = CHAIN.format(more="")
FAR = """g (float[2, 8] x) => (float[2, 8] y) <float many = {300}> {
    a = Mul (x, many) b = Mul (a, a) c = Sqrt (b) y = Div (c, many) }"""


def write(path, text=PLAIN):
    """A model in a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model(text), path)


@pytest.fixture
def models(tmp_path):
    """A folder with two models, one of which lies deeper."""
    write(tmp_path / "models" / "one.onnx")
    write(tmp_path / "models" / "deep" / "er" / "two.onnx", CHAIN.format(more="c = Tanh (b)"))
    return tmp_path / "models"


@pytest.mark.slow
def test_each_model_is_rewritten_as_by_the_command(models, tmp_path):
    """The same bytes; a broken model beside them; what is known in JSON, on the page, in the table."""
    (models / "broken.onnx").write_bytes(b"no model")
    done = run("zoo", models, "-o", tmp_path / "out", "--html", "--", "--to", "bfloat16")
    assert done.exit_code == 2, done.output
    assert "2 PASS, 1 failed" in done.output
    assert "broken: " in done.output
    told = json.loads((tmp_path / "out" / "zoo.json").read_text())
    assert (told["ok"], told["counts"]) == (False, {"PASS": 2, "failed": 1})
    rows = {each["name"]: each for each in told["models"]}
    assert list(rows) == ["broken", "deep/er/two", "one"]
    assert "not an ONNX model" in rows["broken"]["why"]
    single = tmp_path / "single.onnx"
    assert run(models / "one.onnx", "-o", single, "--to", "bfloat16", "-q").exit_code == 0
    assert (tmp_path / "out" / rows["one"]["result"]).read_bytes() == single.read_bytes()
    report = json.loads((tmp_path / "out" / rows["one"]["report"]).read_text())
    assert report["half"] == "bfloat16"
    assert rows["one"]["error"] == report["verification"]["outputs"][0]["error"] < 1e-2
    assert rows["one"]["half"] == 1
    page = (tmp_path / "out" / "index.html").read_text()
    links = [html.unescape(link) for link in re.findall('href="([^"]*)"', page)]
    assert len(links) == 6
    assert all((tmp_path / "out" / link).is_file() for link in links)


@pytest.mark.slow
def test_a_run_that_is_started_again_does_the_rest(models, tmp_path):
    """Nothing twice; again what has other inputs or flags, lacks its result, or failed."""
    out = tmp_path / "out"

    def again(*flags):
        return amp_rewrite.rewrite_zoo(models, out, flags)

    first, second = again(), again()
    assert (first.reused, second.reused) == (0, 2)
    assert second.rows == first.rows
    write(models / "one.onnx", CHAIN.format(more="c = Sigmoid (b)"))
    assert again().reused == 1
    np.savez(models / "one.npz", x=np.ones((2, 8), np.float32))
    assert again().reused == 1
    (out / "models" / "one.onnx").unlink()
    assert again().reused == 1
    (out / ".records" / "one.json").write_text("{")
    assert again().reused == 1
    assert again().reused == 2
    assert again("--io", "half").reused == 0
    (models / "bad.onnx").write_bytes(b"")
    assert [again("--io", "half").reused for _ in range(2)] == [2, 2]
    assert not (out / "models" / "bad.onnx").exists()


@pytest.mark.slow
def test_what_a_flag_names_is_part_of_the_job(tmp_path):
    """A list that changes makes the results old, and so do files in a folder of samples."""
    write(tmp_path / "zoo" / "one.onnx")
    samples = tmp_path / "samples"
    samples.mkdir()
    np.savez(samples / "a.npz", x=np.ones((2, 8), np.float32))
    flags = ("--calibrate", str(samples))
    source, out = tmp_path / "zoo", tmp_path / "out"
    assert [amp_rewrite.rewrite_zoo(source, out, flags).reused for _ in range(2)] == [0, 1]
    np.savez(samples / "b.npz", x=np.ones((2, 8), np.float32))
    assert amp_rewrite.rewrite_zoo(source, out, flags).reused == 0


def test_a_process_that_dies_fails_alone(models, tmp_path, monkeypatch):
    """By a signal, or with nothing to say; the row says which, and no result of before passes for its own, or
    is lost.
    """
    (tmp_path / "out" / "models").mkdir(parents=True)
    (tmp_path / "out" / "models" / "one.onnx").write_bytes(b"old")
    dying = "import os, sys\nif sys.argv[-1].endswith('one.onnx'): os.kill(os.getpid(), 9)\n"
    monkeypatch.setattr(job, "_START", dying + job._START)
    zoo = amp_rewrite.rewrite_zoo(models, tmp_path / "out")
    assert [(each.name, each.status) for each in zoo.rows] == [
        ("deep/er/two", Status.CLOSE),
        ("one", Status.FAILED),
    ]
    assert zoo.rows[1].why == "was ended by SIGKILL; one.onnx is of an earlier run"
    assert not zoo.ok
    assert zoo.has_failed
    monkeypatch.setattr(
        job, "_START", dying.replace("os.kill(", "print('slow', file=sys.stderr); os.kill(") + "1"
    )
    again = amp_rewrite.rewrite_zoo(models, tmp_path / "out")
    assert again.rows[1].why == "was ended by SIGKILL, after: slow; one.onnx is of an earlier run"
    assert again.rows[1].result == ""
    assert (tmp_path / "out" / "models" / "one.onnx").read_bytes() == b"old"
    monkeypatch.setattr(job, "_START", "import sys; sys.exit(7)")
    assert "exit code 7" in amp_rewrite.rewrite_zoo(models, tmp_path / "out", ["--io", "half"]).rows[0].why


def test_a_process_that_hangs_is_ended(models, tmp_path, monkeypatch):
    """After its time, and the next one begins; also one that ignores SIGTERM."""
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    monkeypatch.setattr(job, "_START", ignoring + "import time; time.sleep(600)")
    monkeypatch.setattr(job, "_GRACE", 0.1)
    began = time.monotonic()
    zoo = amp_rewrite.rewrite_zoo(models, tmp_path / "out", timeout=0.2)
    assert {each.why for each in zoo.rows} == {"took longer than 0.2 s"}
    assert time.monotonic() - began < 300


@pytest.mark.slow
def test_lost_workers_stop_nothing(models, tmp_path):
    """An executor that is broken from the start, and one that loses its only worker on the way."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(end_worker).exception()
        assert amp_rewrite.rewrite_zoo(models, tmp_path / "one", executor=pool).ok
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pid = pool.submit(os.getpid).result()
        killed = []

        def kill(_):
            killed.append(killed or os.kill(pid, signal.SIGKILL))

        for name in "ab":
            write(models / f"{name}.onnx")
        zoo = amp_rewrite.rewrite_zoo(models, tmp_path / "two", executor=pool, on_row=kill)
    assert len(killed) == len(zoo.rows) == 4
    assert zoo.ok


@pytest.mark.slow
def test_a_cluster_loses_a_worker(models, tmp_path):
    """A Dask cluster of two, one of which is killed on the way."""
    for name in "abc":
        write(models / f"{name}.onnx")
    with dask() as executor:
        pids = set(executor.map(lambda _: time.sleep(0.2) or os.getpid(), range(8)))
        left = [min(pids)]

        def kill(_):
            if left:
                os.kill(left.pop(), signal.SIGKILL)

        zoo = amp_rewrite.rewrite_zoo(models, tmp_path / "out", executor=executor, on_row=kill)
    assert len(zoo.rows) == 5
    assert zoo.ok


def test_far_is_no_success(tmp_path):
    """A result that is too far off says so, with its error, and is there to be looked at."""
    write(tmp_path / "zoo" / "far.onnx", FAR)
    done = run("zoo", tmp_path / "zoo", "-o", tmp_path / "out", "--", "--level", "unsafe-force-all")
    (told,) = json.loads((tmp_path / "out" / "zoo.json").read_text())["models"]
    assert (done.exit_code, told["status"]) == (1, "FAIL")
    assert told["why"]
    result = tmp_path / "out" / told["result"]
    assert result.is_file()
    assert done.stdout.splitlines()[-1].split() == [
        *("next", "amp-rewrite", "tune", str(tmp_path / "zoo" / "far.onnx"), "-o", str(result))
    ]


@pytest.mark.parametrize("scale", [1, 0], ids=["too far", "all zero"])
def test_what_is_not_known_is_not_far(tmp_path, scale):
    """A row is what the command on the model alone says, with its exit code."""
    text = CHAIN.format(more=f"k = Constant <value_float = {scale}.> ()  c = Mul (b, k)").replace(
        "(b, w)", "(c, w)"
    )
    write(tmp_path / "zoo" / "m.onnx", text)
    flags = ("--tolerance", "error=1e-9") if scale else ()
    done = run("zoo", tmp_path / "zoo", "-o", tmp_path / "out", "--", *flags)
    (told,) = json.loads((tmp_path / "out" / "zoo.json").read_text())["models"]
    assert (told["status"], done.exit_code) == ("inconclusive on made-up inputs", 0), told["why"]
    alone = run(tmp_path / "zoo" / "m.onnx", "-o", tmp_path / "m.onnx", "-v", *flags)
    assert (alone.exit_code, told["why"] in alone.output) == (0, True)


@pytest.mark.parametrize(
    ("errors", "error"), [([3e-4, None], 3e-4), ([None], None), ([3e-4, "nan"], None), ([1e-4, 2e-4], 2e-4)]
)
def test_the_error_of_a_row_is_that_of_its_float_outputs(errors, error):
    """An output that is not float has none, and hides no other; one that is not finite does."""
    verdict = {"outputs": [{"error": each} for each in errors]}
    told = {**REPORT, "verification": verdict}
    assert row.numbers(told)["error"] == error


REPORT = {
    "nodes": {"half": 1, "mixed": 0, "full": 1, "other": 0},
    "changed": True,
    "casts_added": 0,
    "prediction": None,
    "size_before": 2,
    "size_after": 1,
}


def test_rows_survive_json():
    """What is recorded is what was found."""
    found = row.Row("a", "a.onnx", Status.FAR, "why", sizes=(3, 2), error=0.5, seconds=1.5)
    assert row.from_json(json.loads(json.dumps(records.plain(found)))) == found


# ---- which models


def test_a_folder_has_its_models(models):
    """As deep as they lie, without the results of a run in it."""
    write(models / "half" / "models" / "one.onnx")
    found = model_entries.find(models, models / "half")
    assert [each.name for each in found] == ["deep/er/two", "one"]


@pytest.mark.parametrize(
    "text",
    [
        "models:\n  a: one.onnx\n  b/c: {model: two.onnx, data: [x.npz, y], flags: [--samples, 4]}",
        """{"models": {"a": "one.onnx",
        "b/c": {"model": "two.onnx", "data": ["x.npz", "y"], "flags": ["--samples", 4]}}}""",
    ],
    ids=["yaml", "json"],
)
def test_a_manifest_has_names_inputs_and_flags(text, tmp_path):
    """Paths are relative to the manifest, flags are as on the command line."""
    (tmp_path / "zoo.yaml").write_text(text)
    a, b = model_entries.find(tmp_path / "zoo.yaml", tmp_path / "out")
    assert (a.name, a.model, a.flags) == ("a", tmp_path / "one.onnx", ())
    data = ("--data", str(tmp_path / "x.npz"), "--data", str(tmp_path / "y"))
    assert (b.name, b.flags) == ("b/c", (*data, "--samples", "4"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models: [a.onnx]", "models is not a mapping"),
        ("model: {a: a.onnx}", "did you mean models"),
        ("models:\n  ../a: a.onnx", "is not a name"),
        ("models:\n  /a: a.onnx", "is not a name"),
        ("models:\n  a//b: a.onnx", "is not a name"),
        ("models:\n  a: {data: x}", "has no model"),
        ("models:\n  a: [x]", "has no model"),
        ("models:\n  a: {model: x, flag: y}", "did you mean flags"),
        ("models:\n  a: {model: x, flags: {b: c}}", "list of words"),
        ("models:\n  a: {model: x, flags: ['']}", "list of words"),
        ("models:\n  a: a.onnx\n  A: b.onnx", "another model"),
        ("models:\n  a: a.onnx\n  a: b.onnx", "on line 2"),
        ("[", "not YAML"),
    ],
)
def test_a_wrong_manifest_is_one_line(text, problem, tmp_path):
    """With the file, and what would help."""
    (tmp_path / "zoo.yaml").write_text(text)
    with pytest.raises(ListError, match=problem) as raised:
        model_entries.find(tmp_path / "zoo.yaml", tmp_path / "out")
    assert str(tmp_path / "zoo.yaml") in str(raised.value)


def test_flags_are_words_or_a_line_of_them(models, tmp_path):
    """From Python, as on the command line."""
    zoo = amp_rewrite.rewrite_zoo(models, tmp_path / "out", "--to bfloat16 --skip=verify")
    assert {each.status for each in zoo.rows} == {Status.NOT_COMPARED}
    assert json.loads((tmp_path / "out" / zoo.rows[0].report).read_text())["half"] == "bfloat16"


def test_bad_input_is_one_line(models, tmp_path):
    """Before anything is written."""
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    assert "has no model" in failure("zoo", tmp_path / "empty", "-o", out)
    assert "is in the folder of the results; choose another" in failure("zoo", models, "-o", models)
    assert "there is no such folder or manifest" in failure("zoo", tmp_path / "none", "-o", out)
    assert "--output" in failure("zoo", models, "-o", out, "--", "-o", "x.onnx")
    assert "names no executor" in failure("zoo", models, "-o", out, "--executor", "here")
    assert "--to" in run("zoo", models, "-o", out, "--", "--too", "x").stderr
    (tmp_path / "zoo.yaml").write_text("models: {a: models/one.onnx}")
    with pytest.raises(ModelError, match="folder of the results"):
        amp_rewrite.rewrite_zoo(tmp_path / "zoo.yaml", tmp_path)
    with pytest.raises(OptionError, match="above zero"):
        amp_rewrite.rewrite_zoo(models, out, timeout=0)
    with pytest.raises(OptionError, match="Executor"):
        amp_rewrite.rewrite_zoo(models, out, executor="dask://here:1")
    assert not out.exists()


def test_names_are_text_on_the_page(tmp_path):
    """A name of a file is no element and no attribute."""
    name = "<b onclick='x'>&\"%20#"
    write(tmp_path / "zoo" / f"{name}.onnx")
    amp_rewrite.rewrite_zoo(tmp_path / "zoo", tmp_path / "out", ["--skip=verify"])
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<b onclick" not in page
    assert html.escape(name) in page
    assert "%2520%23.json" in page


@pytest.mark.slow
def test_a_row_has_what_the_command_says(tmp_path):
    """The warning of a comparison that passes, and the reason of a model that is unchanged."""
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(LOUD, folder / "loud.onnx")
    write(folder / "exact.onnx", PLAIN.replace("float[", "double["))
    write(folder / "half.onnx", PLAIN.replace("float[", "float16["))
    write(folder / "range.onnx", "g (float[8] x) => (float[8] y) { a = Exp (x) b = Exp (a) y = Log (b) }")
    done = run("zoo", folder, "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    rows = {each["name"]: each for each in json.loads((tmp_path / "out" / "zoo.json").read_text())["models"]}
    assert rows["loud"]["status"] == "PASS"
    assert "100 times as large" in rows["loud"]["why"]
    unchanged = {name: each["why"] for name, each in rows.items() if each["status"] == "unchanged"}
    assert "Exp" in unchanged.pop("range")
    assert unchanged == {"exact": "", "half": "it has float16 already"}


@pytest.mark.slow
def test_a_model_that_the_gate_leaves_says_why(tmp_path):
    """Its row has a reason; one in which nothing could be half needs none."""
    write(tmp_path / "models" / "small.onnx")
    write(tmp_path / "models" / "exact.onnx", PLAIN.replace("float[", "double["))
    zoo = amp_rewrite.rewrite_zoo(tmp_path / "models", tmp_path / "out", ["--gate"])
    told = {row.name: (row.status, row.why) for row in zoo.rows}
    why = "float16 is predicted to be no faster"
    assert told == {"small": (Status.UNCHANGED, why), "exact": (Status.UNCHANGED, "")}
