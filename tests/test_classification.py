"""Pins that no case can say, and what keeping may not do; `classification.cases` has the rest."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_rewrite
from amp_rewrite import Options, Pins, analyze, conversion, demo
from amp_rewrite.colouring.painting import Rule
from amp_rewrite.errors import OptionError
from amp_rewrite.pipeline import rewrite
from amp_rewrite.policy.evidence import Authority, in_words
from amp_rewrite.policy.operator_lists import Kind
from tests import text
from tests.commands import run
from tests.text import kept, model, values_in_half

ONE = "g (float[4,4] x) => (float[4,4] y) { [n] y = Relu (x) }"


def test_keeping_nodes_makes_no_others_half() -> None:
    """In the demo, the Loop between a denied node and a head that is kept stays in float32 as before."""
    plain = amp_rewrite.analyze(demo.network())
    kept = plain.painted(Options(pins=Pins(keep_full="head_.*")))
    halves = [unit.index for unit in plain.graph.units if kept.is_half(unit.index)]
    assert all(map(plain.painting.is_half, halves))
    assert plain.report().nodes.half > len({plain.graph.units[unit].node for unit in halves})


def test_an_optional_whose_type_is_spelled_out_is_fixed() -> None:
    """`Optional` with the attribute `type` says float in so many words."""
    model = text.model("g (float[4,4] x) => (float[4,4] y) { o = Optional (x) y = OptionalGetElement (o) }")
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [4, 4])
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("type", kind))
    analysis = amp_rewrite.analyze(model)
    reasons = {
        in_words(entry.evidence)
        for unit, entry in zip(analysis.graph.units, analysis.painting.entries, strict=True)
        if unit.node.op_type == "Optional" and not unit.dense
    }
    assert reasons == {"the attribute type spells the element type out"}


@pytest.mark.parametrize("name", ["a(b", "a+b", "*", "\udcff"])
def test_a_name_may_look_like_a_regular_expression(name: str) -> None:
    """A node's own name is taken as it is, though it is no regular expression, another one, or no text."""
    model = ir.from_proto(text.model(ONE))
    next(iter(model.graph)).name = name
    for pattern in (name, "(?s).*"):
        entries = amp_rewrite.analyze(model, Options(pins=Pins(keep_full=(pattern,)))).painting.entries
        assert [entry.authority for entry in entries] == [Authority.PIN]


