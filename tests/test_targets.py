"""Which kernels the target has: a half colour is not given where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest
from onnx import parser

from amp_rewrite import analyze
from amp_rewrite.errors import OptionError
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy import kernel_table, targets
from amp_rewrite.policy.options import Options

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
