"""`--json -` of every command that has --json."""

import json

import onnx
import pytest

from tests import text, train_steps
from tests.commands import failure, run

MODEL = "g (float[8,64] x) => (float[8,64] y) <float[64,64] w> { a = MatMul(x, w) y = Relu(a) }"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model and a result of it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(text.model(MODEL), "m.onnx")
    onnx.save(train_steps.step(), "step.onnx")
    assert run("m.onnx", "h.onnx", "--skip=verify").exit_code == 0
    return tmp_path


COMMANDS = {
    "rewrite m.onnx -o r.onnx --skip verify": "nodes",
    "rewrite m.onnx --dry-run": "nodes",
    "verify m.onnx h.onnx": "outputs",
    "tune m.onnx -o t.onnx --tolerance error=1": "nodes",
    "coverage h.onnx": "nodes",
    "coverage h.onnx --rules require=Conv=1": "ok",
    "certify m.onnx h.onnx": "proved",
    "bench m.onnx h.onnx --seconds 0": "models",
    "explain m.onnx": "from",
    "restore h.onnx -o f.onnx --skip verify": "verification",
    "train step.onnx -o s.onnx --skip verify": "training",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_but_json_is_on_standard_output(folder, command):
    """The exit code and what is written are as with a file; the rest is on standard error."""
    plain = run(*command.split(), "--json", "plain.json")
    if "-o" in command:
        (folder / command.split(" -o ")[1].split()[0]).unlink()
    piped = run(*command.split(), "--json", "-")
    assert COMMANDS[command] in json.loads(piped.stdout)
    assert json.loads(piped.stdout).keys() == json.loads((folder / "plain.json").read_text()).keys()
    assert piped.exit_code == plain.exit_code
    assert len(piped.stderr.splitlines()) > 0
    assert "amp-rewrite-" not in piped.stderr
    assert "-o" not in command or (folder / command.split(" -o ")[1].split()[0]).is_file()


def test_a_run_that_fails_prints_no_json(folder):
    """Neither half of it nor one of a result that was not written."""
    assert "no such file" in failure("none.onnx", "--json", "-")
    assert "keep_io" not in failure("m.onnx", "--json", "-", "--keep-io", "none", "--io", "half")
    assert not (folder / "m_fp16.onnx").exists()
