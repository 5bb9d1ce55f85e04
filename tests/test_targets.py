"""Which kernels the target has: a half colour is not given where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest
from onnx import parser

from amp_rewrite import analyze
from amp_rewrite.colouring.painting import Rule
from amp_rewrite.errors import OptionError
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy import kernel_table, targets
from amp_rewrite.policy.options import Level, Options, Pins
from amp_rewrite.policy.reasons import in_words

BETWEEN = """<ir_version: 10, opset_import: ["": 22]>
  g (float[1,4,4,4] x, float[4,4] w) => (float[1,4,4,4] y) {{
    a = MatMul (x, w) [op] b = {} (a) y = MatMul (b, w) }}"""


def halves(operator, **options):
    """Whether the operator between two matrix products is half."""
    found = analyze(parser.parse_model(BETWEEN.format(operator)), Options(**options))
    (unit,) = [unit for unit in found.graph.units if unit.node.name == "op"]
    return found.painting.is_half(unit.index), in_words(found.painting.entries[unit.index].evidence)


@pytest.mark.parametrize(
    ("operator", "half", "expected"),
    [
        ("Relu", FLOAT16, True),
        ("Relu", BFLOAT16, True),
        ("Elu", FLOAT16, True),
        ("Elu", BFLOAT16, False),
        ("Hardmax", FLOAT16, False),
        ("GlobalLpPool", FLOAT16, False),
    ],
)
def test_the_default_target_gives_half_only_where_cuda_has_a_kernel(operator, half, expected):
    """onnxruntime's CUDA provider has Relu in both half types, Elu in float16 alone, Hardmax in neither."""
    found, reason = halves(operator, half=half)
    assert found is expected
    assert expected or f"onnxruntime-cuda has no {half.name} kernel" in reason


DROPPING = """<ir_version: 10, opset_import: ["": 22]>
  g (float[4,4] x, float[4,4] w{given}) => (float[4,4] y{taken})
  <float r = {{0.5}}, bool off = {{0}}, bool on = {{1}}> {{
    a = MatMul (x, w) [op] b{mask} = Dropout (a, {reads}) y = MatMul (b, w) }}"""


@pytest.mark.parametrize(
    ("reads", "given", "mask", "taken", "expected"),
    [
        ("r, off", "", "", "", True),
        ("r", "", ", m", "", True),
        ("r, on", "", "", "", False),
        ("r, mode", ", bool mode", "", "", False),
        ("r, off", "", ", m", ", bool[4,4] m", False),
    ],
)
def test_a_dropout_at_inference_needs_no_kernel(reads, given, mask, taken, expected):
    """CUDA has none for version 22; onnxruntime takes out what does not train and whose mask nobody reads."""
    text = DROPPING.format(reads=reads, given=given, mask=mask, taken=taken)
    found = analyze(parser.parse_model(text), Options())
    (unit, *_) = [unit for unit in found.graph.units if unit.node.name == "op"]
    assert found.painting.is_half(unit.index) is expected


def test_any_target_has_every_kernel():
    """With the target `any` only the lists speak."""
    assert halves("Elu", half=BFLOAT16, target=targets.ANY)[0]


def test_what_the_user_says_beats_the_target():
    """A pin, a list of the user's and force-all ask for half all the same."""
    assert halves("Hardmax", pins=Pins(force_half=("op",)))[0]
    assert halves("Hardmax", lists=Options().operator_lists().override(_infer(), ["Hardmax"]))[0]
    assert halves("Hardmax", level=Level.UNSAFE_FORCE_ALL)[0]


def _infer():
    return Options().operator_lists().find("", "Add").kind


TABLES = {"onnxruntime_cuda": ("kernels", 200), "onnxruntime_webgpu": ("kernels_webgpu", 100)}
"""The dump that a table in the package is made of, and more operators than which it has."""


@pytest.mark.parametrize("table", TABLES)
def test_every_operator_of_the_table_exists(table):
    """The names in the table are those by which onnx and onnxruntime know the operators."""
    pytest.importorskip("onnxruntime")
    names = {tuple(name.rpartition(":")[::2]) for name in kernel_table.load(table)}
    assert len(names) > TABLES[table][1]
    assert {(domain, name) for domain, name in names if name not in schema.known_operators(domain)} == set()


@pytest.mark.parametrize("table", TABLES)
def test_the_table_is_what_the_dump_condenses_to(table, tmp_path):
    """The table in the package is made of the committed dump, and of nothing else."""
    root, made = Path(__file__).parents[1], tmp_path / "table.json"
    dump = f"benchmarks/results/{TABLES[table][0]}.json"
    command = ["benchmarks/kernels.py", "--condense", dump, "--json", made]
    subprocess.run([sys.executable, *command], cwd=root, check=True, capture_output=True)
    shipped = root / "amp_rewrite" / "policy" / "kernel_tables" / f"{table}.json"
    assert made.read_bytes() == shipped.read_bytes()


