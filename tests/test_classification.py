"""What is said of a unit, and who has the last word: pins, the user's lists, ranges, target, lists."""

from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import amp_rewrite
from amp_rewrite import demo
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy import operator_lists, targets
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.operator_lists import Entry, Kind
from amp_rewrite.policy.options import Level, Options, Pins
from amp_rewrite.policy.reasons import authority_in_words, in_words

PLAIN = "(float[4,4] x) => (float[4,4] y)"
HUGE = "1e6"
"""Finite in float32 and infinite in float16."""


def _model(body: str, borders: str = PLAIN, opset: int = 22) -> onnx.ModelProto:
    imports = f'"": {opset}, "com.microsoft": 1, "mine": 1'
    header = f"<ir_version: 10, opset_import: [{imports}]>"
    return onnx.parser.parse_model(f"{header} g {borders} {{ {body} }}")


def _analysis(body: str, borders: str = PLAIN, opset: int = 22, **options: Any) -> Analysis:
    return amp_rewrite.analyze(_model(body, borders, opset), Options(**options))


def _entries(body: str, borders: str = PLAIN, opset: int = 22, **options: Any) -> dict[str, Entry]:
    """What is said of every unit, by `node.variable`."""
    analysis = _analysis(body, borders, opset, **options)
    return dict(zip(map(str, analysis.graph.units), analysis.painting.entries, strict=True))


def _said(body: str, borders: str = PLAIN, opset: int = 22, **options: Any) -> dict[str, str]:
    """Kind and source of every unit, as words, by `node.variable`."""
    found = _entries(body, borders, opset, **options)
    return {
        unit: f"{entry.kind.name} {authority_in_words(entry.evidence, entry.kind)}"
        for unit, entry in found.items()
    }


def _asked(kind: Kind, operator: str) -> operator_lists.OpLists:
    return operator_lists.load("default").override(kind, [operator])


# ---- the order of authority

ADD_HUGE = f"""
    huge = Constant <value = float {{{HUGE}}}> ()
    [add] y = Add(x, huge)
"""
TAN = "[tan] y = Tan(x)"


def test_the_lists_speak_when_nobody_else_does() -> None:
    """A unit is what the shipped list says of its operator, for the list's reason."""
    entry = _entries("[product] y = MatMul(x, x)")["product.T"]
    assert (entry.kind, authority_in_words(entry.evidence, entry.kind)) == (Kind.ALLOW, "default")
    assert entry == operator_lists.load("default").find("", "MatMul")


LOG = "[a] y = Log(x)"
CONV = "[n] y = Conv(x, x)", "(float[1,1,4,4] x) => (float[1,1,1,1] y)"
RANGE = "[n] y = Range(x, x, x)", "(float x) => (float[N] y)"
FORCED = {"level": Level.UNSAFE_FORCE_ALL}
DECIDED = [
    # an operator for which the target has no half kernel is FIXED, whatever list it is on
    ((TAN,), {}, "FIXED target"),
    ((TAN,), {"target": targets.ANY}, "INFER default"),
    # a stored value that half cannot hold makes its readers FIXED, unless all is forced
    ((ADD_HUGE,), {}, "FIXED range"),
    ((ADD_HUGE.replace(HUGE, "10"),), {}, "INFER default"),
    ((ADD_HUGE,), FORCED, "ALLOW force-all"),
    # onnxruntime refuses a bfloat16 node without a kernel, and runs a float16 one in float32
    ((LOG,), {"half": "bfloat16", "target": "onnxruntime-cuda", **FORCED}, "FIXED runtime bug"),
    ((LOG,), {"half": "float16", "target": "onnxruntime-cuda", **FORCED}, "ALLOW force-all"),
    ((LOG,), {"half": "bfloat16", "target": "any", **FORCED}, "ALLOW force-all"),
    # Conv takes bfloat16 from opset 22 on, and float16 from its beginning
    ((*CONV, 21), {}, "ALLOW default"),
    ((*CONV, 22), {"half": BFLOAT16}, "ALLOW default"),
    ((*CONV, 21), {"half": BFLOAT16}, "FIXED schema"),
    # `--allow Range` is heard, and Range stays
    (RANGE, {"lists": _asked(Kind.ALLOW, "Range")}, "FIXED schema"),
]


