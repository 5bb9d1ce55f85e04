"""Valid in, valid out, for all of ONNX: at the defaults, and with everything forced into half."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from amp_rewrite.policy.options import Level, Options
from tests import case_files, text
from tests.commands import every
from tests.conformance.cases import Case
from tests.conformance.judging import Outcome, complaint, judge

pytest.importorskip("onnxruntime")
FINE = {Outcome.GOOD, Outcome.UNCHANGED, Outcome.UNRUN, Outcome.IDLE}
ASKED = {
    "defaults": Options(check=False, metadata=False),
    "forced": Options(check=False, metadata=False, level=Level.UNSAFE_FORCE_ALL),
    "kept functions": Options(check=False, metadata=False, level=Level.UNSAFE_FORCE_ALL, keep_functions=True),
}

ODD = case_files.odd_models()


def fed(kind):
    """A value of that type: numbers between 0.1 and 0.9, two tensors for a sequence."""
    if kind.HasField("sequence_type"):
        return [fed(kind.sequence_type.elem_type)] * 2
    if kind.HasField("optional_type"):
        return fed(kind.optional_type.elem_type)
    if kind.tensor_type.elem_type == TensorProto.STRING:
        return np.array(["a"] * 4)
    return text.numbers(kind.tensor_type)


def judged(proto, asked, runtime):
    """The results of a valid model: rewritten twice, checked, loaded, run and compared."""
    assert not complaint(proto)
    weights = {tensor.name for tensor in proto.graph.initializer}
    feeds = {info.name: fed(info.type) for info in proto.graph.input if info.name not in weights}
    return judge(Case("", proto.SerializeToString(), feeds, (), proto), asked, runtime)


EVERY = [
    (name, asked) for name in ODD for asked in ASKED if "kept" not in asked or name.startswith("Functions")
]


@pytest.mark.parametrize("case", every(4, EVERY, "-".join))
def test_what_onnx_can_say(case, runtime):
    """Valid, stable, loaded with the same borders, and close."""
    name, asked = case
    found = judged(text.model(ODD[name]), ASKED[asked], runtime)
    assert found.outcome in FINE, found


PRODUCTS = """g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
    h = MatMul (x, w) c = Relu (h) d = Identity (c) y = MatMul (d, w)
}"""


def between(dtype):
    """Two products, and a type between them."""
    proto = text.model(f'<ir_version: 13, opset_import: ["" : 25]> {PRODUCTS}')
    first, second = proto.graph.node[1:3]
    first.CopyFrom(helper.make_node("Cast", ["h"], ["c"], to=dtype))
    second.CopyFrom(helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT))
    return proto


def stored_as(dtype):
    """Two products, and a weight of a type."""
    proto = between(dtype)
    proto.graph.node[1].CopyFrom(helper.make_node("Identity", ["k"], ["c"]))
    proto.graph.initializer.append(helper.make_tensor("k", dtype, [4, 4], np.ones(16, np.float32)))
    return proto


ALLOWED = onnx.defs.get_schema("Cast", 25).type_constraints[1].allowed_type_strs
NUMBERS = [
    value
    for name, value in TensorProto.DataType.items()
    if f"tensor({name.lower()})" in ALLOWED and name not in ("FLOAT", "STRING")
]


@pytest.mark.parametrize("asked", ["defaults", "forced"])
@pytest.mark.parametrize("make", [between, stored_as])
@pytest.mark.parametrize("dtype", NUMBERS, ids=TensorProto.DataType.Name)
def test_every_type(dtype, make, asked, runtime):
    """Values and weights of other types keep them."""
    found = judged(make(dtype), ASKED[asked], runtime)
    assert found.outcome in FINE | {Outcome.FAR}, found  # 4 bits are not close to anything
    assert found.outcome is not Outcome.FAR or "4" in TensorProto.DataType.Name(dtype), found


OPSETS = [(opset, ir) for opset in range(1, onnx.defs.onnx_opset_version() + 1) for ir in (3, 13)]


@pytest.mark.parametrize(("opset", "ir"), OPSETS)
def test_every_opset(opset, ir, runtime):
    """From the first to the newest, with the oldest and the newest IR version."""
    given = "float[4,4] x, float[4,4] w" if ir < 4 else "float[4,4] x"
    proto = text.unchecked(
        f"""<ir_version: {ir}, opset_import: ["" : {opset}]> g ({given}) => (float[4,4] y) <float[4,4] w> {{
        h = MatMul (x, w) t = Transpose (h) y = MatMul (t, w) }}"""
    )
    found = judged(proto, ASKED["defaults"], runtime)
    assert found.outcome is (Outcome.GOOD if opset >= 6 else Outcome.UNCHANGED) or "opset" in found.why, found


NAMES = "a/b:0|x.1 ::y|名前|\t|'|\"|\\|{x}|%1|a\nb|\x7f|x__float16".split("|")


@pytest.mark.parametrize("name", [*NAMES, "a" * 500])
def test_any_name(name, runtime):
    """Any string can be the name of a value or a node; a Cast has it with the type appended."""
    proto = text.model(PRODUCTS.replace("Identity", "Sigmoid"))
    for node in proto.graph.node:
        node.input[:] = [value + name for value in node.input]
        node.output[:] = [value + name for value in node.output]
        node.name = node.output[0]
    for entry in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        entry.name += name
    assert judged(proto, ASKED["defaults"], runtime).outcome is Outcome.GOOD
    nodes = text.nodes(text.rewritten(proto).model)
    ends = f"x{name}__float16 = Cast(x{name})", f"y{name} = Cast(y{name}__float16)"
    assert (nodes[0], nodes[-1]) == ends


def test_quantisation_annotations_stay(runtime):
    """They name the same tensors as before."""
    proto = text.model(PRODUCTS)
    for tensor, key in (("h", "SCALE_TENSOR"), ("w", "ZERO_POINT_TENSOR"), ("y", "SCALE_TENSOR")):
        noted = proto.graph.quantization_annotation.add(tensor_name=tensor)
        noted.quant_parameter_tensor_names.add(key=key, value="w")
    assert judged(proto, ASKED["defaults"], runtime).outcome is Outcome.GOOD
    notes, after = (
        {note.tensor_name: note for note in model.graph.quantization_annotation}
        for model in (proto, text.rewritten(proto).model)
    )
    assert after == notes
