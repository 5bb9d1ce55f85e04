"""Pins that no case can say, and what keeping may not do; `classification.cases` has the rest."""

import onnx
import onnx_ir as ir
import pytest

import amp_rewrite
from amp_rewrite import Options, Pins, demo
from amp_rewrite.errors import OptionError
from amp_rewrite.policy.evidence import Authority, in_words
from tests import text

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
