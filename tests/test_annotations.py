"""The decisions in the metadata of a result: what is written is read back."""

import base64
import json
import zlib

import onnx
import onnx_ir as ir
import pytest

from amp_rewrite import analyze, rewrite
from amp_rewrite.errors import ModelError
from amp_rewrite.explaining.sentences import chain
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import IOTypes, Level, Options, Pins
from amp_rewrite.rewriting import annotations
from amp_rewrite.rewriting.annotations import KEY
from benchmarks.graphs import FAMILIES
from tests import text
from tests.edits import edits

MODEL = """g (float[4, 4] x, float[4, 4] w, bool c) => (float[4, 4] y, float[4, 4] z) {
  [product] a = MatMul(x, w)
  [exponential] e = Exp(a)
  [root] r = Sqrt(e)
  [branch] y = If (c) <then_branch = t () => (float[4, 4] t) { [inside] t = MatMul(r, w) },
                       else_branch = u () => (float[4, 4] u) { [outside] u = Tanh(r) }>
  z = MatMul(a, w)
}"""


def carried(proto):
    """The decisions in a ModelProto's metadata."""
    return annotations.read(ir.from_proto(proto))


def reasons(decisions):
    """Of every unit its chain of causes, without what a result calls otherwise: the names of outputs."""
    return {
        (decision.operator, decision.node, decision.variable): [
            (step.colour, step.rule, step.kind, step.reason if decision.node else "")
            for step in chain(decisions, unit)
        ]
        for unit, decision in enumerate(decisions.all)
    }


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(half=BFLOAT16),
        Options(io=IOTypes.HALF),
        Options(level=Level.UNSAFE_FORCE_ALL),
        Options(pins=Pins(keep_full=("product",))),
        Options(follow=False),
    ],
)
def test_what_was_decided_is_read_back(options):
    """Every unit of every graph has its colour, rule, kind, reason and causes."""
    proto = text.model(MODEL)
    found, decided = carried(rewrite(proto, options).model), analyze(proto, options).decisions()
    assert reasons(found) == reasons(decided)
    assert [decision.node for decision in found.all] == [decision.node for decision in decided.all]


def test_casts_are_read_back():
    """An added Cast knows what makes its value and what reads the result; the model's own do as well."""
    proto = text.model(
        """g (float[4, 4] x, int64[4, 4] i) => (float[4, 4] y) {
          [given] f = Cast <to = 1> (i)
          [p] a = MatMul(x, f)
          [e] b = Exp(a)
          [q] y = MatMul(b, a)
        }"""
    )
    found = carried(rewrite(proto).model)
    names = {c.names[0]: c for c in found.cast_sites}
    told = {
        value: (
            c.added,
            c.dtype,
            c.origin.value,
            c.producer if c.producer is None else found.all[c.producer].node,
            [found.all[unit].node for unit in c.consumers],
            c.is_output,
        )
        for value, c in names.items()
    }
    assert told == {
        "x": (True, "float16", "input", None, ["p"], False),
        "i": (False, "float32", "another", None, [], False),
        "f": (True, "float16", "unit", "given", ["p"], False),
        "a": (True, "float32", "unit", "p", ["e"], False),
        "b": (True, "float16", "unit", "e", ["q"], False),
        "y__float16": (True, "float32", "unit", "q", [], True),
    }


def test_other_metadata_stays():
    """What others left in the metadata of nodes and of the model is still there, and nothing else changes."""
    proto = text.model(MODEL)
    proto.metadata_props.add(key="author", value="someone")
    proto.graph.node[0].metadata_props.add(key="from", value="layer 1")
    result, bare = (rewrite(proto, Options(metadata=kept)).model for kept in (True, False))
    assert {prop.key for prop in result.metadata_props} == {"author", KEY}
    model = ir.from_proto(result)
    annotations.remove(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == bare.SerializeToString(
        deterministic=True
    )
    assert [prop.value for node in bare.graph.node for prop in node.metadata_props] == ["layer 1"]


def test_the_order_of_nodes_does_not_matter():
    """Numbers tell units apart, not places: another order of nodes changes no reason."""
    made = rewrite(text.model(MODEL)).model
    turned = onnx.ModelProto()
    turned.CopyFrom(made)
    nodes = list(made.graph.node)
    del turned.graph.node[:]
    turned.graph.node.extend(reversed(nodes))
    found = annotations.read(ir.from_proto(turned))
    assert reasons(found) == reasons(carried(made))


def unpacked(entry):
    """The plan in an entry, as plain data."""
    return json.loads(zlib.decompress(base64.b64decode(entry)))


def packed(content):
    """Plain data as an entry."""
    return base64.b64encode(zlib.compress(json.dumps(content).encode())).decode()


@pytest.mark.parametrize("family", ["transformer", "Sum", "loop states", "If chain"])
def test_metadata_grow_with_the_model(family):
    """Records are much alike, and one of many outputs has them once: 20 bytes are enough for a unit."""
    (entry,) = rewrite(FAMILIES[family](1000)).model.metadata_props
    assert len(entry.value) < 20 * len(unpacked(entry.value)["decisions"])


def test_whatever_stands_in_the_metadata():
    """A plan is read, or refused as damaged: an odd word is nothing else's fault."""
    proto, said = rewrite(text.model(MODEL)).model, []
    (prop,) = proto.metadata_props
    content = unpacked(prop.value)
    content["decisions"], content["casts"] = content["decisions"][:4], content["casts"][:2]
    for edited in edits(content):
        prop.value = packed(edited)
        said += refusals(proto)
    for problem in (
        "decisions[0].kind: invalid enum value 'x'",
        "casts[0].consumers: expected array, got int",
    ):
        assert any(problem in one for one in said)
    assert all("\n" not in one for one in said)


def refusals(proto):
    """What is said of a model whose metadata is damaged."""
    try:
        carried(proto)
    except ModelError as error:
        return [str(error)]
    return []
