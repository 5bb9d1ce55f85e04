"""A result moves into place once its run is complete: until then every file is as it was."""

import signal
from pathlib import Path

import numpy as np
import onnx
import pytest

from amp_rewrite import demo
from amp_rewrite.cli import rewrite_output
from amp_rewrite.conversion import Conversion
from amp_rewrite.errors import TimeLimitError
from amp_rewrite.reporting import page
from amp_rewrite.rewriting import result_checks
from amp_rewrite.tuning.comparing import Judging
from tests import text
from tests.commands import run
from tests.model_files import content
from tests.test_interruptible import ENDLESS, left_in, stopped

GRAPH = """g (float[1,64] x) => (float[1,64] y) <float[64,64] w, float[1] big = {60000.0}> {
    h = MatMul(x, w)  s = Mul(h, big)  r = Relu(s)  y = Div(r, big) }"""
"""With --level unsafe-force-all, half overflows and the verdict is FAIL."""
BESIDE = ("--external-data", "always")
REPORTS = ("--json", "r.json", "--html", "r.html", "--save=plan=p.json")
FORCED = ("--level", "unsafe-force-all", "--skip", "repair")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a model, a half model, a train step, an older result, and its weights."""
    monkeypatch.chdir(tmp_path)
    onnx.save(text.model(GRAPH), "m.onnx")
    onnx.save(demo.train_step(), "step.onnx")
    np.savez("in.npz", x=np.full((1, 64), 9, np.float32))
    chance = np.random.default_rng(0)
    onnx.save(text.model(GRAPH, {"w": chance.standard_normal((64, 64), np.float32)}), "varied.onnx")
    np.savez("varied.npz", x=chance.standard_normal((1, 64), np.float32))
    for model, to in (("m.onnx", "old.onnx"), ("m.onnx", "half.onnx"), ("m.onnx", "many/m.onnx")):
        Path(to).parent.mkdir(exist_ok=True)
        assert run(model, "-o", to, "--skip=verify", *BESIDE).exit_code == 0
    for report in ("r.json", "r.html", "p.json", "half.json"):
        Path(report).write_text("{}")
    return tmp_path


OUTPUT = ("-o", "old.onnx", *BESIDE)
REWRITE = ("m.onnx", *OUTPUT, *REPORTS, "--data", "in.npz")
FAILING = (*REWRITE, "--level", "unsafe-force-all")
TUNE = ("tune", "m.onnx", *OUTPUT, *REPORTS, "--data", "in.npz", "--tolerance", "error=1e-9")
SEARCHED = ("tune", "varied.onnx", *OUTPUT, *REPORTS, "--data", "varied.npz", "--tolerance", "error=1e-9")
RESTORE = ("restore", "half.onnx", *OUTPUT, "--json", "r.json")
TRAIN = ("train", "step.onnx", "-o", "old.onnx", "--json", "r.json", "--html", "r.html")
STAGES = {
    "rewrite, proof": (REWRITE, result_checks.ResultProof, "__call__"),
    "rewrite, check": (REWRITE, result_checks, "validate"),
    "rewrite, comparison": (REWRITE, Judging, "verdict"),
    "rewrite, blame": (FAILING, Judging, "with_blame"),
    "rewrite, page": (REWRITE, page, "write"),
    "rewrite, report": (REWRITE, rewrite_output, "_write_json"),
    "in place, comparison": (("m.onnx", "--in-place", *REPORTS), Judging, "verdict"),
    "in place, nothing changed": (
        ("half.onnx", "--in-place", "--require=verify"),
        Judging,
        "verdict",
    ),
    "tune, comparison": (TUNE, Judging, "verdict"),
    "tune, search": (SEARCHED, Conversion, "tune"),
    "restore, check": (RESTORE, result_checks, "validate"),
    "restore, comparison": (RESTORE, Judging, "verdict"),
    "train, proof": (TRAIN, result_checks.ResultProof, "__call__"),
    "train, check": (TRAIN, result_checks, "validate"),
    "train, page": (TRAIN, page, "write"),
    "many models": (("m.onnx", "-o", "many", *BESIDE), Judging, "verdict"),
}


ENDS = [
    *((stage, KeyboardInterrupt, 130) for stage in STAGES),
    *(
        (stage, ZeroDivisionError, 2)
        for stage in ("rewrite, comparison", "tune, search", "restore, comparison")
    ),
]


@pytest.mark.parametrize(("stage", "error", "code"), ENDS)
def test_an_interrupt_or_a_fault_leaves_every_file_as_it_was(folder, monkeypatch, stage, error, code):
    """Whatever was under way, the older result, its weights and the reports are the same bytes."""
    command, owner, name = STAGES[stage]
    before = content(folder)

    def end(*_, **__):
        raise error

    monkeypatch.setattr(owner, name, end)
    assert run(*command).exit_code == code
    assert content(folder) == before
    assert [path for path in folder.iterdir() if path.is_dir()] == [folder / "many"]


def test_no_path_of_a_stage_is_shown(folder):
    """What is printed and reported names the files that stand, not where they waited."""
    for command in (FAILING, REWRITE, TUNE, RESTORE, TRAIN, ("m.onnx", "--in-place", "--json", "r.json")):
        assert ".amp-rewrite-" not in run(*command, "--force").output
        reports = [path for path in folder.iterdir() if path.suffix in (".json", ".html")]
        assert [path for path in reports if ".amp-rewrite-" in path.read_text()] == []
        assert [path for path in folder.iterdir() if path.suffix == ".part"] == []


@pytest.mark.parametrize("command", [REWRITE, TUNE, RESTORE], ids=["rewrite", "tune", "restore"])
@pytest.mark.parametrize("there", [True, False])
def test_a_time_limit_replaces_nothing(folder, monkeypatch, command, there):
    """A result without a verdict, as the time was over, takes a free place, and no other."""

    def stop(*_, **__):
        raise TimeLimitError("took too long")

    if not there:
        command = ["new.onnx" if word == "old.onnx" else word for word in command]
    before = content(folder)
    monkeypatch.setattr(Judging, "verdict", stop)
    monkeypatch.setattr("amp_rewrite.process.interruptible.TimeLimit.is_over", True)
    done = run(*command, "--timeout", "5")
    assert done.exit_code == (2 if there else int(command[0] == "tune")), done.output
    if there:
        assert "longer than --timeout allows (5 s), and the file there stays" in done.stderr
        assert content(folder) == before
    else:
        assert (folder / "new.onnx").exists()


SIGNALLED = [
    (("rewrite",), signal.SIGTERM),
    (("tune", "--tolerance", "error=1e-9"), signal.SIGINT),
    (("rewrite", "--in-place"), signal.SIGINT),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "number"), SIGNALLED)
def test_a_signal_to_a_process(tmp_path, command, number):
    """A real signal in the middle of the comparison: nothing has changed, and nothing is left over."""
    work, (name, *flags) = tmp_path / "work", command
    for folder in (work, tmp_path / "temporary"):
        folder.mkdir()
    onnx.save(text.model(ENDLESS), work / "m.onnx")
    assert run(work / "m.onnx", "-o", work / "old.onnx", "--skip=verify", *BESIDE).exit_code == 0
    before = content(work)
    place = () if "--in-place" in flags else ("-o", work / "old.onnx")
    ended, errors = stopped(tmp_path, number, name, work / "m.onnx", *place, *flags, *BESIDE)
    assert (ended, "Traceback" in errors) == (128 + number, False)
    assert content(work) == before
    assert [path for path in work.iterdir() if path.is_dir()] == []
    assert left_in(tmp_path) == set()
