"""Emulation of a half model in float32: the same numbers as true half, on any CPU. The models, and what they
are to compute, are in emulation.models, which is written as cases are (tests/case_files.py).
"""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import amp_rewrite
from amp_rewrite import demo
from amp_rewrite.errors import ModelError
from tests import case_files
from tests.text import unchecked

pytest.importorskip("onnxruntime")
from amp_rewrite.running import sessions

HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
CASES = list(case_files.read(Path(__file__).with_name("emulation.models")))


def run(proto, feeds):
    """The outputs of a model on the CPU, by name."""
    return sessions.run_session(sessions.open_session(proto), feeds)


def half(*numbers):
    """A float16 array."""
    return np.array(numbers, np.float16)


FEEDS = {
    "x": half(1.5, -0.3),
    "k": np.zeros((2, 2), np.int64),
    "c": np.array(True),
    "v": half([1, 2], [3, 4], [0.1, 200]),
    "q": [half(1.5, -0.3), half(2, 300)],
    "w": half(0.1, 3),
    "o": [half(1, 1), half(300, 2)],
}
"""What an input of this name is given, where a case says nothing else."""


def versions():
    """Each case with its model, once for each opset that it claims something of."""
    for case in CASES:
        opsets = [claim.split()[1:] for claim in case.claims if claim.startswith("opsets")]
        for opset in opsets[0] if opsets else ("",):
            model = unchecked(case.model)
            if opset:
                model.opset_import[0].version = int(opset)
            yield pytest.param(case, model, id=f"{case.name} {opset}")


@pytest.mark.parametrize(("case", "model"), [*versions()])
def test_what_is_claimed_of_an_emulation(case, model):
    """It is valid, no node of it computes in half, inputs and outputs keep their types, and it computes what
    the case claims.
    """
    onnx.checker.check_model(model, full_check=True)
    claims = [claim.partition(" ")[::2] for claim in case.claims]
    if refused := dict(claims).get("refused"):
        with pytest.raises(ModelError, match=re.escape(refused)):
            amp_rewrite.emulate(model)
        return
    made = {verb: amp_rewrite.emulate(model, late=verb == "late") for verb in ("nodes", "late")}
    for each in made.values():
        onnx.checker.check_model(each, full_check=True)
        assert borders(each) == borders(model)
        assert computing_in_half(each) <= {"Cast"}
    if claims[0][0] not in made:
        computes(model, made, claims)
    for verb, words in claims:
        assert verb not in made or [node.op_type for node in made[verb].graph.node] == words.split()


def computes(model, made, claims):
    """Asserts what is claimed of the outputs. Rounding late, before or behind nodes that commute with it,
    gives the same bits.
    """
    feeds = given(model, claims)
    first, late = (run(each, feeds) for each in made.values())
    for name, value in first.items():
        assert np.asarray(value[0] if isinstance(value, list) else value).dtype == _dtype(model, name)
        np.testing.assert_array_equal(late[name], value)
    for verb, words in claims:
        if verb == "agrees":
            for wanted, got in zip(ReferenceEvaluator(model).run(None, feeds), first.values(), strict=True):
                np.testing.assert_allclose(np.stack(got), np.stack(wanted), rtol=2**-10, atol=1e-7)
        elif verb == "about":
            name, *numbers = words.split()
            np.testing.assert_allclose(first[name].ravel(), np.float32(numbers), rtol=2e-3, atol=1e-3)
        elif verb not in ("given", "without", "opsets"):
            assert first[verb].ravel().tolist() == [float(number) for number in words.split()]


def given(model, claims):
    """The inputs of a case."""
    said = dict(words.split(" ", 1) for verb, words in claims if verb == "given")
    left = [words for verb, words in claims if verb == "without"]
    feeds = {entry.name: FEEDS.get(entry.name) for entry in model.graph.input if entry.name not in left}
    for name, numbers in said.items():
        kind = next(entry.type.tensor_type for entry in model.graph.input if entry.name == name)
        shape = [dim.dim_value for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feeds[name] = np.array(numbers.split(), dtype).reshape(shape)
    return feeds


def borders(model):
    """The types of all inputs and outputs of a model."""
    return {entry.name: entry.type for entry in (*model.graph.input, *model.graph.output)}


def _dtype(model, name):
    kind = borders(model)[name]
    kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
    return onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)


def computing_in_half(emulation):
    """The operators that read half values: the CPU provider has kernels for Casts alone. None is stored."""
    inferred = onnx.shape_inference.infer_shapes(emulation).graph
    values = (*inferred.value_info, *inferred.input)
    halves = {value.name for value in values if value.type.tensor_type.elem_type in HALVES}
    outside = borders(emulation)
    assert not [t for t in inferred.initializer if t.data_type in HALVES and t.name not in outside]
    return {node.op_type for node in inferred.node if halves.intersection(node.input)}


