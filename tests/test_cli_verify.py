"""The command line when it compares: verdicts, exit codes, and what it advises."""

import json
import sys

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import parser

from amp_rewrite.cli import main

pytest.importorskip("onnxruntime")
OVERFLOW = """<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {
    [shift] s = Add (x, x) [square] a = Mul (s, s) [root] y = Sqrt (a) }"""
OWN = """<ir_version: 9, opset_import: ["": 17, "own": 1]> g (float[2,2] x) => (float[2,2] y) {
    a = MatMul (x, x) y = own.Op (a) }"""
FORCED = ("--level", "unsafe-force-all")


@pytest.fixture
def model(tmp_path):
    """A model that is fine in float32, and overflows in float16 on the inputs beside it."""
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(OVERFLOW), path)
    np.savez(tmp_path / "large.npz", x=np.float32([150, 1]))
    np.savez(tmp_path / "small.npz", x=np.float32([2, 1]))
    return path


def run(*arguments):
    """Runs the command line in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def data(model, name):
    """The flag for one of the inputs beside a model."""
    return ("--data", model.with_name(f"{name}.npz"))


def test_a_rewrite_that_overflows_is_written_and_ends_with_1(model):
    """The file is there, the exit code is 1, and the output names the node and the flag that would help."""
    result = run(model, *FORCED, *data(model, "large"))
    assert result.exit_code == 1
    assert model.with_name("model_fp16.onnx").exists()
    assert "Mul 'square', which reads 2 to 300" in result.output
    assert "--keep-full square" in result.output


def test_the_flag_that_is_advised_helps(model):
    """With the flags that are advised the same rewrite passes."""
    first = run(model, *FORCED, *data(model, "large"))
    advised = first.output.strip().splitlines()[-1].split()[1:]
    assert advised == ["--keep-full", "square", "--keep-full", "root"]
    assert run(model, *FORCED, *data(model, "large"), *advised).exit_code == 0


def test_other_inputs_other_verdict(model):
    """Inputs that stay small pass: a verdict holds for the data that it saw."""
    assert run(model, *FORCED, *data(model, "small")).exit_code == 0


def test_no_verify_asks_nothing(model):
    """With --no-verify nothing is compared, and the exit code is that of the rewrite."""
    result = run(model, *FORCED, "--no-verify")
    assert result.exit_code == 0
    assert "compared" not in result.output


def test_a_bad_verdict_is_told_when_all_is_quiet(model):
    """With -q a bad verdict still goes to standard error."""
    result = run(model, *FORCED, *data(model, "large"), "-q")
    assert result.exit_code == 1
    assert "--keep-full square" in result.stderr
    assert result.stdout == ""


def test_a_model_that_no_runtime_here_knows_is_rewritten_all_the_same(tmp_path):
    """What cannot be run cannot be compared: one line says so, and the rewrite is done."""
    path = tmp_path / "own.onnx"
    onnx.save(parser.parse_model(OWN), path)
    result = run(path)
    assert result.exit_code == 0
    assert "not compared with the original: onnxruntime refuses the model" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "missing.npz"), "there is no such file"),
        (("--dim", "missing=3"), "no open dimension 'missing'"),
    ],
)
def test_inputs_that_cannot_be_had_are_bad_usage(model, arguments, words):
    """A slip in --data or --dim must not pass as a rewrite that was compared: nothing is written."""
    result = run(model, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not model.with_name("model_fp16.onnx").exists()


@pytest.mark.parametrize(
    "bound", ["relative_l2=nan", "relative_l2=-1", "top1=2", "non_finite=-1", "cosine=1.1"]
)
def test_a_bound_that_means_nothing_is_bad_usage(model, bound):
    """A bound that every output breaks, or none, is a slip."""
    result = run(model, "--tolerance", bound)
    assert result.exit_code == 2
    assert f"{bound} means nothing" in result.stderr


def test_in_place_is_compared_with_what_was_there(model):
    """The model that is overwritten is still what the result is compared with."""
    result = run(model, *FORCED, *data(model, "large"), "--in-place")
    assert result.exit_code == 1
    assert "square" in result.output


def test_verify_says_yes(model):
    """`verify` of a good rewrite ends with 0 and shows every output."""
    run(model, "-q")
    result = run("verify", model, model.with_name("model_fp16.onnx"), *data(model, "large"))
    assert result.exit_code == 0
    assert "half emulated" in result.output
    assert "close" in result.output


def test_verify_says_no_and_why(model, tmp_path):
    """`verify` of a bad one ends with 1, with the bounds that broke, and the same as JSON."""
    run(model, *FORCED, "--no-verify", "-q")
    path = tmp_path / "verdict.json"
    result = run("verify", model, model.with_name("model_fp16.onnx"), *data(model, "large"), "--json", path)
    assert result.exit_code == 1
    assert "y: non_finite 1 is above 0" in result.output
    verdict = json.loads(path.read_text())
    assert verdict["ok"] is False
    assert verdict["outputs"][0]["metrics"]["non_finite"] == 1
    assert verdict["blame"]["first_lost"]["node"] == "square"


def test_a_long_name_is_printed_whole(tmp_path):
    """In 80 columns a name is folded, not cut: two outputs may differ in their ends alone."""
    path, name = tmp_path / "long.onnx", "decoder_" * 6 + "end"
    onnx.save(parser.parse_model(OVERFLOW.replace("y", name)), path)
    lines = run("verify", path, path).output.splitlines()
    assert name == "".join(line.split("  ")[0].strip() for line in lines[2:])


def test_models_of_other_names_are_not_compared(model, tmp_path):
    """Where nothing could be compared no table pretends so; what differs is said."""
    other = tmp_path / "other.onnx"
    onnx.save(parser.parse_model(OWN), other)
    result = run("verify", model, other)
    assert result.exit_code == 1
    assert "not compared with the original: names, types or shapes differ" in result.output
    assert "relative L2" not in result.output


def test_tolerances_decide(model):
    """A bound that is moved or taken away changes the verdict."""
    run(model, *FORCED, "--no-verify", "-q")
    pair = (model, model.with_name("model_fp16.onnx"), *data(model, "small"))
    assert run("verify", *pair).exit_code == 0
    np.savez(model.with_name("rounded.npz"), x=np.float32([1.3, 1]))
    rounded = (*pair[:2], *data(model, "rounded"))
    assert run("verify", *rounded).exit_code == 0
    assert run("verify", *rounded, "--tolerance", "relative_l2=0").exit_code == 1
    lost = (model, model.with_name("model_fp16.onnx"), *data(model, "large"))
    free = [flag for name in ("non_finite", "relative_l2") for flag in ("--tolerance", f"{name}=none")]
    assert run("verify", *lost, *free).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "{model}", "none.onnx"), "none.onnx: there is no such file"),
        (("verify", "{model}", "{model}", "--data", "none.npz"), "none.npz"),
        (("verify", "{model}", "{model}", "--tolerance", "l2=1"), "there is no tolerance l2"),
        (("verify", "{model}", "{model}", "--dim", "batch"), "--dim batch is not NAME=SIZE"),
    ],
)
def test_what_is_wrong_is_one_line(model, arguments, words):
    """Bad input to `verify` is one line and exit code 2."""
    result = run(*(argument.format(model=model) for argument in arguments))
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert words in result.stderr


def test_names_with_brackets_are_printed_as_they_are(tmp_path):
    """A name is text, whatever a terminal library makes of brackets and colons."""
    name = "x[/b] [red] :smile:"
    made = parser.parse_model(OVERFLOW)
    made.graph.node[1].name = name
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    np.savez(tmp_path / "large.npz", x=np.float32([150, 1]))
    result = run(path, *FORCED, *data(path, "large"), "--per-node", "--save-plan", tmp_path / "plan.json")
    assert result.exit_code == 1
    assert f"Mul '{name}'" in result.output
    assert name in run("explain", path).output
    assert "1 of 3" in run(path, "--dry-run", "--allow", "Sqrt").output


def test_without_onnxruntime_the_extra_is_named_in_full(model, monkeypatch):
    """The advice names the extra with its brackets."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install 'amp-rewrite[cpu]'" in run(model, *FORCED).output


