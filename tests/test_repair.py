"""The main job repairs what is too far off; what still fails gets flags that were tried."""

import dataclasses
import itertools
import json
import math
import time

import numpy as np
import onnx
import pytest

from amp_rewrite.demo import feeds, network
from amp_rewrite.errors import CertificateError
from amp_rewrite.policy.options import Level, Options, Pins
from tests import commands, text

pytest.importorskip("onnxruntime")
from amp_rewrite.cli import next_steps
from amp_rewrite.rewriting.report import Counts
from amp_rewrite.running import verdict_text
from amp_rewrite.running.blame import Blame
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.running.verdict import Output, Tried, Verdict
from amp_rewrite.tuning import repair, trials
from amp_rewrite.tuning import tune as confirming
from amp_rewrite.tuning.repair import Outcome, Settings
from amp_rewrite.tuning.search import Point
from amp_rewrite.tuning.tune import tune
from tests.repairs import OnSamples, repaired, synthetic

METRICS = Metrics(0, 0, 0, 1, math.inf, None, 0, 1, 0, 1)


def verdict(error, pins=()):
    """A verdict with that error, which fails above 0.01, and blame that suggests these pins."""
    output = Output("y", METRICS, (f"error {error} is above 0.01",) if error > 0.01 else (), error=error)
    return Verdict((output,), (), "CPU", 1, blame=Blame((), None, tuple(pins)))


PRODUCTS = "[a] z = MatMul (x, w) [b] u = MatMul (z, w) [c] y = MatMul (u, w)"
PRODUCT = text.model(f"g (float[2,2] x) => (float[2,2] y) <float[2,2] w> {{ {PRODUCTS} }}")
ONES = {"x": np.ones((2, 2), np.float32)}


class Answers(OnSamples):
    """A job on two products, whose verdicts are the answers for some options; others are refused."""

    def __init__(self, answers):
        super().__init__(PRODUCT, ONES, repairs=False)
        self.answers = answers

    def compare(self, result, *, fresh):
        """The answer for the pins, or the level."""
        del result, fresh
        options = self.asked[-1].options
        level = options.level.value if options.level is not Level.DEFAULT else ""
        answer = self.answers[level or " ".join(options.pins.keep_full)]
        return answer if isinstance(answer, Verdict) else verdict(answer)

    def observe(self, before):
        """Nothing is to run but comparisons."""
        del before
        pytest.fail("a job without repairs observes")


def tried(failed, answers, options=None):
    """What is tried after a failed verdict."""
    work = Answers(answers)
    before = Outcome(work.rewrite(Settings(options or Options())), failed, Settings(options or Options()))
    found = trials.with_trials(before, work).verification.tried
    return [(one.level or " ".join(one.keep_full), one.ok) for one in found]


INFER, CORES = "treat-infer-as-deny", "tensor-cores-only"
TRIED = {
    "pins": ("a", {"a": 0.001}, [("a", True)]),
    "more pins": ("a", {"a": verdict(0.05, "b"), "a b": 0.001}, [("a", False), ("a b", True)]),
    "no nearer": ("a", {"a": verdict(0.099, "b"), INFER: 0.001}, [("a", False), (INFER, True)]),
    "the same": ("a", {"a": verdict(0.05, "a"), INFER: 0.001}, [("a", False), (INFER, True)]),
    "a level": ("a", {"a": 0.09, INFER: 0.001}, [("a", False), (INFER, True)]),
    "no pins": ("", {INFER: 0.05, CORES: 0.001}, [(INFER, False), (CORES, True)]),
    "nothing": ("a", {"a": 0.1, INFER: 0.1, CORES: 0.1}, [("a", False), (INFER, False), (CORES, False)]),
}


@pytest.mark.parametrize(("pins", "answers", "order"), TRIED.values(), ids=list(TRIED))
def test_the_order_of_what_is_tried(pins, answers, order):
    """Pins, then levels, up to the first that passes."""
    assert tried(verdict(0.1, pins), answers) == order


def test_what_the_user_asked_for_stays():
    """Pins are added to the user's, and no level that was chosen is left but the one that forces all."""
    options = Options(pins=Pins(force_half="a"), level=Level.UNSAFE_FORCE_ALL)
    assert tried(verdict(0.1), {"": 0.001}, options) == [("default", True)]
    assert tried(verdict(0.1), {}, Options(level=Level.TENSOR_CORES_ONLY)) == []
    assert tried(verdict(0.1, "a"), {INFER: 0.1, CORES: 0.1}, Options(pins=Pins(force_half="a"))) == [
        (INFER, False),
        (CORES, False),
    ]  # a pin that says the opposite is refused


def test_what_is_tried_observes_as_the_user_asked():
    """The level that passes thanks to a run alone is no hint where runs decide nothing."""
    assert tried(verdict(0.1), {"": 0.1}, Options(level=Level.UNSAFE_FORCE_ALL)) == [("default", False)]