@pytest.mark.parametrize(("model", "options", "said"), DECIDED)
def test_who_decides(model: tuple[Any, ...], options: dict[str, Any], said: str) -> None:
    """Of a schema, what loads, a level, a range, a target and the lists the first that says something."""
    assert set(_said(*model, **options).values()) == {said}
    if said == "FIXED schema" and "half" in options:
        (entry,) = _entries(*model, **options).values()
        assert in_words(entry.evidence) == "the schema has no bfloat16 here"


@pytest.mark.parametrize("kind", [Kind.ALLOW, Kind.INFER, Kind.CLEAR, Kind.DENY])
def test_the_users_lists_beat_ranges_and_target(kind: Kind) -> None:
    """What a flag says of an operator holds against a range and against the target's kernels."""
    flag = f"--{kind.value}" if kind in (Kind.ALLOW, Kind.DENY) else f"--list {kind.value}"
    expected = f"{kind.name} {flag}"
    assert _said(ADD_HUGE, lists=_asked(kind, "Add")) == {"add.T": expected}
    assert _said(TAN, lists=_asked(kind, "Tan")) == {"tan.T": expected}


@pytest.mark.parametrize("kind", [Kind.ALLOW, Kind.DENY])
def test_pins_beat_the_users_lists(kind: Kind) -> None:
    """What is said of a node holds against what is said of its operator; what is denied stays denied."""
    asked = _asked(kind, "Add")
    kept = "DENY pin" if kind is Kind.DENY else "FIXED pin"
    assert _said(ADD_HUGE, lists=asked, pins=Pins(keep_full=("add",))) == {"add.T": kept}
    assert _said(ADD_HUGE, lists=asked, pins=Pins(force_half=("add",))) == {"add.T": "ALLOW pin"}


def test_keeping_a_denied_node_does_not_free_what_it_feeds() -> None:
    """A pin on Exp is no antidote: what it feeds is as suspect as before."""
    body = "[a] a = MatMul(x, x) [d] d = Exp(x) [c] c = Add(a, d) [e] y = MatMul(c, c)"
    plain, pinned = _entries(body), _entries(body, pins=Pins(keep_full=("d",)))
    assert {unit: entry.kind for unit, entry in plain.items()} == {u: e.kind for u, e in pinned.items()}
    assert "kept by" in in_words(pinned["d.T"].evidence)


def test_keeping_nodes_makes_no_others_half() -> None:
    """In the demo, the Loop between a denied node and a head that is kept stays in float32 as before."""
    plain = amp_rewrite.analyze(demo.network())
    kept = plain.painted(Options(pins=Pins(keep_full="head_.*")))
    halves = [unit.index for unit in plain.graph.units if kept.is_half(unit.index)]
    assert all(map(plain.painting.is_half, halves))
    assert plain.report().nodes.half > len({plain.graph.units[unit].node for unit in halves})


@pytest.mark.parametrize(("name", "own"), [("b", "b"), ("b.0", "b.0"), ("b[0]", r"b\[0\]")])
def test_a_name_beats_an_expression(name: str, own: str) -> None:
    """Everything may be kept and a node of it forced, or the other way round."""
    model = _model("[a] t = Relu(x) [b] y = Relu(t)")
    model.graph.node[1].name = name
    for pins, said in (
        (Pins(keep_full=".*", force_half=own), [Kind.FIXED, Kind.ALLOW]),
        (Pins(keep_full=own, force_half=".*"), [Kind.ALLOW, Kind.FIXED]),
    ):
        entries = amp_rewrite.analyze(model, Options(pins=pins)).painting.entries
        assert [entry.kind for entry in entries] == said


@pytest.mark.parametrize(("keep", "force"), [("b", "b"), ("b.*", ".*"), (".*", ".*")])
def test_pins_that_contradict_each_other_are_refused(keep: str, force: str) -> None:
    """A node that both match, both by its name or both by an expression, is named with the two patterns."""
    with pytest.raises(OptionError) as caught:
        _said("[b] t = Relu(x) [b2] y = Relu(t)", pins=Pins(keep_full=keep, force_half=force))
    assert str(caught.value) == (
        f"`Pins.keep_full` {keep} and `Pins.force_half` {force} both match node 'b'; "
        "leave one out; a node's own name is an exception to an expression that matches it"
    )


