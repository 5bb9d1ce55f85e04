"""Identities of outputs are left out where runtimes would execute them: same values, and as many bits."""

import onnx_ir as ir
import pytest

from amp_rewrite import certify, pipeline
from amp_rewrite.explaining import form_sentences
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.preparing import idle_nodes
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind
from tests import text

HEADER = '<ir_version: 8, opset_import: ["" : %d]>'
COPIED = """g (float[2,4] x) => (float[2,4] y, int64[2] z) <float[4,4] w, float[4,4] v> {
  a = MatMul (x, w)
  s = Softmax (a)
  [copy] y = Identity (s)
  z = ArgMax <axis = 1, keepdims = 0> (y)
}"""
BRANCH = """g (float[2,4] x, bool c) => (float[2,4] y, float[2,4] z) <float[4,4] w> {
  a = MatMul (x, w)
  [choice] y, z = If (c) <
    then_branch = t () => (float[2,4] p, float[2,4] r) {
      e = MatMul (a, w) [copy] p = Identity (e) r = Relu (e) },
    else_branch = f () => (float[2,4] q, float[2,4] s) {
      s = MatMul (a, w) q = Add (s, a) }>
}"""


def model(graph, opset=13):
    """A model by the text of its graph."""
    return text.model(f"{HEADER % opset} {graph}")


def operators(model):
    """The operators of a model, in bodies too, but for Casts and constants."""
    found, waiting = [], [model.graph]
    while waiting:
        graph = waiting.pop()
        found += [node.op_type for node in graph.node if node.op_type not in ("Cast", "Constant")]
        waiting += [held.g for node in graph.node for held in node.attribute if held.HasField("g")]
    return found


LEFT_OUT = {
    "an Identity at an output": (
        model(COPIED),
        ["MatMul", "Softmax", "ArgMax"],
        [FormChange(FormChangeKind.IDLE, "copy")],
    ),
    "in branches": (
        model(BRANCH),
        ["MatMul", "If", "MatMul", "Relu", "Add", "MatMul"],
        [FormChange(FormChangeKind.IDLE, "copy")],
    ),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_it_is_left_out(what):
    """The report says so, all is proved, outputs stay as declared, and a second rewrite changes nothing."""
    original, left, changes = LEFT_OUT[what]
    result = pipeline.rewrite(original)
    assert sorted(operators(result.model)) == sorted(left)
    assert list(result.report.form_changes) == changes
    assert all(form_sentences.of(change) for change in changes)
    assert result.model.graph.output == original.graph.output
    assert certify(original, result.model).proved
    text.agree(original, result.model)
    assert pipeline.rewrite(result.model).model == result.model


KEPT = {
    "an Identity of an input": model(
        "g (float[2] x) => (float[2] y, float[2] z) { y = Identity (x) z = Exp (x) }"
    ),
    "an Identity that runtimes remove": model(COPIED.replace("(y)\n", "(a)\n")),
    "an Identity of another output": model(COPIED.replace("y, int64[2] z)", "y, float[2,4] s, int64[2] z)")),
    "an Identity of a constant": model(
        COPIED.replace("Identity (s)", "Identity (v)").replace("[4,4] v", "[2,4] v")
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_it_stays(what):
    """Where a value has no other name to take, others read it, or it is not the same."""
    original = KEPT[what]
    result = pipeline.rewrite(original, Options(level="unsafe-force-all"))
    assert sorted(operators(result.model)) == sorted(operators(original))


@pytest.mark.parametrize(
    ("what", "pin", "operator"),
    [
        ("an Identity at an output", "copy", "Identity"),
        ("an Identity at an output", "s", "Identity"),
        ("in branches", "e", "Identity"),
    ],
)
def test_what_the_user_decides_stays(what, pin, operator):
    """Nodes that a pin names keep their form, and so does one in whose place another would lose its name."""
    original, *_ = LEFT_OUT[what]
    result = pipeline.rewrite(original, Options(pins=Pins(keep_full=pin)))
    assert operator in operators(result.model)


@pytest.mark.parametrize("name", ["s", "y"])
def test_what_is_held_by_name_stays(name):
    """What runs showed of a value, or what a train step needs of it, is found by its name."""
    held = ir.from_proto(model(COPIED))
    assert not idle_nodes.leave_out(held, (), {name})
    assert len(idle_nodes.leave_out(held, (), {"z"})) == 1


def test_grapplers_rules_get_the_model_as_it_is():
    """Their colours are those of TensorFlow for the nodes that were given."""
    for original, *_ in LEFT_OUT.values():
        result = pipeline.rewrite(original, Options(lists="tensorflow", follow=False))
        assert operators(result.model) == operators(original)


def test_an_identity_of_something_else_is_not_proved():
    """The certificate tells what looks like one that was left out, and computes something else."""
    other = COPIED.replace("[copy] y = Identity (s)", "y = Softmax (x)")
    assert not certify(model(COPIED), model(other)).proved