@pytest.mark.parametrize(("count", "total"), [(0, 0), (2000, 2000), (5000, 2048)])
def test_a_scatter_adds_one_by_one(count, total):
    """As on a GPU, where 2048 + 1 is 2048."""
    model = unchecked("""<ir_version: 9, opset_import: ["": 18]>
        g (int64[e,1] i, float16[e] u) => (float16[2] y) <float16[2] zero = {0, 0}> {
        y = ScatterND <reduction = "add"> (zero, i, u) }""")
    feeds = {"i": np.zeros((count, 1), np.int64), "u": np.ones(count, np.float16)}
    assert run(amp_rewrite.emulate(model), feeds)["y"].tolist() == [total, 0]


ADDING = {
    "ScatterND": ("int64[e,1] i", "float16[e,4] u", ""),
    "ScatterElements": ("int64[e,2] i", "float16[e,2] u", "axis = 0,"),
    "ScatterElements along the last axis": ("int64[3,e] i", "float16[3,e] u", "axis = -1,"),
}


@pytest.mark.parametrize("reduction", ["add", "mul"])
@pytest.mark.parametrize("which", ADDING)
def test_a_scatter_rounds_after_each_element(which, reduction):
    """The numbers are those of a loop in half over the updates, for any index, also from the end."""
    indices, updates, axis = ADDING[which]
    operator = which.partition(" ")[0]
    made = unchecked(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g (float16[3,4] x, {indices}, {updates}) => (float16[3,4] y) {{
        y = {operator} <{axis} reduction = "{reduction}"> (x, i, u) }}"""
    )
    random = np.random.default_rng(0)
    shape = {"int64[e,1] i": (9, 1), "int64[e,2] i": (9, 2)}.get(indices, (3, 9))
    i = random.integers(-3, 3, shape)
    u = random.standard_normal((9, 4) if operator == "ScatterND" else shape).astype(np.float16)
    x = (30 * random.standard_normal((3, 4))).astype(np.float16)
    expected, apply = x.copy(), {"add": np.add, "mul": np.multiply}[reduction]
    for at in np.ndindex(i.shape if operator == "ScatterElements" else (9,)):
        spot = {0: (i[at], *at[1:]), 1: (at[0], i[at])}[int("last" in which)] if len(at) > 1 else i[at[0], 0]
        expected[spot] = apply(expected[spot], u[at])
    np.testing.assert_array_equal(run(amp_rewrite.emulate(made), {"x": x, "i": i, "u": u})["y"], expected)


def test_models_from_other_tools_are_emulated():
    """A model from onnxruntime's converter is emulated like ours."""
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    model = unchecked("g (float[2] x) => (float[2] y) { a = Mul (x, x) b = Mul (a, x) y = Sqrt (b) }")
    theirs = float16.convert_float_to_float16(model, keep_io_types=True)
    got = run(amp_rewrite.emulate(theirs), {"x": np.float32([300, 4])})["y"]
    assert got.tolist() == [np.inf, 8]


def test_the_emulated_model_is_not_modified():
    """Emulation does not modify its argument."""
    rewritten = amp_rewrite.rewrite(demo.network()).model
    before = rewritten.SerializeToString(deterministic=True)
    amp_rewrite.emulate(rewritten)
    assert rewritten.SerializeToString(deterministic=True) == before


MAYBE = """g (optional(float16[2]) o) => (optional(float16[2]) z, bool h) {
    h = OptionalHasElement (o) z = If (h) <
        then_branch = t () => (optional(float16[2]) p) {
            a = OptionalGetElement (o) b = Mul (a, a) p = Optional (b) },
        else_branch = e () => (optional(float16[2]) q) { q = Identity (o) }> }"""
"""Squares the element; an empty optional stays empty."""


@pytest.mark.parametrize("opset", [16, 18, 22])
@pytest.mark.parametrize(("given", "wanted"), [(half(300, 2), half(np.inf, 4)), (None, None)])
def test_an_optional_input_or_output_stays_half(opset, given, wanted):
    """The element of an optional is rounded, and an empty one stays empty."""
    model = unchecked(f'<ir_version: 9, opset_import: ["": {opset}]> {MAYBE}')
    emulated = amp_rewrite.emulate(model)
    onnx.checker.check_model(emulated, full_check=True)
    assert borders(emulated) == borders(model)
    got = run(emulated, {"o": given})
    assert got["h"] == (given is not None)
    np.testing.assert_array_equal(got["z"], wanted)
    assert given is None or got["z"].dtype == np.float16