def test_a_pin_in_a_body_beats_one_around_it() -> None:
    """What stands in a body can be pinned otherwise than the node that has the body."""
    for keep, force, said in (("outer", "beside", "ALLOW"), ("beside", "outer", "FIXED")):
        found = _said(BRANCHES, pins=Pins(keep_full=keep, force_half=force))
        assert found["beside.T"] == f"{said} pin"
        assert found["else.T"] == f"{'FIXED' if said == 'ALLOW' else 'ALLOW'} pin"


@pytest.mark.parametrize("level", list(Level))
def test_pins_beat_every_level(level: Level) -> None:
    """At every level a node stays float32, or becomes half, when it is named."""
    body = "[a] t = Exp(x) [b] y = MatMul(t, t)"
    pins = Pins(keep_full=("b",), force_half=("a",))
    assert _said(body, pins=pins, level=level) == {"a.T": "ALLOW pin", "b.T": "FIXED pin"}


# ---- what no one can move: the schema

UNMOVABLE = {
    "an operator that is unknown": ("[n] y = mine.Thing(x)", PLAIN, "?"),
    "NonMaxSuppression has float alone": (
        "[n] y = NonMaxSuppression(x, x)",
        "(float[1,4,4] x) => (int64[N,3] y)",
        "tensor(float)",
    ),
    "Range has no half": ("[n] y = Range(x, x, x)", "(float x) => (float[N] y)", "T"),
}
unmovable = pytest.mark.parametrize(("body", "borders", "variable"), UNMOVABLE.values(), ids=UNMOVABLE)


@unmovable
def test_the_schema_is_absolute(body: str, borders: str, variable: str) -> None:
    """Where the schema has no half, no level moves the unit, and a pin to float32 says nothing new."""
    unit = f"n.{variable}"
    for level in Level:
        assert _said(body, borders, level=level) == {unit: "FIXED schema"}
    assert _said(body, borders, pins=Pins(keep_full=("n",))) == {unit: "FIXED schema"}


@unmovable
@pytest.mark.parametrize("kept", [(), ("n",)], ids=["forced", "kept and forced"])
def test_nobody_can_force_what_the_schema_forbids(
    body: str, borders: str, variable: str, kept: tuple[str, ...]
) -> None:
    """`--force-half` is refused with the reason, also for a node that is kept at the same time."""
    reason = in_words(_entries(body, borders)[f"n.{variable}"].evidence)
    with pytest.raises(OptionError, match=r"`Pins.force_half` n: ") as caught:
        _said(body, borders, pins=Pins(keep_full=kept, force_half=("n",)))
    assert reason in str(caught.value)
    assert "leave the node in float32" in str(caught.value)


def test_an_unknown_operator_is_one_opaque_unit() -> None:
    """All float32 ports of an unknown operator are one unit; its integers are none of ours."""
    borders = "(float[4] x, int64[4] i) => (float[4] y, float[4] z)"
    analysis = _analysis("[n] y, z = mine.Thing(x, i, x)", borders)
    (unit,) = analysis.graph.units
    assert [site.port for site in unit.uses] == [0, 2]
    assert len(unit.defs) == 2
    assert "unknown" in in_words(analysis.painting.entries[0].evidence)


def test_an_operator_on_no_list_is_fixed() -> None:
    """A known operator that the lists leave out stays float32, and they are named."""
    entry = _entries("[n] y = Sin(x)", lists=operator_lists.load("tensorflow"))["n.T"]
    assert (entry.kind, authority_in_words(entry.evidence, entry.kind)) == (Kind.FIXED, "tensorflow")
    assert in_words(entry.evidence) == "the operator is on no list of tensorflow"


