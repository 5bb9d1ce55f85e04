"""Which kernels the target has: a half colour is not given where there is none."""

import pytest
from onnx import parser

from amp_rewrite import analyze, schema, targets
from amp_rewrite.colours import Rule
from amp_rewrite.errors import OptionError
from amp_rewrite.half import BFLOAT16, FLOAT16
from amp_rewrite.options import Level, Options, Pins

BETWEEN = """<ir_version: 10, opset_import: ["": 22]>
  g (float[1,4,4,4] x, float[4,4] w) => (float[1,4,4,4] y) {{
    a = MatMul (x, w) [op] b = {} (a) y = MatMul (b, w) }}"""


def halves(operator, **options):
    """Whether the operator between two matrix products is half."""
    found = analyze(parser.parse_model(BETWEEN.format(operator)), Options(**options))
    (unit,) = [unit for unit in found.graph.units if unit.node.name == "op"]
    return found.painting.is_half(unit.index), found.painting.entries[unit.index].reason


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


def test_any_target_has_every_kernel():
    """With the target `any` only the lists speak."""
    assert halves("Elu", half=BFLOAT16, target=targets.ANY)[0]


def test_what_the_user_says_beats_the_target():
    """A pin, a list of the user's and force-all ask for half all the same."""
    assert halves("Hardmax", pins=Pins(force_half=("op",)))[0]
    assert halves("Hardmax", lists=Options().operator_lists().override(_infer(), ["Hardmax"], "--infer"))[0]
    assert halves("Hardmax", level=Level.UNSAFE_FORCE_ALL)[0]


def _infer():
    return Options().operator_lists().find("", "Add").kind


def test_every_operator_of_a_table_exists():
    """No name in a table is misspelt: onnx or onnxruntime knows each."""
    tables = targets.ONNXRUNTIME_CUDA.float_only.values()
    for domain, name in frozenset().union(*tables, targets.ONNXRUNTIME_CUDA.joined):
        assert name in schema.known_operators(domain), f"{domain}:{name}"


def test_an_unknown_target_is_an_error():
    """A target that nobody knows says which there are."""
    with pytest.raises(OptionError, match="choose one of onnxruntime-cuda, any"):
        targets.named("tpu")


@pytest.mark.parametrize("target", [targets.ANY, targets.ONNXRUNTIME_CUDA])
def test_what_has_no_kernel_is_no_less_dangerous(target):
    """Sinh is denied, and what it feeds is suspect, whether the target has a kernel for it or not."""
    body = """<ir_version: 10, opset_import: ["": 22]> g (float[4,4] x) => (float[4,4] y) {
        a = MatMul (x, x) s = Sinh (a) [sum] b = Add (s, a) y = MatMul (b, b) }"""
    found = analyze(parser.parse_model(body), Options(target=target))
    (unit,) = [unit for unit in found.graph.units if unit.node.name == "sum"]
    assert found.painting.paints[unit.index].rule is Rule.DENY
