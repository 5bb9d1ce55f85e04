"""The certificate: what bodies store, what functions read, and which version a domain is imported in."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper, parser

from amp_rewrite import certify
from amp_rewrite.errors import ModelError

HEAD = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 1, "d": 1]> g '
LOOP = """(float[2] x) => (float[2] y) <int64 n = {3}> {
    y = Loop (n, , x) <body = b (int64 i, bool c%s, float[2] s) => (bool d, float[2] t)
        <float[2] k = {%s, 2}> { d = Identity (c) t = Add (s, k) }> }"""
BRANCH = """(bool c, float[2] x) => (float[2] y) { y = If (c) <
    then_branch = a () => (float[2] t) <float[2] k = {%s, 2}> { t = Add (x, k) },
    else_branch = e () => (float[2] u) { u = Neg (x) }> }"""
LEAKY = "(float[2] x) => (float[2] y) { y = LeakyRelu %s (x) }"
CALLED = (
    '(float[2] x) => (float[2] y) { y = d.f %s (x) } <domain: "d", opset_import: ["": 21]> f %s (p) => (q) '
)
REFERS = "{ q = LeakyRelu <alpha: float = @alpha> (p) }"
OUTER = """(bool c, float[2] x) => (float[2] y) <float[2] k = {5, 5}> { n = Neg (k) y = If (c) <
    then_branch = a () => (float[2] t) <float[2] %s = {7, 7}> { %s t = Add (q, %s) },
    else_branch = e () => (float[2] u) { u = Neg (n) }> }"""
READS = '<domain: "d", opset_import: ["": 21]> f (p) => (q) { q = Add (p, k) }'
CARRIED = """(float[2] x, float[2] z) => (float[2] y, float[2] w) <int64 n = {3}> {
    y, w = Loop (n, , x, z) <body = b (int64 i, bool c, float[2] s, float[2] %s)
        => (bool d, float[2] t, float[2] u) { d = Identity (c) t = Exp (%s) u = Sin (%s) }> }"""
LABELS = '(string[2] s) => (int64[2] y) { y = ai.onnx.ml.LabelEncoder <classes_strings = ["a", "b"]> (s) }'


def model(text):
    """A model by the text of its graph, with functions or without."""
    return parser.parse_model(HEAD + text)


def listed(text):
    """A model whose first body lists what it stores as an input, as all models before IR version 4 do."""
    made = model(text)
    (body,) = [a.g for a in made.graph.node[0].attribute if a.name in ("body", "then_branch")]
    if "k" not in [info.name for info in body.input]:
        body.input.append(helper.make_tensor_value_info("k", 1, [2]))
    return made


def with_defaults(*values):
    """A function that gives an attribute these default values."""
    made = model(CALLED % ("", "") + REFERS)
    made.functions[0].attribute_proto.extend(helper.make_attribute("alpha", value) for value in values)
    return made


def undeclared():
    """A function that refers to an attribute of its call which it does not declare."""
    made = model(CALLED % ("<alpha = 0.5>", "<alpha>") + REFERS)
    del made.functions[0].attribute[:]
    return made


def importing(*imports, text=LEAKY % ""):
    """A model that imports these versions of domains."""
    made = ModelProto()
    made.CopyFrom(model(text))
    del made.opset_import[:]
    made.opset_import.extend(helper.make_opsetid(*each) for each in imports)
    return made


UNEQUAL = {
    "what a body stores for its last input": (listed(LOOP % ("", 1)), listed(LOOP % ("", 7))),
    "what a body stores for another input": (
        listed(LOOP % (", float[2] k", 1)),
        listed(LOOP % (", float[2] k", 7)),
    ),
    "what a branch stores for an input": (listed(BRANCH % 1), listed(BRANCH % 7)),
    "an attribute that a function does not declare": (model(LEAKY % ""), undeclared()),
    "an attribute with two defaults": (model(LEAKY % "<alpha = 0.9>"), with_defaults(0.5, 0.9)),
    "a function that reads what stands around its call": (
        model(OUTER % ("m", "q = Add (x, k)", "m")),
        model(OUTER % ("k", "q = d.f (x)", "k") + READS),
    ),
    "two inputs of a body of one name": (
        model(CARRIED % ("r", "r", "r")),
        model(CARRIED % ("s", "s", "s")),
    ),
    "two versions of one domain": (importing(("", 21)), importing(("", 6), ("", 21))),
    "two versions of ONNX's two names": (importing(("", 21)), importing(("ai.onnx", 6), ("", 21))),
    "labels of any version": (model(LABELS), importing(("", 21), text=LABELS)),
}


@pytest.mark.parametrize("what", UNEQUAL)
def test_what_a_runtime_reads_otherwise_is_not_proved(what):
    """onnxruntime 1.32 computes something else, or another runtime does, or it is no model any more."""
    original, rewritten = UNEQUAL[what]
    assert certify(original, original).proved
    assert not is_proved(original, rewritten)


def is_proved(original, rewritten):
    """Whether a result is proved; one that is no model is not."""
    try:
        return certify(original, rewritten).proved
    except ModelError:
        return False


def halved(made):
    """The same with what its first body stores in half, and a Cast behind it."""
    result = ModelProto()
    result.CopyFrom(made)
    body = next(a.g for a in result.graph.node[0].attribute if a.name == "body")
    value = numpy_helper.to_array(body.initializer[0]).astype(np.float16)
    body.initializer[0].CopyFrom(numpy_helper.from_array(value, "k"))
    for info in (info for info in body.input if info.name == "k"):
        info.type.tensor_type.elem_type = 10
    add = next(node for node in body.node if node.op_type == "Add")
    add.input[1] = "k__float32"
    body.node.insert(0, helper.make_node("Cast", ["k"], ["k__float32"], to=1))
    return result


EQUAL = {
    "a stored value that a body lists": (
        listed(LOOP % (", float[2] k", 1)),
        halved(listed(LOOP % (", float[2] k", 1))),
    ),
    "a stored value that the original's body lists": (listed(LOOP % ("", 1)), model(LOOP % ("", 1))),
    "a default": (model(LEAKY % "<alpha = 0.5>"), with_defaults(0.5)),
    "one version twice": (importing(("", 21)), importing(("ai.onnx", 21), ("", 21))),
}


@pytest.mark.parametrize("what", EQUAL)
def test_what_says_the_same_is_proved(what):
    """Though it is written otherwise."""
    found = certify(*EQUAL[what])
    assert found.proved, found