def test_the_statistics_of_layer_normalization_are_fixed() -> None:
    """U is what `stash_type` says, and that is a precision; T is as the lists say."""
    body = "[n] y, mean = LayerNormalization(x, x)"
    borders = "(float[4,4] x) => (float[4,4] y, float[4,1] mean)"
    found = _said(body, borders)
    assert found == {"n.T": "INFER default", "n.U": "FIXED schema"}
    forced = _said(body, borders, pins=Pins(force_half=("n",)))
    assert forced == {"n.T": "ALLOW pin", "n.U": "FIXED schema"}


def test_a_sequence_at_the_border_keeps_its_type() -> None:
    """No Cast turns a sequence, so one that enters or leaves the model stays as it is."""
    borders = "(float[4] x) => (seq(float[4]) y)"
    found = _entries("[n] y = SequenceConstruct(x)", borders)
    assert found["n.S"].authority is Authority.SCHEMA
    assert "input or output of the model" in in_words(found["n.S"].evidence)


def test_an_optional_whose_type_is_spelled_out_is_fixed() -> None:
    """`Optional` with the attribute `type` says float in so many words."""
    body = """
        [o] held = Optional <type = type_of_it> (x)
        [n] y = OptionalGetElement(held)
    """
    model = _model(body.replace(" <type = type_of_it>", ""))
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [4, 4])
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("type", kind))
    analysis = amp_rewrite.analyze(model)
    reasons = {
        in_words(entry.evidence)
        for unit, entry in zip(analysis.graph.units, analysis.painting.entries, strict=True)
        if unit.node.op_type == "Optional" and not unit.dense
    }
    assert reasons == {"the attribute type spells the element type out"}


# ---- levels

EVERY_KIND = """
    [allow] a = MatMul(x, x)
    [infer] b = Add(a, a)
    [clear] c = Relu(b)
    [deny] d = Exp(c)
    [unlisted] e = Sin(d)
    [cast] i = Cast <to = 7> (e)
    [back] y = Cast <to = 1> (i)
"""

LEVELS = {
    Level.DEFAULT: "ALLOW INFER CLEAR DENY FIXED FIXED FIXED",
    Level.TENSOR_CORES_ONLY: "ALLOW FIXED FIXED FIXED FIXED FIXED FIXED",
    Level.TREAT_INFER_AS_DENY: "ALLOW DENY CLEAR DENY FIXED FIXED FIXED",
    Level.UNSAFE_FORCE_ALL: "ALLOW ALLOW ALLOW ALLOW ALLOW FIXED FIXED",
}


@pytest.mark.parametrize("level", LEVELS)
def test_levels(level: Level) -> None:
    """Each level of Grappler's; Casts are never forced, or each would be wrapped in others."""
    model = _model(EVERY_KIND)
    chosen = Options(lists=operator_lists.load("tensorflow"), level=level)
    without_ranges = [
        entry.kind.name if entry.authority is not Authority.RANGE else "FIXED"
        for entry in amp_rewrite.analyze(model, chosen).painting.entries
    ]
    assert " ".join(without_ranges) == LEVELS[level]


def test_a_level_says_so() -> None:
    """What a level changes has the level for its source, and keeps the list's reason where it says more."""
    denied = _entries("[n] y = Add(x, x)", level=Level.TREAT_INFER_AS_DENY)["n.T"]
    assert denied.authority is Authority.LEVEL
    listed = operator_lists.load("default").find("", "Add")
    assert listed is not None
    assert listed.evidence.text in in_words(denied.evidence)


def test_a_level_leaves_the_reason_of_what_is_fixed_anyway() -> None:
    """At `tensor-cores-only` an operator on no list says that, and one on a list that it is not allowed."""
    tensorflow = operator_lists.load("tensorflow")
    chosen = _entries("[a] t = Sin(x) [b] y = Relu(t)", lists=tensorflow, level=Level.TENSOR_CORES_ONLY)
    assert [entry.authority for entry in chosen.values()] == [Authority.LIST, Authority.LEVEL]


# ---- pins

TWO = "[layer1_product] t = MatMul(x, x) [layer2_product] y = MatMul(t, t)"


def _pinned(*patterns: str, body: str = TWO) -> list[str]:
    """The nodes that a pattern keeps."""
    found = _said(body, pins=Pins(keep_full=patterns))
    return [unit.removesuffix(".T") for unit, said in found.items() if said == "FIXED pin"]


