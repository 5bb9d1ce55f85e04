"""Where a newcomer came to a dead end: the line now says what to do."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import amp_rewrite
from amp_rewrite import demo
from amp_rewrite.policy.options import Options
from amp_rewrite.reporting import verdict_text
from amp_rewrite.running.verdict import NotJudged
from tests import text
from tests.commands import failure, run

pytest.importorskip("onnxruntime")
CHAIN = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
    [first_matmul_1] a = MatMul (x, w) [root] b = Sqrt (a) [last_matmul_2] y = MatMul (b, w) }"""

BROKEN = """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w> {
    a = Cast <to = 10> (x) b = MatMul (a, w) c = Cast <to = 1> (b) d = Abs (c)
    e = Cast <to = 10> (d) f = MatMul (e, w) y = Cast <to = 1> (f) }"""
"""Half, with a Cast to float32 whose output is declared as float16: onnxruntime refuses it."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model, its weights by name only, a half result of another tool that does not load, and a list."""
    monkeypatch.chdir(tmp_path)
    original = text.model(CHAIN)
    onnx.save(original, "m.onnx")
    (tmp_path / "m.data").write_bytes(bytes(100))
    (tmp_path / "alone.yaml").write_text("name: alone\ndeny:\n  Sqrt: a root\n")
    broken = text.model(BROKEN)
    broken.graph.value_info.append(onnx.helper.make_tensor_value_info("c", TensorProto.FLOAT16, (4, 4)))
    onnx.save(broken, "broken.onnx")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "m.data",
            "is not an ONNX model, or only a part of one; if these are the weights of m.onnx, name that",
        ),
        ("m.onnx --list default --list alone.yaml", "--list names two: default and alone.yaml; name one"),
        (
            "m.onnx --save-observed s.json",
            "--save-observed has no effect without --calibrate; add --calibrate",
        ),
        (
            "m.onnx --keep-full matmul*",
            "float32; a regular expression matches a whole name: .*matmul.* matches first_matmul_1, last_m",
        ),
        ("m.onnx --keep-full MATMUL", "a whole name: .*matmul.* matches first_matmul_1, last_matmul_2"),
        ("m.onnx --keep-full rooot", "float32; did you mean root?"),
    ],
)
def test_a_line_that_helps(words, said, folder):
    """Exit code 2, and one line that says what to do instead; nothing is written."""
    before = sorted(folder.iterdir())
    assert said in failure(*words.split(" "))
    assert sorted(folder.iterdir()) == before


def test_what_does_not_load_is_restored_with_a_warning(folder):
    """The result is not at fault: exit code 0, also as JSON; `verify` says the cause, and names `restore`."""
    done = run("restore", "broken.onnx", "-o", "back.onnx", "--json", "r.json")
    assert done.exit_code == 0, done.output
    assert (
        "warning  not compared with the model: broken.onnx does not run (onnxruntime refuses" in done.stdout
    )
    assert json.loads((folder / "r.json").read_text())["verification"] is None
    assert run("verify", "back.onnx", "back.onnx").exit_code == 0
    told = run("verify", "m.onnx", "broken.onnx")
    assert told.exit_code == 1
    first, second, conclusion, last = told.stdout.splitlines()
    assert conclusion == "FAIL  broken.onnx"
    assert first == "not compared with the original: it does not run"
    assert second.startswith("  the rewritten model does not run: onnxruntime refuses the model (")
    assert last.startswith("next  amp-rewrite restore broken.onnx   #")


def test_a_list_that_leaves_nothing_half_is_warned_of(folder):
    """One that extends another, or leaves something half, is not; nor is a shipped one."""
    warning = "the list alone does not name 1 of the model's 2 operators, which stay float32; it extends no"
    assert warning in run("m.onnx", "--list", "alone.yaml", "--skip=verify").stdout
    (folder / "extends.yaml").write_text("extends: default\ndeny:\n  MatMul: a product\n")
    assert "the list" not in run("m.onnx", "--list", "extends.yaml", "--skip=verify").stdout
    (folder / "some.yaml").write_text("allow:\n  MatMul: a product\n")
    assert "the list" not in run("m.onnx", "--list", "some.yaml", "--skip=verify").stdout
    assert "the list" not in run("m.onnx", "--list", "tensorflow", "--deny", "MatMul", "--skip=verify").stdout


@pytest.mark.usefixtures("folder")
def test_quiet_many_models_name_what_failed(tmp_path):
    """Nothing else is printed."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "bad.onnx").write_text("no model")
    (tmp_path / "m.onnx").rename(tmp_path / "models" / "m.onnx")
    done = run("models", "-o", "half", "-q")
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("amp-rewrite: models/bad.onnx")
    assert "is not an ONNX model" in line


def test_inputs_beside_one_of_several_models_are_its_data(tmp_path, monkeypatch):
    """Flags that say what the inputs are come first."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.onnx").write_bytes(demo.network().SerializeToString())
    np.savez(tmp_path / "a.npz", image=demo.feeds()["image"])
    done = run("a.onnx", "b.onnx", "-o", "half", "-v").stdout
    assert "compared with the original on 1 given sample from a.npz" in done
    assert done.count("synthetic sample (seed 0") == 1
    assert run("a.onnx", "b.onnx", "-o", "half", "--seed", "3", "-v").stdout.count("(seed 3") == 2
    assert TensorProto.FLOAT16 in {each.data_type for each in onnx.load("half/a.onnx").graph.initializer}


