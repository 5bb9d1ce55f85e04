"""`convert` does from Python what the command does: rewrite, compare, repair."""

import json
import math

import numpy as np
import onnx
import pytest

from amp_rewrite import Options, Tolerances, convert, observe, tune
from amp_rewrite.demo import feeds, network
from amp_rewrite.errors import FeedError, OptionError, OutputError, TimeLimitError
from amp_rewrite.running.inputs.feeds import Data
from tests import text
from tests.commands import run

pytest.importorskip("onnxruntime")

OVERFLOWS = """g (float[1,64] x) => (float[1,64] y) <float[64,64] w, float[1] big = {60000.0}> {
    h = MatMul(x, w)  s = Mul(h, big)  r = Relu(s)  d = Div(r, big)  y = MatMul(d, w) }"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a model and inputs of it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "m.onnx")
    np.savez("in.npz", **feeds())
    return tmp_path


def overflowing():
    """A model whose second product passes the largest float16 on its input."""
    return text.model(OVERFLOWS), {"x": np.full((1, 64), 9, np.float32)}


@pytest.mark.parametrize(
    "data",
    [None, feeds(), [feeds(), feeds(seed=1)], "in.npz", ["in.npz"], Data("in.npz"), Data(arrays=[feeds()])],
    ids=["synthetic", "a sample", "samples", "a path", "paths", "Data", "Data of arrays"],
)
@pytest.mark.usefixtures("folder")
def test_inputs_come_in_any_form(data):
    """Samples, paths, a Data, or none; the verdict says which."""
    outcome = convert(network(), data=data)
    assert outcome.passes
    assert outcome.verdict.inputs.is_synthetic == (data is None)
    assert outcome.verdict.samples == (len(data) if isinstance(data, list) else 1)


@pytest.mark.parametrize("kind", ["path", "bytes", "proto"])
def test_the_result_is_of_the_kind_that_was_given(folder, kind):
    """A path gives a path; anything else writes no file."""
    source = {"path": "m.onnx", "bytes": network().SerializeToString(), "proto": network()}[kind]
    outcome = convert(source)
    assert outcome.passes
    assert str(outcome.result.model) == "m_fp16.onnx" if kind == "path" else True
    assert kind == "path" or isinstance(outcome.result.model, type(source))
    assert (folder / "m_fp16.onnx").exists() == (kind == "path")


def test_what_overflows_is_repaired():
    """The first attempt loses values; the outcome has it, and passes on the sample."""
    model, sample = overflowing()
    outcome = convert(model, data=sample)
    assert outcome.passes
    assert outcome.first.loses_values
    kept = convert(model, data=sample, repair=False)
    assert (kept.passes, kept.first) == (False, None)
    assert repr(outcome).startswith("Outcome(PASS, ")
    assert repr(outcome).endswith(" nodes in float16, repaired)")


def test_it_is_what_the_command_does(folder):
    """The same bytes, and the same report."""
    done = run("m.onnx", "-o", "a.onnx", "--data", "in.npz", "--json", "a.json")
    assert done.exit_code == 0
    outcome = convert("m.onnx", data="in.npz", output="b.onnx")
    assert (folder / "a.onnx").read_bytes() == (folder / "b.onnx").read_bytes()
    told, ours = json.loads((folder / "a.json").read_text()), json.loads(json.dumps(outcome.to_json()))
    assert told.keys() == ours.keys()
    differs = {key for key, value in ours.items() if told[key] != value}
    assert differs <= {"seconds", "ranges"}  # which are counted for a report in a file


def test_nothing_is_run_where_that_is_asked_for():
    """Without a comparison there is no verdict, and the outcome says why."""
    outcome = convert(network(), verify=False)
    assert (outcome.verdict, outcome.unverified) == (None, "`verify=False` was given")
    assert not outcome.to_json()["verified"]


def test_metrics_bounds_and_progress():
    """A metric of the user's fails the verdict; stages are told in order."""
    told = []

    def largest(_, rewritten, __):
        """The largest value of the output."""
        return max(float(step["probabilities"].max()) for step in rewritten)

    bounds = Tolerances(error=0.5)
    outcome = convert(network(), data=feeds(), metrics=largest, bounds=bounds, progress=told.append)
    assert outcome.verdict.metrics[0].name == "largest"
    assert math.isfinite(outcome.verdict.metrics[0].value)
    assert told.index("load") < told.index("write") < told.index("verify")


def test_plans_and_observations_decide():
    """A saved plan is carried out as it is; observed ranges decide before the first attempt."""
    model, sample = overflowing()
    tuned = tune(model, sample)
    assert convert(model, data=sample, plan=tuned.plan).passes
    outcome = convert(model, data=sample, observed=observe(model, sample), repair=False)
    assert outcome.result.report.observed or outcome.result.report.rescaled


def test_files_are_guarded(folder):
    """What another tool wrote stays, without `force`; nothing is left half-written."""
    (folder / "notes.txt").write_text("mine")
    with pytest.raises((OptionError, OutputError)):
        convert("m.onnx", output="notes.txt")
    assert (folder / "notes.txt").read_text() == "mine"
    with pytest.raises(FeedError, match="has no input 'nothing'"):
        convert("m.onnx", data={"nothing": np.zeros(1)}, output="half.onnx")
    assert sorted(path.name for path in folder.iterdir()) == ["in.npz", "m.onnx", "notes.txt"]


def test_a_limit_leaves_the_older_result(folder):
    """Where time is over before a verdict, a file that is there stays as it was."""
    convert("m.onnx", output="half.onnx")
    before = (folder / "half.onnx").read_bytes()
    with pytest.raises(TimeLimitError):
        convert("m.onnx", Options(half="bfloat16"), output="half.onnx", timeout=1e-9)
    assert (folder / "half.onnx").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"options": "float16"}, "Options"),
        ({"data": 3}, "not a sample"),
        ({"bounds": 0.1}, "Tolerances"),
        ({"device": "cuda:9", "verify": False}, "device"),
        ({"progress": 1}, "not callable"),
        ({"timeout": -1}, "timeout"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_wrong_arguments_are_named(arguments, said):
    """One clear line, before any work."""
    with pytest.raises((OptionError, FeedError), match=said):
        convert(network(), **arguments)