def test_a_pattern_matches_the_whole_name() -> None:
    """A pin is a node's name or a regular expression for all of it, not for a part."""
    assert _pinned("layer1_product") == ["layer1_product"]
    assert _pinned("layer[12].*") == ["layer1_product", "layer2_product"]
    assert _pinned(".*2.*") == ["layer2_product"]
    with pytest.raises(OptionError):
        _pinned("layer1")


def test_a_name_may_look_like_a_regular_expression() -> None:
    """A node's own name is taken as it is, also where it is not a valid regular expression or another one."""
    model = _model("y = Relu(x)")
    for name in ("a(b", "a+b", "a[0]", "*"):
        model.graph.node[0].name = name
        analysis = amp_rewrite.analyze(model, Options(pins=Pins(keep_full=(name,))))
        assert analysis.painting.entries[0].authority is Authority.PIN


def test_a_pin_that_matches_nothing_is_refused() -> None:
    """A misspelt name is told, with the names that are near."""
    for flag, pins in (
        ("`Pins.keep_full`", Pins(keep_full=("layer1_produkt",))),
        ("`Pins.force_half`", Pins(force_half=("layer1_produkt",))),
    ):
        with pytest.raises(OptionError) as caught:
            _said(TWO, pins=pins)
        assert str(caught.value) == (
            f"{flag} layer1_produkt matches no node that computes in float32; "
            "did you mean layer1_product or layer2_product?"
        )


def test_a_pin_that_is_like_no_name_points_to_explain() -> None:
    """Without a name that is near, the place where names are listed is named."""
    with pytest.raises(OptionError, match="amp-rewrite explain"):
        _pinned("zzz")


def test_a_pin_that_is_no_regular_expression_is_refused() -> None:
    """What is neither a name nor a regular expression is told, with the reason of who reads it."""
    with pytest.raises(
        OptionError, match=r"`Pins.keep_full` layer\[ is not a valid regular expression: missing \]"
    ) as no:
        _pinned("layer[")
    assert no.value.__cause__ is not None


