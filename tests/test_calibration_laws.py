"""Laws of calibration: what is seen is what NumPy sees, merging has no order, and memory has a bound."""

import subprocess
import sys
from functools import reduce

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from amp_rewrite import Observed
from amp_rewrite.analysis.observed import NOTHING, Extremes
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.running import observation
from amp_rewrite.running.instrumented_model import InstrumentedModel
from amp_rewrite.running.sessions import Device
from tests import text
from tests.random_models import feeds, models

pytest.importorskip("onnxruntime")
LAW = settings(
    max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
ZEROS = st.sampled_from((0.0, -0.0))
FINITE = ZEROS | st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def extremes(draw):
    """What may be seen of a value."""
    low, high = sorted((draw(FINITE), draw(FINITE)))
    counts = [draw(st.integers(0, 9)) for _ in range(3)]
    counted = sum(counts) + draw(st.integers(0, 99))
    return Extremes(low, high, draw(st.integers(1, 9)), counted, *counts)


def seen():
    """What may be seen of a model."""
    values = st.dictionaries(st.sampled_from("abc"), extremes())
    return st.builds(Observed, st.just("model"), st.integers(1, 9), values)


@LAW
@given(st.lists(seen(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_parts_merge_in_any_order_and_grouping(tmp_path_factory, parts, random):
    """However parts are grouped and ordered, the file has the same bytes."""
    folder = tmp_path_factory.mktemp("parts")
    reduce(Observed.merge, parts).save(folder / "left.json")
    shuffled = random.sample(parts, len(parts))
    at = random.randrange(len(parts))
    groups = [reduce(Observed.merge, group) for group in (shuffled[:at], shuffled[at:]) if group]
    reduce(lambda left, right: right.merge(left), groups).save(folder / "grouped.json")
    assert (folder / "left.json").read_bytes() == (folder / "grouped.json").read_bytes()
    assert Observed.load(folder / "left.json") == reduce(Observed.merge, parts)


@LAW
@given(extremes())
def test_nothing_is_neutral(one):
    """What was not seen changes nothing."""
    assert one.join(NOTHING) == NOTHING.join(one) == one


def arrays_of(model, samples):
    """The values of the main graph in each run, with their names, from sessions that output them all."""
    instrumented = InstrumentedModel(model, Device.CPU)
    for sample in samples:
        for chunk in instrumented.chunks(instrumented.values, sample):
            yield from chunk.items()


def expected(model, samples):
    """The extremes of the float32 values of the main graph, by NumPy."""
    found = {}
    for name, array in arrays_of(model, samples):
        if array.dtype == np.float32:
            found[name] = found.get(name, NOTHING).join(extremes_of(array))
    return found


def extremes_of(array):
    """The extremes of the finite elements of an array in one run."""
    finite = array[np.isfinite(array)].astype(float)
    return Extremes(finite.min(initial=np.inf), finite.max(initial=-np.inf), samples=int(array.size > 0))


@pytest.mark.parametrize("examples", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_what_is_seen_is_what_there_is(examples):
    """Of random models, with infinities and NaN in their values: the extremes that NumPy finds."""
    compared = set()

    @settings(LAW, max_examples=examples)
    @given(models())
    def check(model):
        names = {entry.name for entry in model.graph.input}
        samples = [{n: x * np.float32(k) for n, x in feeds().items() if n in names} for k in (1, 1, 1e4, 1)]
        try:
            found = observation.observe(model, samples, device="cpu")
        except AmpRewriteError:
            return
        there = {name: extremes for name, extremes in expected(model, samples).items() if name in found}
        for name, extremes in there.items():
            assert found[name].low == pytest.approx(extremes.low, rel=1e-5, abs=1e-30)
            assert found[name].high == pytest.approx(extremes.high, rel=1e-5, abs=1e-30)
            assert found[name].samples == extremes.samples
        compared.update(there)

    check()
    assert len(compared) > 5


@pytest.mark.slow
def test_a_few_of_many_elements_are_counted():
    """Above 2^24 float32 does not hold every number: the few that are counted are exact all the same."""
    x = np.ones(2**24 + 4099, np.float32)
    x[[7, 2**24, -1]] = np.inf, 1e-9, 1e5
    proto = text.model("g (float[N] x) => (float[N] y) { y = Abs (x) }")
    seen = observation.observe(proto, {"x": x}, device="cpu")
    assert (seen["y"].not_finite, seen["y"].flushed, seen["y"].beyond) == (1, 1, 1)
    assert seen["y"].counted == pytest.approx(x.size, abs=2)
    assert (seen["y"].low, seen["y"].high) == (np.float32(1e-9), 1e5)


RUN = """
import re, sys
from pathlib import Path
import numpy as np
import amp_rewrite.running.observation
from amp_rewrite.running import sessions
samples = ({"x": np.full((1, 1 << 21), k, np.float32)} for k in range(2))
if sys.argv[2] == "observed":
    amp_rewrite.observe(sys.argv[1], samples, device="cpu")
else:
    session = sessions.open_session(sys.argv[1])
    for feeds in samples:
        session.run(None, feeds)
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_memory_is_bounded(tmp_path):
    """Of a hundred values of 8 MB each, none is kept: 1.5 times the memory of plain runs and 200 MB."""
    names = ["x", *(f"v{at}" for at in range(100))]
    nodes = [
        helper.make_node(operator, [before], [after])
        for operator, before, after in zip(["Relu", "Sin"] * 50, names[:-1], names[1:], strict=True)
    ]
    border = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "n"]) for name in ("x", names[-1])]
    graph = helper.make_graph(nodes, "long", border[:1], border[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")

    def peak(way):
        command = [sys.executable, "-c", RUN, tmp_path / "m.onnx", way]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert peak("observed") <= 1.5 * peak("plain") + 200
