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
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.operator_lists import Entry
from amp_rewrite.policy.options import Level, Options, Pins
from amp_rewrite.policy.reasons import authority_in_words, in_words

PLAIN = "(float[4,4] x) => (float[4,4] y)"


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


# ---- the order of authority


def test_keeping_nodes_makes_no_others_half() -> None:
    """In the demo, the Loop between a denied node and a head that is kept stays in float32 as before."""
    plain = amp_rewrite.analyze(demo.network())
    kept = plain.painted(Options(pins=Pins(keep_full="head_.*")))
    halves = [unit.index for unit in plain.graph.units if kept.is_half(unit.index)]
    assert all(map(plain.painting.is_half, halves))
    assert plain.report().nodes.half > len({plain.graph.units[unit].node for unit in halves})


# ---- what no one can move: the schema


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


def test_a_name_may_look_like_a_regular_expression() -> None:
    """A node's own name is taken as it is, also where it is not a valid regular expression or another one."""
    model = _model("y = Relu(x)")
    for name in ("a(b", "a+b", "a[0]", "*"):
        model.graph.node[0].name = name
        analysis = amp_rewrite.analyze(model, Options(pins=Pins(keep_full=(name,))))
        assert analysis.painting.entries[0].authority is Authority.PIN


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
