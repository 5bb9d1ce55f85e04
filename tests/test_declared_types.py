"""Declared types of custom operators in results, lists and commands; what they decide are cases."""

import json

import onnx
import pytest
from onnx import TensorProto

import amp_rewrite
from amp_rewrite import Options, certify, load_lists, restore, rewrite
from amp_rewrite.errors import ListError
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


SINGLE, HALF = "float float int64 -> Cast - -", "- float16 int64 -> - - Cast"


def test_a_result_knows_its_types():
    """It is restored without Casts, and rewritten to the other half type, by a record that proves nothing."""
    source = text.unchecked(BODY)
    half = rewrite(source, Options(op_types={"own:Op": "half"})).model
    assert certify(source, half, op_types={"own:Op": "half"}).proved
    assert not rewrite(source, Options(op_types={"own:Op": "half"}, metadata=False)).model.metadata_props
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


def test_lists_declare_types(tmp_path):
    """As the option does; a kind in the list takes precedence; errors name the line."""
    path = tmp_path / "ours.yaml"
    for entry, expected in (("", HALF), ("deny: {own:Op: it overflows}\n", SINGLE)):
        path.write_text(f"extends: default\n{entry}types:\n  own:Op: float16\n  other:Op: half\n")
        source, plan = tmp_path / "m.onnx", tmp_path / "p.json"
        onnx.save(text.unchecked(BODY), source)
        for flags in (("--list", path, f"--save=plan={plan}"), ("--plan", plan)):
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


CASE = ("--op-type", "autoware:SparseVoxelPlugin=float16", "--op-type", "autoware:BevPoolPlugin=half")


def test_the_commands_take_declarations(tmp_path):
    """Plugins of a detector: Casts at the borders alone; plans have them, `certify` and `explain` too."""
    model, half, plan = case("04_custom_plugins"), tmp_path / "h.onnx", tmp_path / "p.json"
    asked = ("--skip=verify,metadata", "-o", half)
    for flags in ((*CASE, f"--save=plan={plan}"), ("--plan", plan, "--force")):
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
