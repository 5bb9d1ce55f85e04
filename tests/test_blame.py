"""Blame: the node that adds error, under the name by which it can be kept in float32."""

import io
import shlex

import numpy as np
import onnx
import pytest
from onnx import parser

import amp_rewrite
from amp_rewrite.colouring.painting import Colour
from amp_rewrite.policy.options import Level, Options, Pins

pytest.importorskip("onnxruntime")
from amp_rewrite.console import Console
from amp_rewrite.reporting import terminal
from amp_rewrite.running import instrumented_model, sessions, verdict_text, verification
from amp_rewrite.running.blame import blame
from amp_rewrite.running.sessions import Device

FORCED = Options(level=Level.UNSAFE_FORCE_ALL, fold=False)
HEADER = '<ir_version: 9, opset_import: ["": 17, "own": 1]>'
SQUARE = (
    "g (float[2] x) => (float[2] y) { [double] d = Add (x, x) [square] s = Mul (d, d) [back] y = Sqrt (s) }"
)
X = {"x": np.float32([1, 300])}


def model(body):
    """A model from ONNX text, by its graph."""
    return parser.parse_model(f"{HEADER} {body}")


def blamed(before, feeds, options=FORCED):
    """The blame for a rewrite, on the CPU."""
    return blame(before, amp_rewrite.rewrite(before, options).model, feeds, device=Device.CPU)


def printed(before, feeds):
    """The lines that a verdict with blame prints."""
    after = amp_rewrite.rewrite(before, FORCED).model
    verdict = verification.verify(before, after, [feeds], device=Device.CPU)
    out = io.StringIO()
    console = Console(file=out, width=200)
    found = blame(before, after, feeds, device=Device.CPU)
    found = verification.replace(verdict, blame=found)
    terminal.print_verdict(console, found, terminal.NamedOutcome("m.onnx"))
    terminal.print_hints(console, verdict_text.hints(found))
    return out.getvalue()


# ---- names that pins take

FUNCTION = """g (float[2] x) => (float[2] y) { [call] y = own.Norm (x) }
    <opset_import: ["": 17], domain: "own"> Norm (a) => (b) {
        [square] s = Mul (a, a) [back] b = Sqrt (s) }"""


def test_what_is_blamed_in_a_function_can_be_kept():
    """A node of a function's body has its name after inlining, which is what pins match."""
    before = model(FUNCTION)
    found = blamed(before, X)
    assert (found.worst.operator, found.worst.non_finite) == ("Mul", 1)
    kept = Options(level=Level.UNSAFE_FORCE_ALL, pins=Pins(keep_full=found.keep_full))
    assert blamed(before, X, kept).first_lost is None


def test_a_function_in_a_file_is_inlined_too(tmp_path):
    """The same for a model given by its path."""
    before, after = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(model(FUNCTION), before)
    onnx.save(amp_rewrite.rewrite(model(FUNCTION), FORCED).model, after)
    assert blame(before, after, X, device=Device.CPU) == blamed(model(FUNCTION), X)


LOOP = """g (float[2] x) => (float[2] y) {
    m = Constant <value = int64 {1}> () c = Constant <value = bool {1}> ()
    [loop] z = Loop (m, c, x) <body =
        b (int64 i, bool k, float[2] s) => (bool l, float[2] t) {
            l = Identity (k) [square] u = Mul (s, s) [inner] v = If (k) <
                then_branch = t () => (float[2] p) { [quarter] p = Mul (u, u) },
                else_branch = e () => (float[2] q) { q = Identity (u) }>
            [root] r = Sqrt (v) [again] t = Sqrt (r) }>
    y = Add (z, x) }"""


def test_a_loop_that_is_blamed_can_be_kept():
    """Keeping a loop keeps the nodes of its body and nested bodies: then nothing overflows."""
    before = model(LOOP)
    lost = blamed(before, X).first_lost
    assert (lost.node, lost.operator) == ("loop", "Loop")
    kept = Options(level=Level.UNSAFE_FORCE_ALL, pins=Pins(keep_full=("loop",)))
    assert blamed(before, X, kept).first_lost is None