def test_only_what_helps_is_a_hint():
    """Of what was tried, the one that passes; where none does, no flag is suggested any more."""
    failed = verdict(0.1, "a")
    assert list(verdict_text.hints(failed)) == ["--keep-full a"]  # not tried: by `verify`, for example
    vain = Tried(("a b",), None, 0.09, ok=False)
    mends = Tried((), INFER, 0.002, ok=True)
    found = dataclasses.replace(failed, tried=(vain, mends))
    assert list(verdict_text.hints(found)) == [f"--level {INFER}   # tried: PASS, error 2.0e-03"]
    much = dataclasses.replace(found, tried=(dataclasses.replace(mends, nodes=Counts(3, 40, 1, 2)),))
    assert next(verdict_text.hints(much)).endswith("error 2.0e-03, 4 of 44 nodes in half")
    none = dataclasses.replace(found, tried=(dataclasses.replace(mends, nodes=Counts(0, 44, 0, 2)),))
    assert next(verdict_text.hints(none)).startswith("leave the model in float32: ")
    assert list(verdict_text.in_vain(found)) == ["tried --keep-full 'a b': error 9.0e-02, FAIL"]
    assert list(verdict_text.hints(dataclasses.replace(failed, tried=(vain,)))) == []


# ---- what synthetic inputs decide

CANCELS = """g (float[4,16] x) => (float[4,16] y) <float[16,16] w, float[16,16] unit,
    float many = {300}> {
    [front] a = MatMul (x, w) [shifted] b = Add (a, many) [between] d = MatMul (b, unit)
    [back] c = Sub (d, many) [last] y = MatMul (c, w) }"""
"""A sum that half takes back with an error of some percent, whatever the inputs."""


@pytest.fixture
def cancels(tmp_path):
    """The model as a file."""
    weights = {"w": np.float32(np.random.default_rng(0).normal(0, 0.25, (16, 16)))}
    weights["unit"] = np.eye(16, dtype=np.float32)
    onnx.save(text.model(CANCELS, weights), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def report(path, *flags):
    """The exit code, the report, and the output of the main job."""
    files = ("-o", path.with_name("r.onnx"), "--json", path.with_name("r.json"))
    done = commands.run(path, *files, "-v", *flags)
    return done.exit_code, json.loads(path.with_name("r.json").read_text()), done.output


class Unproved(OnSamples):
    """A job whose results by observed ranges are not proved."""

    def rewrite(self, settings):
        """A result, or the fault."""
        if settings.seen:
            raise CertificateError("the result is not proved equal: they differ")
        return super().rewrite(settings)


def test_a_repair_that_is_not_proved_is_left_out():
    """The result before it stays, with a warning."""
    work = Unproved(PRODUCT, {"x": np.full((2, 2), 1e5, np.float32)})
    found = repaired(work)
    problem = "without the repair 'observed ranges': the result is not proved equal: they differ"
    assert problem in found.result.report.warnings
    assert found.is_far


class MadeUp(Answers):
    """Verdicts on synthetic inputs, by whether proofs free something, and FLOPs in half."""

    def __init__(self, answers, flops):
        super().__init__(answers)
        self.flops, self.repairs = flops, True

    def rewrite(self, settings):
        """A result of which proofs have freed something."""
        result = super().rewrite(settings)
        return dataclasses.replace(result, report=dataclasses.replace(result.report, freed=1))

    def compare(self, result, *, fresh):
        """The error with what proofs free, and without."""
        del result, fresh
        return synthetic(verdict(self.answers[self.asked[-1].options.free]))

    def observe(self, before):
        """Nothing leaves the range."""
        del before
        return {}

    def half_flops(self, result):
        """The FLOPs with what proofs free, and without."""
        del result
        return self.flops[self.asked[-1].options.free]


@pytest.mark.parametrize(("left", "free"), [(95, False), (85, True)])
def test_synthetic_inputs_give_up_a_tenth(left, free):
    """A repair that leaves less of the FLOPs in half is taken back, though it passes."""
    work = MadeUp({True: 0.05, False: 0.001}, {True: 100, False: left})
    found = repaired(work)
    assert found.settings.options.free is free
    assert work.asked[-1].options.free is free  # the file is that of the settings
    assert found.verification.ok is not free
    assert found.verification.is_synthetic is free
    assert not found.is_far


# ---- what a search runs on, and for how long


def test_synthetic_inputs_are_confirmed_on_others(cancels, monkeypatch):
    """The search has the seed that failed, and its plan is judged on the next one."""
    monkeypatch.setattr(repair, "LEAST", 0.0)
    code, told, output = report(cancels)
    assert (code, told["verified"]) == (0, True), output
    assert "(1 sample, seed 1)" in output


def test_a_busy_machine_writes_the_same_file(cancels, monkeypatch):
    """With a clock that runs an hour at each look, the job decides as with one that stands."""
    np.savez(cancels.with_name("d.npz"), x=np.float32(np.random.default_rng(1).normal(size=(4, 16))))
    files = []
    for step in (0.0, 3600.0):
        ticks = itertools.count()
        for clock in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, clock, lambda ticks=ticks, step=step: next(ticks) * step)
        code, told, output = report(cancels, "--data", cancels.with_name("d.npz"))
        assert (code, "tuning" in told) == (0, True), output
        files.append(cancels.with_name("r.onnx").read_bytes())
    assert files[0] == files[1]


