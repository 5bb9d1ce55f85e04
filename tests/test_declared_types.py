"""Custom operators whose types are declared: decided, rewritten and proved as any other operator."""

import json

import onnx
import pytest
from onnx import TensorProto

import amp_rewrite
from amp_rewrite import Options, Pins, certify, load_lists, restore, rewrite
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.errors import ListError, OptionError
from amp_rewrite.operators.declared_types import KEY
from tests import text
from tests.commands import run
from tests.test_half_models import case

BODY = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[8, 64] x, int64[4] at) => (float[n, 64] y, float[m, 64] z) <float[64, 64] w, float[64] s> {
    [before] a = MatMul (x, w)
    [op] b, kept, score = own.Op (a, s, at)
    [after] c = MatMul (b, w)
    [gather] d = Gather (c, kept)
    [y] y = MatMul (d, w)
    [z] z = Exp (score)
}"""
"""A custom operator that reads a weight and integers, and gives two floats and integers, none declared."""


def ports(model):
    """The type of each input of the custom operator where a Cast or a weight has it, and Casts behind it."""
    graph = model.graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    kinds |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
    kinds |= {node.output[0]: node.attribute[0].i for node in graph.node if node.op_type == "Cast"}
    (own,) = (node for node in graph.node if node.op_type == "Op")
    cast = {name for node in graph.node if node.op_type == "Cast" for name in node.input}
    inputs = (TensorProto.DataType.Name(kinds[name]).lower() if name in kinds else "-" for name in own.input)
    return " ".join((*inputs, "->", *("Cast" if name in cast else "-" for name in own.output)))


def moved(kind):
    """The shipped lists with the operator on another one."""
    return {"lists": load_lists("default").override(kind, "own:Op")}


SINGLE, HALF = "float float int64 -> Cast - -", "- float16 int64 -> - - Cast"


@pytest.mark.parametrize(
    ("declared", "options", "expected"),
    [
        (None, {}, SINGLE),
        ("float32", {}, SINGLE),
        ("float16", {}, HALF),
        ("half", {}, HALF),
        ("float16, bfloat16", {"half": "bfloat16"}, HALF.replace("float16", "bfloat16")),
        ("float16", {"half": "bfloat16"}, SINGLE),
        ("float16,IN1:float32", {}, "- float int64 -> - - Cast"),
        ("float16,IN0:float32", {}, "float float16 int64 -> - - Cast"),
        ("float16,OUT0:float32,OUT1:int64", {}, "- float16 int64 -> Cast - Cast"),
        ("float16", moved("infer"), HALF),
        ("float16", moved("deny"), SINGLE),
        ("float16", {"pins": Pins(keep_full="op")}, SINGLE),
        ("float16", {"target": "tensorrt"}, HALF),
        ("float16", {"metadata": False}, HALF),
    ],
)
def test_ports_have_the_declared_types(declared, options, expected):
    """Half without Casts where that is declared, else float32; proved under the declaration alone, which also
    tells that `score` is a float.
    """
    source, op_types = text.unchecked(BODY), {} if declared is None else {"own:Op": declared}
    result = rewrite(source, Options(op_types=op_types, **options))
    assert ports(result.model) == expected
    assert result.report.certificate.licences.get(Licence.DECLARED, 0) == bool(op_types)
    assert [KEY in {each.key for each in result.model.metadata_props}] == [
        bool(op_types) and "metadata" not in options
    ]


CAST_IN = ("MatMul (x, w)\n", "MatMul (x, w) h = Cast <to = 10> (a)\n")


@pytest.mark.parametrize(
    ("declared", "changes", "problem"),
    [
        ("float16,IN1:float32", [CAST_IN, ("(a, s", "(h, s")], ""),
        ("float16", [CAST_IN, ("(a, s", "(h, t")], ""),
        ("float32", [("(a, s", "(a, s")], ""),
        (None, [CAST_IN, ("(a, s", "(h, t")], "float16 at input 0, and no types are declared"),
        ("float16", [CAST_IN, ("(a, s", "(h, s")], "float16 at input 0, and other types are declared"),
        ("bfloat16", [CAST_IN, ("(a, s", "(h, t")], "float16 at input 0, and other types are declared"),
        ("float32", [CAST_IN, ("(a, s", "(h, t")], "float16 at input 0, and other types are declared"),
        ("float16,IN0:float32", [CAST_IN, ("(a, s", "(h, t")], "float16 at input 0, and other types"),
        ("float16,IN1:float32", [CAST_IN, ("(a, s", "(h, t")], "float16 at input 0, and other types"),
    ],
)
@pytest.mark.parametrize("operator", ["own", ""])
def test_a_result_of_other_types_is_not_proved(operator, declared, changes, problem):
    """Unlike one of the declared types; undeclared operators in ONNX's domain are not looked at."""
    original = BODY.replace("own.Op", "own.Op" if operator else "Op")
    result = original.replace("[before]", "t = Cast <to = 10> (s) [before]")
    for change in changes:
        result = result.replace(*change)
    op_types = {} if declared is None else {f"{operator}:Op".lstrip(":"): declared}
    found = certify(text.unchecked(original), text.unchecked(result), op_types=op_types)
    if operator or declared:
        assert (found.proved, problem in found.problem) == (not problem, True)
        assert found.licences.get(Licence.DECLARED, 0) == found.proved


