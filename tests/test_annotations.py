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


def test_no_metadata_when_not_asked():
    """With metadata=False nothing of ours is in the result, nor what an earlier rewrite left."""
    once = rewrite(text.model(MODEL)).model
    again = rewrite(once, Options(metadata=False, level=Level.UNSAFE_FORCE_ALL))
    assert again.report.changed
    assert KEY not in str(again.model)


def test_a_second_rewrite_keeps_what_it_has_no_say_in():
    """What the first rewrite made half has no float32 left: its reasons stay beside the new ones."""
    once = rewrite(text.model(MODEL)).model
    result = rewrite(once, Options(pins=Pins(force_half=("exponential",)), level=Level.UNSAFE_FORCE_ALL))
    assert result.report.changed
    found = carried(result.model)
    by_name = {d.node: (chain(found, unit)[0].reason, d.is_half) for unit, d in enumerate(found.all)}
    assert by_name["product"] == (reason_of(once, "product"), True)
    assert by_name["exponential"] == ("allowed: forced by 'exponential' (pin)", True)
    casts = {name: c.added for c in found.cast_sites for name in c.names}
    assert casts["x__float16"] is True


def reason_of(proto, name):
    """Why a node of a result has its colour."""
    found = carried(proto)
    (unit,) = (unit for unit, decision in enumerate(found.all) if decision.node == name)
    return chain(found, unit)[0].reason


def test_a_node_that_was_taken_out():
    """When another tool takes a cause out, what is left is explained as far as it goes."""
    made = rewrite(text.model(MODEL)).model
    exponential = next(node for node in made.graph.node if node.name == "exponential")
    made.graph.node.remove(exponential)
    found = carried(made)
    (root,) = (unit for unit, decision in enumerate(found.all) if decision.node == "root")
    (step,) = chain(found, root)
    assert step.reason.startswith("downstream of a node that is no longer in the model")


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


DAMAGE = {
    "nothing": "",
    "no base64": "?",
    "no stream": "AAAA",
    "an empty stream": "eJwDAAAAAAE=",
    **{
        text[:9]: base64.b64encode(zlib.compress(text.encode())).decode()
        for text in ("no JSON", "[]", "{}", '{"format": 4}', '{"format": 5, "decisions": 7}', "[" * 100_000)
    },
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry(damage):
    """Whatever stands in place of the plan is one line of ours."""
    made = rewrite(text.model(MODEL)).model
    (prop,) = made.metadata_props
    prop.value = damage
    one_line(made)


def unpacked(entry):
    """The plan in an entry, as plain data."""
    return json.loads(zlib.decompress(base64.b64decode(entry)))


def packed(content):
    """Plain data as an entry."""
    return base64.b64encode(zlib.compress(json.dumps(content).encode())).decode()


def one_line(proto):
    """Reading fails in one line; a rewrite says so in a warning, and leaves sound metadata."""
    with pytest.raises(ModelError) as caught:
        carried(proto)
    assert "\n" not in str(caught.value)
    result = rewrite(proto, Options(level=Level.UNSAFE_FORCE_ALL))
    assert any("earlier rewrite" in warning for warning in result.report.warnings)
    assert carried(result.model).all


@pytest.mark.parametrize("family", ["transformer", "Sum", "loop states", "If chain"])
def test_metadata_grow_with_the_model(family):
    """Records are much alike, and one of many outputs has them once: 20 bytes are enough for a unit."""
    (entry,) = rewrite(FAMILIES[family](1000)).model.metadata_props
    assert len(entry.value) < 20 * len(unpacked(entry.value)["decisions"])


def test_nodes_of_one_name_are_told_apart():
    """Values of both branches of an If may have one name: the units are read in the order of the nodes."""
    branch = "{ t = %s }"
    proto = text.model(
        f"""g (float[4, 4] x, float[4, 4] w, bool c) => (float[4, 4] y) {{
          a = MatMul(x, w)
          y = If (c) <then_branch = a () => (float[4, 4] t) {branch % "Exp(a)"},
                      else_branch = b () => (float[4, 4] t) {branch % "MatMul(a, w)"}>
        }}"""
    )
    decided = {d.operator: d.is_half for d in analyze(proto).decisions().all}
    assert {d.operator: d.is_half for d in carried(rewrite(proto).model).all} == decided
    assert decided["Exp"] is False
    assert decided["MatMul"] is True


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