@pytest.mark.parametrize("pattern", ["(?=l).*", r"(.)\1", "(a{1000}){1000}", "\udcff("])
def test_what_cannot_be_matched_in_linear_time_is_refused(
    pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Look-around, back-references and what would be too large: one line, and nothing else is printed."""
    with pytest.raises(OptionError) as no:
        amp_rewrite.analyze(text.model(ONE), Options(pins=Pins(keep_full=(pattern,))))
    assert no.value.problem.startswith(f"`Pins.keep_full` {pattern} is not a valid regular expression: ")
    assert no.value.__cause__ is not None
    assert "do without look-around and back-references" in no.value.remedy
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(.*)*.*c"])
def test_patterns_take_linear_time(pattern: str) -> None:
    """A pattern that would backtrack for longer than there are stars takes no time at all."""
    model = text.model(ONE)
    model.graph.node[0].name = "a" * 10_000 + "b"
    with pytest.raises(OptionError, match="matches no node"):
        amp_rewrite.analyze(model, Options(pins=Pins(keep_full=(pattern,))))


# ---- half for the nodes that are named: by operator, in a body, in words

MODEL = """g (float[64,64] x, int64 n, bool k) => (float[64,64] y) <float[64,64] w, float[64,64] v> {
    [first] a = MatMul (x, w) [bias] b = Add (a, v) [second] c = MatMul (b, w) [sum] d = Add (c, v)
    [third] e = MatMul (d, w) [last] f = Relu (e)
    [loop] y = Loop (n, k, f) <body = b (int64 i, bool m, float[64,64] p) => (bool l, float[64,64] q) {
        l = Identity (m) [inner] q = MatMul (p, w) }> }"""


@pytest.mark.parametrize(
    ("pins", "named"),
    [
        (Pins(only_op="Relu"), "last"),
        (Pins(only_op="Add", only="third"), "bias sum third"),
        (Pins(only="loop"), "loop inner"),
        (Pins(only="inner"), "loop inner"),
        (Pins(only_op="MatMul", only="loop"), "first bias second sum third last loop inner"),
    ],
)
def test_half_is_for_what_is_named(pins, named):
    """With what is inside, and what is between."""
    analysis = analyze(text.model(MODEL), Options(pins=pins))
    units = [unit for unit in analysis.graph.units if analysis.painting.is_half(unit.index)]
    assert {unit.node.name for unit in units} == set(named.split())


def test_explain_names_the_flag():
    """Of a node that was not named, and without a name of it."""
    analysis = analyze(text.model(MODEL), Options(pins=Pins(only="first|second")))
    (cause,) = [cause for cause in analysis.causes() if "third" in str(cause.root_places)]
    assert cause.to_json()["reason"] == "not named by 'first|second'"
    assert cause.suggestion.dropped_flags == ("--only 'first|second'",)


# ---- the rule `lead`: whom it leads to


def test_each_says_whom_it_leads_to():
    """The chain of causes goes on to the product."""
    found = analyze(
        model(
            """g (int64[2] ids) => (float[2,4] y) <float[9,4] table, float[4] b, float[4] s, float[4,4] w> {
            a = Gather (table, ids) c = Add (a, b) n = LayerNormalization (c, s) y = MatMul (n, w) }"""
        )
    )
    names = [unit.node.op_type for unit in found.graph.units]
    unit = names.index("Add")
    assert found.painting.paints[unit].rule is Rule.LEAD
    assert [names[cause] for cause in found.decisions().why(unit)] == ["Add", "LayerNormalization", "MatMul"]


# ---- a long way of positions to an angle


def test_a_way_to_an_angle_is_followed_to_its_end():
    """Positions that go through many products to a sine are float32 all the way, however long that is."""
    products = 200
    steps = " ".join(f"a{i + 1} = MatMul (a{i}, w)" for i in range(products))
    text = f"""g (int64[2,2] p) => (float[2,2] y) <float[2,2] w> {{
        a0 = Cast <to = 1> (p) {steps} y = Sin (a{products}) }}"""
    assert len(kept(text)) == products + 2


# ---- what bounds decide: what lists deny and bounds prove in range is freed


def between(nodes):
    """A model in which nodes stand between two products: the first makes `a`, the second reads `b`."""
    return model(
        f"""g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float[4,4] v> {{
            [first] a = MatMul (x, w) {nodes} [last] y = MatMul (b, v) }}"""
    )


RELU = between("[node] b = Relu (a)")
TINY = """t = Tanh (a) k = Constant <value_float = 3e-4> () c = Mul (t, k) [node] d = Mul (c, c)
    l = Constant <value_float = 30000.0> () b = Mul (d, l)"""


def kind(proto):
    """What holds of the node."""
    analysis = analyze(proto)
    (unit,) = (unit.index for unit in analysis.graph.units if unit.node.name == "node")
    return analysis.painting.entries[unit].kind


def test_nothing_is_bounded_where_it_decides_nothing():
    """A model of which no list denies anything for its range costs nothing."""
    found = analyze(RELU), analyze(between("[node] b = Exp (a)"))
    assert [each.computed.proven is None for each in found] == [True, False]


@pytest.fixture
def flags(tmp_path):
    """Flags for the samples that a comparison reads."""
    np.savez(tmp_path / "in.npz", x=np.random.default_rng(0).standard_normal((4, 4), np.float32))
    return "--data", tmp_path / "in.npz"


def test_what_went_back_is_not_freed_by_a_second_rewrite(tmp_path, flags):
    """The list denies it again, though nothing runs then; a pin counts all the same."""
    proto = between(TINY.replace("Tanh", "Sin"))  # float32 before a square that is, and bounded again
    onnx.save(proto, tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", "-o", tmp_path / "once.onnx", *flags).exit_code == 0
    once = onnx.load(tmp_path / "once.onnx")
    assert (kind(proto), kind(once)) == (Kind.INFER, Kind.DENY)
    assert rewrite(once).report.earlier == 0
    analysis = analyze(once, Options(pins=Pins(force_half="node")))
    assert "d" in values_in_half(analysis)


def test_what_went_back_is_not_freed_by_a_search(tmp_path, monkeypatch, flags):
    """A search starts from what failed last: without what was freed, else with the options as they are."""
    asked = []
    monkeypatch.setattr(conversion, "tune", lambda _, __, options, *___, **____: asked.append(options))
    for proto, is_free in ((between(TINY), False), (RELU, True)):
        asked.clear()
        onnx.save(proto, tmp_path / "m.onnx")
        run(tmp_path / "m.onnx", "--tolerance", "error=1e-6", "--range", "x=-8:8", *flags)
        assert (asked[0].free, asked[0].ranges) == (is_free, {"x": (-8.0, 8.0)})
