"""The main job repairs what is too far off; what still fails gets flags that were tried."""

import dataclasses
import json
import math

import numpy as np
import onnx
import pytest

from amp_rewrite.policy.options import Level, Options, Pins
from tests import commands, text

pytest.importorskip("onnxruntime")
from amp_rewrite import repair
from amp_rewrite.repair import ObservePolicy, Outcome, Settings
from amp_rewrite.reporting import verdict_text
from amp_rewrite.rewriting.report import NodeCounts
from amp_rewrite.running.blame import Blame
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.running.verdict import Output, Tried, Verdict
from tests.repairs import OnSamples

METRICS = Metrics(0, 0, 0, 1, math.inf, None, 0, 1, 0, 1)


def verdict(error, pins=()):
    """A verdict with that error, which fails above 0.01, and blame that suggests these pins."""
    output = Output("y", METRICS, (f"error {error} is above 0.01",) if error > 0.01 else (), error=error)
    return Verdict((output,), (), "CPU", 1, blame=Blame((), None, tuple(pins)))


PRODUCT = text.model(
    "g (float[2,2] x) => (float[2,2] y) <float[2,2] w> { [a] z = MatMul (x, w) [b] y = MatMul (z, w) }"
)
ONES = {"x": np.ones((2, 2), np.float32)}


class Answers(OnSamples):
    """A job on two products, whose verdicts are the answers for some options; others are refused."""

    def __init__(self, answers):
        super().__init__(PRODUCT, ONES)
        self.answers = answers

    def compare(self, result, *, fresh):
        """The answer for the pins, or the level."""
        del result, fresh
        options = self.asked[-1].options
        level = options.level.value if options.level is not Level.DEFAULT else ""
        answer = self.answers[level or " ".join(options.pins.keep_full)]
        return answer if isinstance(answer, Verdict) else verdict(answer)


def tried(failed, answers, options=None):
    """What is tried after a failed verdict."""
    work = Answers(answers)
    before = Outcome(work.rewrite(Settings(options or Options())), failed, Settings(options or Options()))
    found = repair.with_trials(before, work, ObservePolicy.NEVER).verification.tried
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


def test_only_what_helps_is_a_hint():
    """Of what was tried, the one that passes; where none does, no flag is suggested any more."""
    failed = verdict(0.1, "a")
    assert list(verdict_text.hints(failed)) == ["--keep-full a"]  # not tried: by `verify`, for example
    vain = Tried(("a b",), None, 0.09, ok=False)
    mends = Tried((), INFER, 0.002, ok=True)
    found = dataclasses.replace(failed, tried=(vain, mends))
    assert list(verdict_text.hints(found)) == [f"--level {INFER}   # tried: PASS, error 2.0e-03"]
    much = dataclasses.replace(found, tried=(dataclasses.replace(mends, nodes=NodeCounts(3, 1, 40, 2)),))
    assert next(verdict_text.hints(much)).endswith("error 2.0e-03, 4 of 44 nodes in half")
    none = dataclasses.replace(found, tried=(dataclasses.replace(mends, nodes=NodeCounts(0, 0, 44, 2)),))
    assert next(verdict_text.hints(none)).endswith("error 2.0e-03, nothing in half")
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


def test_the_flags_that_are_printed_mend_it(path):
    """What stands behind `next` is what passed, and does so again; the result is that of the first flags."""
    given = ("--data", path.with_name("ones.npz"), "--observe", "never")
    result, report = path.with_name("model_fp16.onnx"), path.with_name("report.json")
    found = commands.run(path, *given, "--json", report)
    assert found.exit_code == 1
    before = result.read_bytes()
    (line,) = [line for line in found.output.splitlines() if line.startswith("next")]
    flags, note = line.removeprefix("next     add").split("#")
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
    data = ("--data", path.with_name("ones.npz"), "--observe", "never", "--tolerance", "error=1e-9")
    found = commands.run(path, *data)
    assert f"tried --keep-full {long}" in found.output
    missed = commands.run(path, "--no-verify", "--keep-full", long[:-1])
    assert long in missed.output.replace(f"--keep-full {long[:-1]} ", "")


def test_the_page_says_what_was_tried(path):
    """Flags that helped and those that did not."""
    page = path.with_name("report.html")
    commands.run(path, "--data", path.with_name("ones.npz"), "--observe", "never", "--html", page)
    assert "tried --keep-full" in page.read_text()


@pytest.mark.parametrize("flag", ["--in-place", "--plan"])
def test_nothing_is_tried_where_it_cannot_be_followed(path, flag):
    """The model is gone, or a plan decides, beside which pins are refused."""
    given = ("--data", path.with_name("ones.npz"), "--observe", "never")
    plan = path.with_name("plan.json")
    commands.run(path, "--dry-run", "--save-plan", plan)
    found = commands.run(path, *given, *([flag, plan] if flag == "--plan" else [flag]))
    assert found.exit_code == 1
    assert "  tried --" not in found.output
    assert ("next     add --keep-full" in found.output) == (flag == "--in-place")
