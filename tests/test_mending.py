"""What mends a failed comparison is tried before it is suggested."""

import json
import math

import numpy as np
import onnx
import pytest

from amp_rewrite import mending
from amp_rewrite.policy.options import Level, Options, Pins
from tests import commands, text

pytest.importorskip("onnxruntime")
from amp_rewrite.reporting import verdict_text
from amp_rewrite.rewriting.report import NodeCounts
from amp_rewrite.running.blame import Blame, NodeError
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.running.verdict import Output, Verdict

METRICS = Metrics(0, 0, 0, 1, math.inf, None, 0, 1, 0, 1)
LOST = NodeError("n", "Mul", "v", 1.0, 1.0, True, 1, None, None, ())


def verdict(error, pins=(), lost=False):
    """A verdict with that error, which fails above 0.01, and blame that suggests these pins."""
    output = Output("y", METRICS, ("too far",) if error > 0.01 else (), error=error)
    found = Blame((), LOST if lost else None, tuple(pins))
    return Verdict((output,), (), "CPU", 1, blame=found)


def compared(found):
    """What an attempt gives for a verdict; None for none."""
    return found and mending.Attempted(found)


def asked(options):
    """Options as text: the pins, or the level."""
    return options.level.value if options.level is not Level.DEFAULT else " ".join(options.pins.keep_full)


INFER, CORES = "treat-infer-as-deny", "tensor-cores-only"


@pytest.mark.parametrize(
    ("failed", "answers", "tried"),
    [
        # the pins mend it
        (verdict(0.1, "a"), {"a": verdict(0.001)}, "a"),
        # a second round adds to the first, as it brought the output nearer, or nodes lose values
        (verdict(0.1, "a"), {"a": verdict(0.05, "b"), "a b": verdict(0.001)}, "a | a b"),
        (verdict(0.1, "a", lost=True), {"a": verdict(0.1, "b"), "a b": verdict(0.001)}, "a | a b"),
        # pins are no way: not nearer, the same again, none, refused
        (verdict(0.1, "a"), {"a": verdict(0.099, "b"), INFER: verdict(0.001)}, f"a | {INFER}"),
        (verdict(0.1, "a"), {"a": verdict(0.05, "a"), INFER: verdict(0.001)}, f"a | {INFER}"),
        (verdict(0.1), {INFER: verdict(0.05), CORES: verdict(0.001)}, f"{INFER} | {CORES}"),
        (verdict(0.1, "a"), {"a": None, INFER: None, CORES: verdict(0.001)}, CORES),
        # no end of pins
        (
            verdict(1.0, "a"),
            {
                "a": verdict(0.8, "b"),
                "a b": verdict(0.6, "c"),
                "a b c": verdict(0.4, "d"),
                INFER: verdict(0.001),
            },
            f"a | a b | a b c | {INFER}",
        ),
        # nothing mends it
        (
            verdict(0.1, "a"),
            {"a": verdict(0.1), INFER: verdict(0.1), CORES: verdict(0.1)},
            f"a | {INFER} | {CORES}",
        ),
    ],
)
def test_the_order_of_what_is_tried(failed, answers, tried):
    """Pins while they help, then levels, up to the first that passes."""
    found = mending.tried(failed, Options(), lambda options: compared(answers[asked(options)]))
    assert " | ".join(one.level or " ".join(one.keep_full) for one in found) == tried
    last = answers[tried.split(" | ")[-1]]
    assert (found[-1].ok, found[-1].error) == (last.ok, last.error)
    assert not any(one.ok for one in found[:-1])


def test_what_the_user_asked_for_stays():
    """Pins are added to the user's, and no level that was chosen is left but the one that forces all."""
    seen = []
    options = Options(pins=Pins(keep_full="k", force_half="f"), level=Level.UNSAFE_FORCE_ALL)
    mending.tried(verdict(0.1, "a"), options, seen.append)
    with_pins, without = (Pins(("k", "a"), "f"), Level.UNSAFE_FORCE_ALL), (Pins("k", "f"), Level.DEFAULT)
    assert [(o.pins, o.level) for o in seen] == [with_pins, without]
    seen.clear()
    mending.tried(verdict(0.1), Options(level=Level.TENSOR_CORES_ONLY), seen.append)
    assert seen == []


def test_time_is_limited(monkeypatch):
    """When the time is over, nothing else is tried."""
    monkeypatch.setattr(mending, "SECONDS", -1.0)
    assert len(mending.tried(verdict(0.1, "a"), Options(), lambda _: compared(verdict(0.1, "b")))) == 1


def test_only_what_helps_is_a_hint():
    """Of what was tried, the one that passes; where none does, no flag is suggested any more."""
    failed = verdict(0.1, "a")
    assert list(verdict_text.hints(failed)) == ["--keep-full a"]  # not tried: by `verify`, for example
    vain = mending.Tried(("a b",), None, 0.09, ok=False)
    mends = mending.Tried((), INFER, 0.002, ok=True)
    found = mending.replace(failed, tried=(vain, mends))
    assert list(verdict_text.hints(found)) == [f"--level {INFER}   # tried: PASS, error 2.0e-03"]
    much = mending.replace(found, tried=(mending.replace(mends, nodes=NodeCounts(3, 1, 40, 2)),))
    assert next(verdict_text.hints(much)).endswith("error 2.0e-03, 4 of 44 nodes in half")
    none = mending.replace(found, tried=(mending.replace(mends, nodes=NodeCounts(0, 0, 44, 2)),))
    assert next(verdict_text.hints(none)).endswith("error 2.0e-03, nothing in half")
    assert list(verdict_text.in_vain(found)) == ["tried --keep-full 'a b': error 9.0e-02, FAIL"]
    assert list(verdict_text.hints(mending.replace(failed, tried=(vain,)))) == []


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


def test_names_in_flags_are_whole(path, monkeypatch):
    """They are to be pasted, however long they are: those tried in vain, and those meant."""
    monkeypatch.setattr(mending, "ROUNDS", 1)
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