@pytest.mark.usefixtures("folder")
def test_a_model_that_is_half_already_is_said_to_be():
    """Where nothing changed; one that has no half and stays float32 is not."""
    assert run("m.onnx", "-o", "half.onnx", "--skip=verify").exit_code == 0
    copied = run("half.onnx", "-o", "again.onnx", "-q", "--require=half")
    assert (copied.exit_code, copied.stderr) == (
        0,
        "half.onnx has float16 already, and again.onnx is a copy\n",
    )
    assert onnx.load("again.onnx").graph == onnx.load("half.onnx").graph
    told = run("half.onnx", "-o", "again.onnx", "--json", "r.json")
    assert "nothing changed" in told.stdout
    assert json.loads(Path("r.json").read_text())["verified"] is False
    unnamed = run("half.onnx")
    assert (unnamed.exit_code, Path("half_fp16.onnx").exists()) == (0, False)
    assert "no file was written (-o FILE writes a copy)" in unnamed.stderr
    assert "0 in float16" not in unnamed.output
    assert amp_rewrite.rewrite("half.onnx").model == Path("half.onnx")
    assert "already" not in run("m.onnx", "-o", "full.onnx", "--deny", "MatMul").output


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--require=half",), 1)])
@pytest.mark.parametrize(
    "command", ["m.onnx -o full.onnx", "tune m.onnx -o full.onnx", "models/full.onnx -o ."]
)
def test_a_result_without_half_says_so(command, flags, code):
    """In one line on standard error, with -q as well, and why; --require half fails, and writes it too."""
    Path("models").mkdir()
    Path("models/full.onnx").write_bytes(Path("m.onnx").read_bytes())
    done = run(*command.split(), "-q", "--deny", "MatMul", *flags)
    assert (done.exit_code, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing became float16: full.onnx is a copy, because ")
    assert line.endswith("denied: asked for by the user (--deny)")
    there = run("full.onnx", "--in-place", "--deny", "MatMul").stderr
    assert there.startswith("nothing became float16: full.onnx stays as it is, because ")
    assert Path("full.onnx").exists()
    report = amp_rewrite.rewrite(onnx.load("m.onnx"), Options(gate=True, device="t4")).report
    assert (report.obstacle is None) is bool(report.nodes.half)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "PASS: verified against the original"),
        ({"signature": ("an output is gone",)}, "FAIL: not compared with the original"),
        ({"unproven": ("nothing is finite",)}, "FAIL: the comparison proves nothing"),
        ({"outputs": 0.1}, "FAIL: too far from the original"),
    ],
    ids=["close", "signature", "unproven", "far"],
)
def test_the_page_says_what_failed(changes, said):
    """A model that was compared, and is too far off, was not left unverified."""
    verdict = amp_rewrite.verify(demo.network(), demo.network(), demo.feeds(), device="cpu")
    far = amp_rewrite.verify(demo.network(), demo.network(seed=1), demo.feeds(), device="cpu")
    changes = {"outputs": far.outputs} if "outputs" in changes else changes
    assert verdict_text.in_short(replace(verdict, **changes)) == said


@pytest.mark.parametrize(
    ("ok", "said"), [(True, "on made-up images in 0..1 the error is"), (False, "if your images are in 0..1")]
)
def test_a_range_of_images_that_would_fail_is_no_riddle(ok, said):
    """What was not judged, and would have failed, says how to have one's own images judged."""
    verdict = amp_rewrite.verify(demo.network(), demo.network(), demo.feeds(), device="cpu")
    (note,) = verdict_text.notes(replace(verdict, not_judged=(NotJudged("0..1", 0.1, None, ok),)))
    assert said in note
    assert ("--data" in note) is not ok


CHAOTIC = """g (float[1,4,8,8] x) => (float[1,4,6,6] y) <float[4,4,3,3] w, float[4] s, float[4] b, float[4] m,
    float[4] v, float k = {1e7}> {
    c = Conv (x, w) n = BatchNormalization (c, s, b, m, v) f = Mul (n, k) y = Sin (f) }"""


def test_no_bound_is_offered_that_nobody_would_want(tmp_path):
    """Where float32 itself is far off, other inputs are asked for, and not a bound above a tenth."""
    draw = np.random.default_rng(0)
    weights = {name: draw.uniform(0.5, 1, 4).astype(np.float32) for name in "sbmv"}
    onnx.save(text.model(CHAOTIC, weights), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=draw.normal(size=(1, 4, 8, 8)).astype(np.float32))
    done = run(tmp_path / "m.onnx", "--data", tmp_path / "in.npz", "-o", tmp_path / "r.onnx")
    assert done.exit_code == 1, done.output
    assert "float32 itself differs by" in done.output
    assert "--data FILE.npz   # other inputs" in done.output
    assert "--tolerance" not in done.output