def supports(operator, version, half="float16", domain=""):
    """The kernels of the CUDA target for an operator at an opset."""
    signature = schema.find(domain, operator, version)
    return targets.ONNXRUNTIME_CUDA.support(domain, operator, signature, half)


@pytest.mark.parametrize(
    ("operator", "opset", "variable", "half", "has"),
    [
        ("Clip", 11, "T", "float16", False),
        ("Clip", 13, "T", "float16", True),
        ("MaxPool", 21, "T", "float16", True),
        ("MaxPool", 22, "T", "float16", False),
        ("Conv", 21, "T", "bfloat16", False),
        ("Conv", 22, "T", "bfloat16", True),
        ("LayerNormalization", 17, "T", "float16", True),
        ("LayerNormalization", 17, "U", "float16", False),
        ("EyeLike", 13, "T2", "float16", False),
        ("SequenceAt", 13, "S", "float16", True),
        ("Mean", 13, "T", "float16", False),
    ],
)
def test_kernels_are_those_of_the_version_in_the_model(operator, opset, variable, half, has):
    """A kernel with an open end serves no newer version; each variable has types of its own."""
    assert supports(operator, opset, half).has(variable, half) is has


@pytest.mark.parametrize(
    ("operator", "opset", "half", "runs"),
    [
        ("Mish", 18, "float16", True),
        ("Elu", 22, "float16", True),
        ("Elu", 22, "bfloat16", False),
        ("GroupNormalization", 21, "float16", True),
        ("AffineGrid", 20, "bfloat16", False),
        ("Clip", 13, "bfloat16", False),
        ("LogSoftmax", 13, "bfloat16", False),
        ("CenterCropPad", 18, "float16", True),
        ("CenterCropPad", 18, "bfloat16", False),
    ],
)
def test_an_operator_without_a_kernel_runs_as_its_function(operator, opset, half, runs):
    """Where all parts of the function have half kernels, or the function depends on the node."""
    assert (supports(operator, opset, half) is None) is runs


@pytest.mark.parametrize(
    ("operator", "opset", "half", "groups"),
    [
        ("Attention", 23, "float16", [{"T1", "T2", "U"}]),
        ("BatchNormalization", 15, "float16", [{"T", "T1", "T2"}]),
        ("LayerNormalization", 17, "float16", []),
        ("Cast", 13, "float16", []),
        ("Pow", 13, "float16", []),
    ],
)
def test_variables_that_no_kernel_takes_apart_are_joined(operator, opset, half, groups):
    """Attention wants its data and an additive mask in one type; Pow takes an exponent of any."""
    assert [set(group) for group in supports(operator, opset, half).joined(half)] == groups


def test_a_mask_follows_its_attention():
    """An additive mask is half with the data, though the schema would let it stay float32."""
    body = """<ir_version: 10, opset_import: ["": 23]>
      g (float[1,2,4,4] x, float[4,4] m, float[4,4] w) => (float[1,2,4,4] y) {
        a = MatMul (x, w) [op] b = Attention (a, a, a, m) y = MatMul (b, w) }"""
    found = analyze(parser.parse_model(body))
    (unit,) = [unit for unit in found.graph.units if unit.node.name == "op"]
    assert found.painting.is_half(unit.index)
    assert len(unit.uses) == 4


@pytest.mark.parametrize("opset", [23, 24, 26])
@pytest.mark.parametrize("mask", ["bool", "int64"])
@pytest.mark.parametrize("target", targets.BY_NAME)
def test_values_follow_the_queries_beside_another_mask(opset, mask, target):
    """Queries, keys and values are one unit where the mask has another type, and where no kernel serves the
    opset: onnxruntime multiplies what is made of them.
    """
    body = f"""<ir_version: 10, opset_import: ["": {opset}]>
      g (float[1,2,4,4] x, float[1,2,4,4] v, {mask}[4,4] m) => (float[1,2,4,4] y) {{
        y = Attention (x, x, v, m) }}"""
    (unit,) = analyze(parser.parse_model(body), Options(target=target)).graph.units
    assert len(unit.uses) == 3


def test_an_unknown_target_is_an_error():
    """A target that nobody knows says which there are."""
    with pytest.raises(
        OptionError, match="choose one of onnxruntime-cuda, onnxruntime-webgpu, tensorrt, any"
    ):
        targets.named("tpu")


@pytest.mark.parametrize("target", [targets.ANY, targets.ONNXRUNTIME_CUDA])
def test_what_has_no_kernel_is_no_less_dangerous(target):
    """Sinh is denied, and what it feeds is suspect, whether the target has a kernel for it or not."""
    body = """<ir_version: 10, opset_import: ["": 22]> g (float[4,4] x) => (float[4,4] y) {
        a = MatMul (x, x) s = Sinh (a) [sum] b = Add (s, a) y = MatMul (b, b) }"""
    found = analyze(parser.parse_model(body), Options(target=target))
    (unit,) = [unit for unit in found.graph.units if unit.node.name == "sum"]
    assert found.painting.paints[unit.index].rule is Rule.DENY
