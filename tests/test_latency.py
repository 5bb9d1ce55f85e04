import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser

from amp_rewrite.errors import FeedError, OptionError
from amp_rewrite.running import latency, sessions
from amp_rewrite.running.latency import MOST, WARMUP, TimedModel, interleave, speedup
from amp_rewrite.running.sessions import Device

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
twice (float[n] x) => (float[n] y) {
  [cast] h = Cast <to = 10> (x)
  [half] d = Add (h, h)
  [back] y = Cast <to = 1> (d)
}
"""


class Machine:
    """A clock that advances only during runs, and a record of the runs."""

    def __init__(self):
        self.now, self.ran = 0.0, []

    def clock(self):
        """Seconds."""
        return self.now

    def model(self, name, seconds):
        """Runs that take so many seconds."""

        def run():
            self.ran.append(name)
            self.now += seconds

        return itertools.repeat(run)


def test_rounds_run_every_model_once_in_turn():
    """A B B A: after the warm-up, each round has the seconds of each model, in order."""
    machine = Machine()
    turns = [machine.model("A", 2.0), machine.model("B", 1.0)]
    rounds = interleave(turns, 10_000, machine.clock)
    assert "".join(machine.ran) == "ABBA" * ((WARMUP + MOST) // 2)
    assert rounds == [(2.0, 1.0)] * MOST


@pytest.mark.parametrize(
    ("seconds", "warmed", "counted"), [(7.5, 2, 8), (8, 2, 8), (0, 1, 5), (10_000, WARMUP, MOST)]
)
def test_time_ends_the_rounds(seconds, warmed, counted):
    """No round starts after the limit, a quarter of it for the warm-up, but at least five are run."""
    machine = Machine()
    rounds = interleave([machine.model("A", 1.0)], seconds, machine.clock)
    assert (len(machine.ran) - len(rounds), len(rounds)) == (warmed, counted)


def test_the_speedup_is_the_median_of_the_rounds():
    """One disturbed round changes neither the speedup nor its interval."""
    spread = speedup((2.0,) * 99 + (50.0,), (1.0,) * 100)
    assert (spread.median, spread.low, spread.high) == (2.0, 2.0, 2.0)


def test_the_interval_covers_the_uncertainty():
    """With half the rounds at 1 and half at 3, the interval reaches both; with many at 2 it is narrow."""
    bimodal = speedup((1.0, 3.0) * 20, (1.0,) * 40)
    assert (bimodal.low, bimodal.high) == (1.0, 3.0)
    narrow = speedup(tuple(np.linspace(1.9, 2.1, 401)), (1.0,) * 401)
    assert 1.97 < narrow.low < narrow.median < narrow.high < 2.03


@pytest.fixture
def model(tmp_path):
    """A model with two Casts in it, on disk."""
    pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return path


def save(text, path):
    """A model from text, written to a path."""
    onnx.save(parser.parse_model(text), path)
    return path


X = {"x": np.ones(4, np.float32)}


def test_a_bench_has_all_figures_of_all_models(model):
    """Two models and two samples; the first is 1.0 of itself. JSON is flat."""
    subjects = [TimedModel("one", model), TimedModel("two", model)]
    bench = latency.measure(subjects, [X, X], Device.CPU, seconds=0)
    assert len(bench.rounds) == latency.FEWEST
    (one, first, ratio), (two, second, _) = bench.figures()
    assert (one.name, two.name, first > 0, second > 0, ratio) == ("one", "two", True, True, (1.0, 1.0, 1.0))
    plain = json.loads(json.dumps(bench.to_json()))
    assert (plain["provider"], plain["models"][0]["path"]) == ("CPU", str(model))
    assert plain["models"][0]["tf32"] is False
    assert {"p50", "speedup"} <= plain["models"][0].keys()


def test_cuda_that_does_not_work_is_refused(monkeypatch):
    """On a machine without it that is an error, not a run on the CPU; where it works it is used."""
    monkeypatch.setattr(sessions, "best_device", lambda: Device.CPU)
    with pytest.raises(OptionError, match="CUDA does not work here"):
        sessions.check_device("cuda")
    assert sessions.check_device("cpu") is Device.CPU
    assert sessions.check_device(None) is Device.CPU
    monkeypatch.setattr(sessions, "best_device", lambda: Device.CUDA)
    assert sessions.check_device(None) is Device.CUDA
    assert sessions.check_device("cpu") is Device.CPU


def test_no_sample_is_an_error(model):
    """Without inputs there is nothing to time."""
    with pytest.raises(FeedError, match="no sample"):
        latency.measure([TimedModel("one", model)], [], Device.CPU)


def test_inputs_that_do_not_fit_are_an_error(model):
    """A run that fails while it is timed is a FeedError."""
    session = latency.open_timed_session(TimedModel("one", model), Device.CPU)
    with pytest.raises(FeedError, match="the run failed"):
        latency.prepare(session, {"x": np.ones((2, 2), np.float32)}, Device.CPU)()


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float"])
def test_inputs_take_the_type_of_the_model(tmp_path, kind):
    """Inputs for a float32 model are converted for a model with half inputs."""
    pytest.importorskip("onnxruntime")
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> m ({kind}[4] x) => (float[4] y) {{ y = Cast<to=1> (x) }}'
    )
    session = latency.open_timed_session(TimedModel("one", save(text, tmp_path / "m.onnx")), Device.CPU)
    binding = session.io_binding()
    session.io_binding = lambda: binding
    latency.prepare(session, {"x": np.array([1, 2, 3, 300], ml_dtypes.bfloat16)}, Device.CPU)()
    assert binding.copy_outputs_to_cpu()[0].tolist() == [1, 2, 3, 300]


def test_on_cuda_values_are_bound_once():
    """Inputs and outputs are bound before the first run, and every run uses the binding."""
    pytest.importorskip("onnxruntime")
    session, binding = MagicMock(), MagicMock()
    session.io_binding.return_value = binding
    for name, ports in (("x", session.get_inputs), ("y", session.get_outputs)):
        ports.return_value = [SimpleNamespace(name=name, type="tensor(float)")]
    run = latency.prepare(session, X, Device.CUDA)
    assert [each[0] for each in binding.method_calls] == [
        "bind_ortvalue_input",
        "bind_output",
        "synchronize_inputs",
    ]
    assert binding.bind_ortvalue_input.call_args.args[0] == "x"
    assert binding.bind_output.call_args.args == ("y", "cuda")
    run(), run()
    assert session.run_with_iobinding.call_args_list == [call(binding, None)] * 2
    assert len(binding.method_calls) == 3


def test_tf32_is_an_option_of_the_provider():
    """CUDA runs with TF32 off unless the model sets it; the CPU has no such option."""
    assert sessions.providers(Device.CUDA)[0][1] == {"use_tf32": "0"}
    assert sessions.providers(Device.CUDA, tf32=True)[0][1] == {"use_tf32": "1"}
    assert sessions.providers(Device.CPU, tf32=True) == ["CPUExecutionProvider"]
    assert TimedModel("one", Path("m.onnx")).tf32 is False