BEHIND = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
g (float[2] x, int64 i, int64[1] n, float[2] z) => (float[2] y) { %s y = own.B (t) }"""


@pytest.mark.parametrize(
    "producer",
    [
        "t = own.A (x)",
        "t = ConstantOfShape <value = float[1] {0.5}> (n)",
        "q = SequenceConstruct (x, x) t = SequenceAt (q, i)",
        "q = own.A (x) t = Relu (q)",
    ],
)
def test_what_no_type_is_stated_for_keeps_it(producer):
    """A Cast in front of a custom operator is not proved, whatever makes its operand; the model itself is."""
    original = BEHIND % producer
    result = original.replace("y = own.B (t)", "h = Cast <to = 10> (t) b = own.B (h) y = Cast <to = 1> (b)")
    assert certify(text.unchecked(original), text.unchecked(original)).proved
    refused = certify(text.unchecked(original), text.unchecked(result))
    assert "it reads float16 at input 0, and no types are declared" in refused.problem


def test_a_result_knows_its_types():
    """It is restored without Casts, and rewritten to the other half type, by a record that proves nothing."""
    source = text.unchecked(BODY)
    half = rewrite(source, Options(op_types={"own:Op": "half"})).model
    assert certify(source, half, op_types={"own:Op": "half"}).proved
    assert "no types are declared" in certify(source, half).problem
    assert not certify(source, half, op_types={"own:Op": "float32"}).proved
    assert ports(rewrite(half, Options(half="bfloat16")).model) == HALF.replace("float16", "bfloat16")
    back = restore(half).model
    assert ports(back) == "- float int64 -> - - -"
    assert certify(half, back).proved
    assert certify(source, back).proved
    (declared,) = (each for each in half.metadata_props if each.key == KEY)
    for declared.value in ("", "[]", '{"own:Op": 3}', '{"own:Op": "float17"}', '{"MatMul": "float32"}'):
        assert certify(half, half).proved
        assert rewrite(half, Options(half="bfloat16")).report.nodes.half


@pytest.mark.parametrize(
    ("declared", "inputs", "expected"),
    [
        ("float16", "(a, s, u)", "float float - -> Cast - -"),  # integers, perhaps
        ("float16,IN0:float32", "(a)", "float -> Cast - -"),
        ("float16,IN2:float32", "(a, , s)", "- - float -> - - Cast"),
        ("float16", "(at)", "int64 -> Cast - -"),
    ],
)
def test_a_node_that_no_input_makes_half_is_float32(declared, inputs, expected):
    """So is one with an input of unknown type; omitted inputs have none."""
    body = BODY.replace("[op]", "u = own.Other (x) [op]").replace("(a, s, at)", inputs)
    body = body.replace("(b, w)", "(b, w) e = Identity (a)")
    assert ports(rewrite(text.unchecked(body), Options(op_types={"own:Op": declared})).model) == expected


@pytest.mark.parametrize("reader", ["Gather (c, kept)", "Where (m, c, c) m = Equal (kept, at)"])
def test_integers_are_told_by_their_readers(reader):
    """An output of unknown type is no float where a reader takes none, or has integers beside it."""
    body = BODY.replace("Gather (c, kept)", reader)
    result = rewrite(text.unchecked(body), Options(op_types={"own:Op": "float16"}))
    assert ports(result.model) == HALF
    assert result.report.certificate.proved


def test_lists_declare_types(tmp_path):
    """As the option does; a kind in the list takes precedence; errors name the line."""
    path = tmp_path / "ours.yaml"
    for entry, expected in (("", HALF), ("deny: {own:Op: it overflows}\n", SINGLE)):
        path.write_text(f"extends: default\n{entry}types:\n  own:Op: float16\n  other:Op: half\n")
        source, plan = tmp_path / "m.onnx", tmp_path / "p.json"
        onnx.save(text.unchecked(BODY), source)
        for flags in (("--list", path, "--save-plan", plan), ("--plan", plan)):
            assert run(source, "--skip=verify", *flags).exit_code == 0
            result = onnx.load(tmp_path / "m_fp16.onnx")
            assert ports(result) == expected
        assert (
            next(each.value for each in result.metadata_props if each.key == KEY) == '{"own:Op": "float16"}'
        )
    for wrong, problem in (
        ("own:Op: float17", "'float17' is neither a type nor a port with its type"),
        ("MatMul: float16", "MatMul has a schema"),
    ):
        path.write_text(f"types:\n  {wrong}\n")
        with pytest.raises(ListError, match=problem) as raised:
            load_lists(path)
        assert raised.value.line == 2
    path.write_text("types: float16\n")
    with pytest.raises(ListError, match="the types are not a mapping"):
        load_lists(path)


@pytest.mark.parametrize("value", [3, "own:Op=float16", {"own:Op": 3}, {3: "float16"}, {"own:Op": "fp16"}])
def test_a_wrong_declaration_is_an_option_error(value):
    """It names the field."""
    with pytest.raises(OptionError, match=r"Options\.op_types"):
        Options(op_types=value)


def test_a_function_is_no_custom_operator():
    """Its nodes have types; nothing is declared for it."""
    with pytest.raises(OptionError, match=r"local:twice=float16: the model has no such custom operator"):
        rewrite(text.unchecked(text.FUNCTIONS), Options(op_types={"local:twice": "float16"}))


CASE = ("--op-type", "autoware:SparseVoxelPlugin=float16", "--op-type", "autoware:BevPoolPlugin=half")


def test_the_commands_take_declarations(tmp_path):
    """Plugins of a detector: Casts at the borders alone; plans have them, `certify` and `explain` too."""
    model, half, plan = case("04_custom_plugins"), tmp_path / "h.onnx", tmp_path / "p.json"
    asked = ("--skip=verify,metadata", "-o", half)
    for flags in ((*CASE, "--save-plan", plan), ("--plan", plan, "--force")):
        assert run(model, *asked, *flags).exit_code == 0
        nodes = [node.op_type for node in onnx.load(half).graph.node]
        assert (nodes.count("Cast"), nodes[0], nodes[-1]) == (3, "Cast", "Cast")
    assert json.loads(plan.read_text())["options"]["op_types"] == dict(each.split("=") for each in CASE[1::2])
    without = run("certify", model, half)
    assert without.exit_code == 1
    assert "it reads float16 at input 0, and no types are declared for the operator" in without.output
    assert "and for: declared types 2" in run("certify", model, half, *CASE).stdout
    told = run("explain", model, "plugin_half", *CASE).stdout
    assert "allowed: its types are declared" in told
    for flags, kind in (((), "float16"), ((*CASE, "--to", "bfloat16"), "bfloat16")):
        told = run("explain", model, "plugin_half", *flags).stdout
        assert f"if its kernels take {kind}, --op-type autoware:SparseVoxelPlugin={kind} says so" in told
    found = amp_rewrite.measure_coverage(half)
    assert (found.nodes.half, found.nodes.full) == (8, 0)