def test_json_says_why_there_is_no_verdict(tmp_path):
    """A pipeline can tell a model that could not be compared from one that was not to be."""
    path, report = tmp_path / "own.onnx", tmp_path / "report.json"
    onnx.save(parser.parse_model(OWN), path)
    run(path, "--json", report)
    assert "refuses the model" in json.loads(report.read_text())["verification"]["not_compared"]
    run(path, "--json", report, "--no-verify")
    assert json.loads(report.read_text())["verification"] is None


def test_in_place_over_external_data_is_not_compared_and_says_so(tmp_path):
    """What is overwritten with its data cannot be compared afterwards."""
    path = tmp_path / "model.onnx"
    made = parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[n,64] x) => (float[n,64] y) { y = MatMul (x, w) }""")
    weights = np.zeros((64, 64), np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(made, path, save_as_external_data=True, location="model.data", size_threshold=0)
    result = run(path, "--in-place")
    assert result.exit_code == 0
    assert "not compared with the original: --in-place replaces" in result.output


def test_a_replayed_plan_is_compared_with_the_borders_that_it_has(model, tmp_path):
    """A plan that halves inputs and outputs is no broken signature when it is carried out again."""
    plan = tmp_path / "plan.json"
    run(model, "--save-plan", plan, "--io", "half", "--allow", "Mul", "--no-verify")
    assert run(model, "--plan", plan, *data(model, "small")).exit_code == 0
