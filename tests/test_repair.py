"""The main job repairs what is too far off; what still fails gets flags that were tried."""

import dataclasses
import itertools
import json
import math
import re
import time

import numpy as np
import onnx
import pytest

from amp_rewrite.errors import CertificateError
from amp_rewrite.policy.options import Level, Options, Pins
from tests import commands, text

pytest.importorskip("onnxruntime")
from amp_rewrite.reporting import verdict_text
from amp_rewrite.rewriting.report import Counts
from amp_rewrite.running.blame import Blame
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.running.verdict import Output, Tried, Verdict
from amp_rewrite.tuning import repair, trials
from amp_rewrite.tuning.repair import Outcome, Settings
from tests.repairs import OnSamples, made_up, repaired

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


# ---- the command line

GROWS = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {300, 0, 0, 300}, float[2,2] v = {1, 0, 0, 1}> {
    [small] a = MatMul (x, w) [large] b = MatMul (a, w) [moved] c = Transpose (b) [last] d = MatMul (c, v)
    [bounded] y = Tanh (d) }"""


@pytest.fixture
def path(tmp_path):
    """A model whose second product overflows, as a file, with inputs in the same folder."""
    onnx.save(text.model(GROWS), tmp_path / "model.onnx")
    np.savez(tmp_path / "ones.npz", x=np.eye(2, dtype=np.float32))
    return tmp_path / "model.onnx"


def test_the_level_that_forced_all_is_left_if_that_helps(path):
    """It is tried before any pin, and the same job passes with the flag that is printed."""
    given = (path, "--level", "unsafe-force-all", "--data", path.with_name("ones.npz"))
    (line,) = [line for line in commands.run(*given).output.splitlines() if line.startswith("next")]
    assert line.startswith("next  add --level default   # tried: PASS, error ")
    assert line.endswith(" of 5 nodes in half")
    assert commands.run(*given, "--level", "default").exit_code == 0


def test_float32_is_the_advice_where_nothing_else_passes(tmp_path):
    """No flag is: it would be a way to say that nothing is half."""
    source = "g (float[2] x) => (float[2] y) { [square] a = Mul (x, x) [root] y = Sqrt (a) }"
    onnx.save(text.model(source), tmp_path / "m.onnx")
    np.savez(tmp_path / "large.npz", x=np.float32([1e4, 1]))
    given = ("--level", "unsafe-force-all", "--data", tmp_path / "large.npz")
    output = commands.run(tmp_path / "m.onnx", *given).output
    assert "next  leave the model in float32: of what was tried, only that passes" in output


def test_the_flags_that_are_printed_mend_it(path):
    """What stands behind `next` is what passed, and does so again; the result is that of the first flags."""
    given = ("--data", path.with_name("ones.npz"), "--skip", "repair")
    result, report = path.with_name("model_fp16.onnx"), path.with_name("report.json")
    found = commands.run(path, *given, "--json", report)
    assert found.exit_code == 1
    before = result.read_bytes()
    (line,) = [line for line in found.output.splitlines() if line.startswith("next")]
    flags, note = line.removeprefix("next  add").split("#")
    assert note.startswith(" tried: PASS, error ")
    *_, last = json.loads(report.read_text())["verification"]["tried"]
    assert last["ok"]
    assert f"{last['error']:.1e}" in note
    again = commands.run(path, *given, *flags.split())
    assert again.exit_code == 0, again.output
    assert result.read_bytes() != before


def test_names_in_flags_are_whole(path):
    """They are to be pasted, however long they are: those tried in vain, and those meant."""
    long = "a/" * 60 + "last"
    model = onnx.load(path)
    model.graph.node[1].name = long
    onnx.save(model, path)
    data = ("--data", path.with_name("ones.npz"), "--skip", "repair", "--tolerance", "error=1e-9")
    found = commands.run(path, *data, "-v")
    assert f"tried --keep-full {long}" in found.output
    missed = commands.run(path, "--skip=verify", "--keep-full", long[:-1])
    assert long in missed.output.replace(f"--keep-full {long[:-1]} ", "")


def test_the_page_says_what_was_tried(path):
    """Flags that helped and those that did not."""
    page = path.with_name("report.html")
    commands.run(path, "--data", path.with_name("ones.npz"), "--skip", "repair", "--html", page)
    assert "tried --keep-full" in page.read_text()


@pytest.mark.parametrize("flag", ["--in-place", "--plan"])
def test_nothing_is_tried_where_it_cannot_be_followed(path, flag):
    """The model is gone, or a plan decides, beside which pins are refused."""
    given = ("--data", path.with_name("ones.npz"), "--skip", "repair")
    plan = path.with_name("plan.json")
    commands.run(path, "--dry-run", "--save-plan", plan)
    found = commands.run(path, *given, *([flag, plan] if flag == "--plan" else [flag]))
    assert found.exit_code == 1
    assert "  tried --" not in found.output
    assert ("next  add --keep-full" in found.output) == (flag == "--in-place")


# ---- what made-up inputs decide

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


def test_what_made_up_inputs_fail_is_an_open_question(cancels):
    """The half plan stays, the verdict is inconclusive, and only --require verify makes a failure of it."""
    code, told, output = report(cancels)
    assert (code, told["nodes"]["full"], told["verified"]) == (0, 0, False), output
    verdict = told["verification"]
    error = max(each["error"] for each in verdict["outputs"])
    assert error > 0.01
    question = f"inconclusive on made-up inputs ({error:.1e}, limit 1e-02): give --data"
    assert question == told["not_verified"]
    assert question in output
    assert "tuning" in told  # what was found gives up too much
    assert report(cancels, "--require=verify")[0] == 1
    last = f"largest error {error:.1e} (limit 1e-02, made-up inputs)\n"
    assert re.search(rf"^inconclusive  .*{re.escape(last)}", commands.run(cancels, "-q").stderr, re.MULTILINE)


def test_given_inputs_decide_all(cancels):
    """On the same numbers, given, a search keeps in float32 what it has to, and the verdict passes."""
    np.savez(cancels.with_name("d.npz"), x=np.float32(np.random.default_rng(1).normal(size=(4, 16))))
    code, told, output = report(cancels, "--data", cancels.with_name("d.npz"))
    assert (code, told["verified"]) == (0, True), output
    assert told["nodes"]["full"] > 0


def test_a_requested_search_is_as_free_on_made_up_inputs(cancels):
    """`tune` is asked for a plan within the error."""
    done = commands.run("tune", cancels, "-o", cancels.with_name("t.onnx"), "--prefer", "flops")
    assert done.exit_code == 0, done.output
    assert "PASS" in done.output


def test_values_that_are_lost_on_made_up_inputs_are_mended(path):
    """What overflows is observed, whatever that costs."""
    code, told, output = report(path, "--range", "x=-1:1")
    assert (code, told["verified"]) == (0, True), output
    assert told["observed"]


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


@pytest.mark.parametrize(
    ("first", "faint"), [("Identity", True), ("LpNormalization", False)], ids=["any size", "normalised"]
)
def test_inputs_on_which_half_overflows_are_tried_fainter(tmp_path, first, faint):
    """A dear repair of overflow is left out where 100 times fainter inputs pass, and that is said."""
    w = np.float32(np.random.default_rng(0).normal(0, 4, (64, 64)))
    body = f"""g (float[4,64] x) => (float[4,64] y) <float[64,64] w, float[64,64] v> {{
        n = {first} (x) a = MatMul (n, w) b = MatMul (a, w) c = MatMul (b, w)
        d = MatMul (c, w) y = MatMul (d, v) }}"""
    path = tmp_path / "m.onnx"
    onnx.save(text.model(body, {"w": w, "v": w * np.float32(1e-6)}), path)
    code, told, output = report(path, "--skip", "rescale")
    assert (code, told["verified"], told["nodes"]["full"] == 0) == (0, True, faint), output
    said = "if your inputs can be 100 times as loud as these (infinities or NaN), the verdict is FAIL"
    assert (said in output, "made-up inputs, 100 times as faint" in output) == (faint, faint)
    np.savez(tmp_path / "d.npz", x=np.float32(np.random.default_rng(0).normal(size=(4, 64))))
    given = report(path, "--skip", "rescale", "--data", tmp_path / "d.npz")[1]
    assert given["nodes"]["full"] > 0  # data decide


class MadeUp(Answers):
    """Verdicts on made-up inputs, by whether proofs free something, and FLOPs in half."""

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
        return made_up(verdict(self.answers[self.asked[-1].options.free]))

    def observe(self, before):
        """Nothing leaves the range."""
        del before
        return {}

    def half_flops(self, result):
        """The FLOPs with what proofs free, and without."""
        del result
        return self.flops[self.asked[-1].options.free]


@pytest.mark.parametrize(("left", "free"), [(95, False), (85, True)])
def test_made_up_inputs_give_up_a_tenth(left, free):
    """A repair that leaves less of the FLOPs in half is taken back, though it passes."""
    work = MadeUp({True: 0.05, False: 0.001}, {True: 100, False: left})
    found = repaired(work)
    assert found.settings.options.free is free
    assert work.asked[-1].options.free is free  # the file is that of the settings
    assert found.verification.ok is not free
    assert found.verification.is_made_up is free
    assert not found.is_far


# ---- what a search runs on, and for how long


def test_made_up_inputs_are_confirmed_on_others(cancels, monkeypatch):
    """The search has the seed that failed, and its plan is judged on the next one."""
    monkeypatch.setattr(repair, "LEAST", 0.0)
    code, told, output = report(cancels)
    assert (code, told["verified"]) == (0, True), output
    assert "1 synthetic sample (seed 1)" in output


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


def test_the_stages_are_all_timed(cancels):
    """-v has the comparison, the search and the proof beside the stages of the rewrite."""
    _, told, _ = report(cancels)
    assert {"load", "write", "prove", "inputs", "verify", "observe", "tune"} <= set(told["seconds"])
    output = commands.run(cancels, "-v").output
    assert "verify" in next(line for line in output.splitlines() if line.startswith("seconds"))


# ---- the inputs of the comparison


def test_calibration_samples_are_compared_on(cancels):
    """Unless others are given, or synthetic ones asked for."""
    folder = cancels.parent
    for name in ("c", "d"):
        np.savez(folder / f"{name}.npz", x=np.float32(np.random.default_rng(1).normal(size=(4, 16))))
    calibrate = ("--calibrate", folder / "c.npz", "--keep-full", ".*")
    asked = ("--require=verify",)
    assert "given sample from" in (output := report(cancels, *calibrate, *asked)[2])
    assert "c.npz" in output
    assert "d.npz" in report(cancels, *calibrate, *asked, "--data", folder / "d.npz")[2]
    assert "synthetic sample" in report(cancels, *calibrate, *asked, "--seed", "0")[2]


@pytest.mark.parametrize("command", [(), ("tune",)])
def test_the_file_beside_a_model_is_its_data(cancels, command):
    """For a single model as for many; flags that ask for synthetic inputs count."""
    np.savez(cancels.with_suffix(".npz"), x=np.float32(np.random.default_rng(1).normal(size=(4, 16))))
    words = (*command, cancels, "-o", cancels.with_name("r.onnx"), "--prefer", "flops")
    words = words if command else words[:-2]
    done = commands.run(*words)
    assert "1 given sample from" in done.output, done.output
    assert "m.npz" in done.output
    assert ", made-up inputs)" in commands.run(*words, "--seed", "0").output


@pytest.mark.parametrize("command", ["rewrite", "tune", "verify"])
@pytest.mark.parametrize("arrays", [{"y": (4, 16)}, {"x": (4, 15)}])
def test_a_file_beside_a_model_that_does_not_fit_is_left_aside(cancels, command, arrays):
    """In one line on standard error: nobody named it. Who names it gets an error."""
    beside, out = cancels.with_suffix(".npz"), cancels.with_name("r.onnx")
    np.savez(beside, **{name: np.ones(shape, np.float32) for name, shape in arrays.items()})
    words = (command, cancels, *([cancels] if command == "verify" else ["-o", out]))
    done = commands.run(*words)
    assert done.exit_code == 0, done.output
    (line,) = (line for line in done.stderr.splitlines() if "m.npz" in line)
    assert line.endswith("nobody named the file, and made-up inputs are used instead")
    assert ", made-up inputs)" in done.stdout
    assert "m.npz" in commands.failure(*words, "--data", beside)