@pytest.mark.parametrize("pattern", ["(?=l).*", "(?<!x)y", r"(.)\1", "(a{1000}){1000}", "a++", "\udcff("])
def test_what_cannot_be_matched_in_linear_time_is_refused(
    pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Look-around, back-references and what would be too large: one line, and nothing else is printed."""
    with pytest.raises(OptionError) as no:
        _pinned(pattern)
    assert no.value.problem.startswith(f"`Pins.keep_full` {pattern} is not a valid regular expression: ")
    assert "do without look-around and back-references" in no.value.remedy
    assert capfd.readouterr() == ("", "")


def test_a_repetition_beyond_all_numbers() -> None:
    """It is text, as any brace that repeats nothing: one line says that no node is called so."""
    with pytest.raises(OptionError, match=r"a\{4294967296\} matches no node"):
        _pinned("a{4294967296}")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*c", "(.*)*.*c"])
def test_patterns_take_linear_time(pattern: str) -> None:
    """A pattern that would backtrack for longer than there are stars takes no time at all."""
    name = "a" * 10_000 + "b"
    model = _model("y = Relu(x)")
    model.graph.node[0].name = name
    with pytest.raises(OptionError, match="matches no node"):
        amp_rewrite.analyze(model, Options(pins=Pins(keep_full=(pattern,))))


def test_names_that_are_no_unicode() -> None:
    """A name from bytes that are no text can be pinned as it is, and patterns take it."""
    model = ir.from_proto(_model("[n] t = Relu(x) [m] y = Relu(t)"))
    next(iter(model.graph)).name = "\udcff"
    for pattern, count in (("\udcff", 1), ("m", 1), (".*", 2)):
        entries = amp_rewrite.analyze(model, Options(pins=Pins(keep_full=(pattern,)))).painting.entries
        assert sum(entry.authority is Authority.PIN for entry in entries) == count


def test_a_node_without_float32_cannot_be_pinned() -> None:
    """A pin on a node that has nothing to decide is an error, not a wish that comes true."""
    body = "[shape] s = Shape(x) [n] y = Relu(x)"
    assert _pinned("n", body=body) == ["n"]
    integers = "[sum] y = Add(x, x)"
    with pytest.raises(OptionError, match="matches no node"):
        _said(integers, "(int64[4] x) => (int64[4] y)", pins=Pins(keep_full=("sum",)))


def test_a_kept_cast_stays() -> None:
    """A Cast that is pinned to float32 is not retargeted, though only half reads what it gives."""
    body = "[cast] t = Cast <to = 1> (x) [n] y = MatMul(t, t)"
    borders = "(bool[4,4] x) => (float[4,4] y)"
    free = _analysis(body, borders).painting
    kept = _analysis(body, borders, pins=Pins(keep_full=("cast",))).painting
    assert (free.is_half(0), kept.is_half(0)) == (True, False)


def test_a_square_is_what_the_lists_say_of_squares() -> None:
    """A Mul of a value with itself overflows as Pow does; a list without squares, and a user, say Mul."""
    body = "[square] t = Mul(x, x) [product] y = Mul(t, x)"
    assert _said(body) == {"square.T": "DENY default", "product.T": "INFER default"}
    assert _said(body, half=BFLOAT16, lists=operator_lists.load("bfloat16"))["square.T"] == "INFER bfloat16"
    assert _said(body, lists=operator_lists.load("tensorflow"))["square.T"] == "INFER tensorflow"
    assert _said(body, lists=_asked(Kind.INFER, "Mul"))["square.T"] == "INFER --list infer"


BRANCHES = """
    yes = Constant <value = bool {1}> ()
    [before] a = Relu(x)
    [outer] b = If (yes) <
        then_branch = then () => (float[4,4] p) {
            [inner] i = If (yes) <
                then_branch = deep () => (float[4,4] d) { [deepest] d = Exp(a) },
                else_branch = other () => (float[4,4] o) { [other] o = Relu(a) }>
            [beside] p = MatMul(i, i) },
        else_branch = else () => (float[4,4] q) { [else] q = Abs(a) }>
    [after] y = Relu(b)
"""
INSIDE = ["inner", "deepest", "other", "beside", "else"]


def _sources(source: str, **options: Any) -> set[str]:
    """The nodes of which the source says something."""
    return {unit.split(".")[0] for unit, said in _said(BRANCHES, **options).items() if said.endswith(source)}


def test_a_pin_on_control_flow_holds_inside() -> None:
    """Keeping an If keeps its borders and all that its branches compute, nested ones too; nothing beside."""
    assert _sources("FIXED pin", pins=Pins(keep_full=("outer",))) == {"outer", *INSIDE} - {"deepest"}
    assert _sources("pin", pins=Pins(keep_full=("outer",))) == {"outer", *INSIDE}
    assert _sources("pin", pins=Pins(keep_full=("inner",))) == {"inner", "deepest", "other"}
    assert _sources("pin", pins=Pins(keep_full=("deepest",))) == {"deepest"}


def test_forcing_control_flow_forces_what_can_be() -> None:
    """`--force-half` of an If reaches into its branches, and leaves what the schema fixes."""
    assert _sources("ALLOW pin", pins=Pins(force_half=("outer",))) == {"outer", *INSIDE}
    body = BRANCHES.replace("[beside] p = MatMul(i, i)", "[beside] p = mine.Thing(i)")
    found = _said(body, pins=Pins(force_half=("outer",)))
    assert found["beside.?"] == "FIXED schema"
    assert found["else.T"] == "ALLOW pin"


def test_control_flow_without_float_borders_can_be_pinned() -> None:
    """An If that gives integers alone has no unit; a pin on it is for what its branches compute."""
    body = """
        yes = Constant <value = bool {1}> ()
        [outer] y = If (yes) <
            then_branch = then () => (int64[4,4] p) { [mean] m = Relu(x) p = Cast <to = 7> (m) },
            else_branch = else () => (int64[4,4] q) { q = Cast <to = 7> (x) }>
    """
    found = _said(body, "(float[4,4] x) => (int64[4,4] y)", pins=Pins(keep_full=("outer",)))
    assert found["mean.T"] == "FIXED pin"