# ---- what a search emulates, and what it then says of the real result

TARGET = 1e-3


@pytest.fixture(scope="module")
def tuned():
    """A search's result, to be changed."""
    return tune(network(), feeds(), max_error=TARGET)


def with_error(tuned, error):
    """The same with an error, which passes up to TARGET."""
    (output, *_) = tuned.verdict.outputs
    broken = ("too far",) if error > TARGET else ()
    judged = dataclasses.replace(output, error=error, broken=broken)
    assert isinstance(judged, Output)
    return dataclasses.replace(tuned, verdict=dataclasses.replace(tuned.verdict, outputs=(judged,)))


@pytest.mark.parametrize("sensitive", [0, 3])
def test_nothing_is_said_to_be_within_that_is_not(tuned, sensitive):
    """The line of the search is that of the verdict."""
    failed = with_error(tuned, 1.1e-3)
    report = dataclasses.make_dataclass("Report", ["sensitive", "nodes"])(sensitive, Counts(1, 1, 0, 0))
    (line,) = confirming.lines(failed, report, is_taken=True)
    assert line.text.startswith("no plan was found")
    assert ("the nearest has an error of 1.1e-03" in line.text) == bool(sensitive)
    (line,) = confirming.lines(with_error(tuned, 9e-4), report, is_taken=True)
    assert line.text.startswith("within 1.0e-03, predicted ")


def test_a_bound_by_another_name_is_named(tuned):
    """A relative L2 error is not given out as the error of the verdict, which may be much smaller."""
    failed = dataclasses.replace(with_error(tuned, 1.1e-3), bound="relative_l2")
    report = dataclasses.make_dataclass("Report", ["sensitive", "nodes"])(3, Counts(1, 1, 0, 0))
    (line,) = confirming.lines(failed, report, is_taken=True)
    reached = failed.verdict.outputs[0].metrics.relative_l2
    assert line.text.startswith("no plan was found within relative_l2 1.0e-03; the nearest has relative_l2 ")
    assert f"relative_l2 {reached:.1e} (" in line.text


@pytest.mark.parametrize(
    ("errors", "bound", "offered"),
    [
        # of what was measured, that of the default plan needs no search
        ((5.04e-3, 2e-3, 0.0), "error", "5.5e-03"),
        ((5.04e-3, 2e-3, 0.0), "relative_l2", ""),  # which was measured by another metric
        # a default plan that is far off, or makes what is not finite, is no reason for a looser bound
        ((1.0,), "error", ""),
        ((math.inf,), "error", ""),
    ],
)
def test_the_looser_bound_that_is_offered(tuned, errors, bound, offered):
    """That of the default plan, or none."""
    points = tuple(Point(1.0, 9 - number, error, 1.5) for number, error in enumerate(errors))
    found = dataclasses.replace(with_error(tuned, 0.0), half=0, walked=points, bound=bound)
    assert next_steps.looser(found) == offered


@pytest.mark.parametrize(
    ("speedups", "gated", "said"),
    [
        ((0.5, 0.9), True, "float32 is fastest: the fastest plan that was found within 1.0e-03 is"),
        ((1.2, 0.9), True, "no plan within 1.0e-03 was found that is predicted to be faster than float32"),
        ((), True, "nothing in half was found within 1.0e-03"),
        ((0.5, 0.9), False, "nothing in half was found that passes"),
        ((), False, "nothing in half was found within 1.0e-03"),
    ],
)
def test_float32_as_the_answer_says_why(tuned, speedups, gated, said):
    """By what was measured within the target, if anything was; by speed only where that decided."""
    points = (Point(1.0, 9, 5e-3, 1.5), *(Point(1.0, 3, 5e-4, speedup) for speedup in speedups))
    found = dataclasses.replace(with_error(tuned, 0.0), half=0, speedup=1.0, walked=points)
    report = dataclasses.make_dataclass("Report", ["gated"])(gated)
    (line,) = confirming.lines(found, report, is_taken=True)
    assert line.text.startswith(said)
    assert "so the model stays as it is" in line.text