@pytest.mark.parametrize("name", ["", "s.q", "(", "[a]*", "two words", "'"])
def test_the_flags_that_are_printed_keep_what_is_blamed(name):
    """The flags match empty names, and names with characters special to a shell or a pattern."""
    before = model(SQUARE.replace("[double] ", "[sxq] "))
    before.graph.node[1].name = name
    *_, line = printed(before, X).splitlines()
    first, add, *flags = shlex.split(line)
    assert (first, add, flags[::2]) == ("next", "add", ["--keep-full"] * (len(flags) // 2))
    kept = Options(level=Level.UNSAFE_FORCE_ALL, pins=Pins(keep_full=tuple(flags[1::2])))
    assert blamed(before, X, kept).first_lost is None
    double = next(u for u in amp_rewrite.analyze(before, kept).painting.paints)
    assert double.colour is Colour.HALF, "no other node is kept"


def test_a_constant_is_not_named_but_its_consumer_is():
    """A constant has no node that a pin can name; its consumer is named."""
    source = """g (float[2] x) => (float[2] y) {
        [stored] w = Constant <value = float[2] {1e6, 1e6}> () [sum] s = Add (x, w) [back] y = Sqrt (s) }"""
    found = blamed(model(source), X)
    assert found.worst.node == "stored"
    assert found.keep_full == ("sum",)


def test_what_does_not_round_is_not_blamed():
    """Slices of faint parts, gates that are all but closed, and float32: none of them makes the error."""
    source = """g (float[2,4] x) => (float[1,4] y, float[1,4] z)
        <float[4,4] w, float[4,4] v, float[4] b = {-20, -20, -20, -20}> {
        at = Constant <value = int64[1] {0}> () to = Constant <value = int64[1] {1}> ()
        [product] a = MatMul (x, w) [part] p = Slice (a, at, to) [low] l = Add (p, b) [gate] g = Sigmoid (l)
        [full] f = Mul (p, p) [out] y = MatMul (g, v) [other] z = MatMul (f, v) }"""
    before = parser.parse_model(f"{HEADER} {source}")
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    before.graph.initializer.extend(onnx.numpy_helper.from_array(weights, name) for name in "wv")
    del before.graph.value_info[:]
    loud = {"x": np.float32([[1, 2, 3, 4], [1000, 2000, 3000, 4000]]) / 3}
    found = blamed(before, loud, Options(pins=Pins(keep_full="full")))
    rounds = {error.node: error.rounds for error in found.nodes if error.node}
    assert {node for node, does in rounds.items() if not does} == {"part", "full"}
    assert {"product", "low", "gate", "out", "other"} <= rounds.keys()
    (gate,) = [error for error in found.nodes if error.node == "gate"]
    assert gate.error < 1e-3
    assert found.worst.rounds


# ---- cost


@pytest.mark.parametrize(("small", "length", "chunks"), [(instrumented_model.SMALL, 31, 5), (1, 7, 7)])
def test_chunks_of_small_values_grow(monkeypatch, small, length, chunks):
    """They double, so that a long graph takes few sessions; after one that takes much memory they do not."""
    monkeypatch.setattr(instrumented_model, "CHUNK", 1)
    monkeypatch.setattr(instrumented_model, "SMALL", small)
    opened = []
    plain = sessions.open_session

    def counted(*given, optimised=True, folder=None):
        opened.extend([] if optimised else [1])
        return plain(*given, optimised=optimised, folder=folder)

    monkeypatch.setattr(sessions, "open_session", counted)
    steps = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(length))
    made = model(f"g (float[2] v0) => (float[2] v{length}) {{ {steps} }}")
    assert len(blame(made, made, {"v0": X["x"]}, device=Device.CPU).nodes) == length
    assert len(opened) == 2 * chunks


# ---- external data


def _save(made, path, tensor):
    """Writes a model with one tensor in an external data file."""
    array = onnx.numpy_helper.to_array(tensor)
    (path.parent / "weights").write_bytes(array.tobytes())
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights")
    path.write_bytes(made.SerializeToString())


WEIGHTS = """g (float[2] x) => (float[2] y) <float[2] w = {300, 1}> {
    [square] s = Mul (w, w) r = Sqrt (s) [sum] y = Add (r, x) }"""
INNER = """g (float[2] x, bool c) => (float[2] y) {
    [square] s = Mul (x, x) [if] r = If (c) <
        then_branch = t () => (float[2] p) <float[2] w = {2, 3}> { p = Div (s, w) },
        else_branch = e () => (float[2] q) { q = Identity (s) }>
    y = Sqrt (r) }"""


def test_a_model_with_external_data_and_a_long_name(tmp_path):
    """Nothing is written beside it."""
    made, path = model(WEIGHTS), tmp_path / f"{'m' * 250}.onnx"
    after = amp_rewrite.rewrite(made, FORCED).model
    _save(made, path, made.graph.initializer[0])
    assert blame(path, after, X, device=Device.CPU).first_lost.node == "square"
    assert {file.name for file in tmp_path.iterdir()} == {path.name, "weights"}


def test_external_data_of_a_body_is_found(tmp_path):
    """External data of a branch is read from the model's folder."""
    made, path = model(INNER), tmp_path / "m.onnx"
    after = amp_rewrite.rewrite(made, FORCED).model
    _save(made, path, made.graph.node[1].attribute[0].g.initializer[0])
    found = blame(path, after, X | {"c": np.array(True)}, device=Device.CPU)
    assert found.first_lost.node == "square"
