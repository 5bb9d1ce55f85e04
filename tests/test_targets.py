"""Which kernels the target has: a half colour is not given where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest
from onnx import parser

from amp_rewrite import analyze
from amp_rewrite.errors import OptionError
from amp_rewrite.onnx_types import schema
from amp_rewrite.placement.placement import CpuReason
from amp_rewrite.policy import kernel_table, targets
from amp_rewrite.policy.options import Options
from tests import case_files
from tests.commands import rows
from tests.cuda_sessions import cuda_placer, marks, worsened
from tests.text import model, rewritten

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


def support(operator, half, target="onnxruntime-cuda"):
    """The kernels of a target for an operator at an opset: `Clip-13`."""
    name, _, version = operator.partition("-")
    return targets.BY_NAME[target].support("", name, schema.find("", name, int(version)), half)


HAVE = """
onnxruntime-cuda   | float16  | Clip-13.T MaxPool-21.T LayerNormalization-17.T SequenceAt-13.S
onnxruntime-cuda   | bfloat16 | Conv-22.T
onnxruntime-webgpu | float16  | MatMul-17.T Conv-17.T
"""
LACK = """
onnxruntime-cuda   | float16  | Clip-11.T MaxPool-22.T LayerNormalization-17.U EyeLike-13.T2 Mean-13.T
onnxruntime-cuda   | bfloat16 | Conv-21.T
onnxruntime-webgpu | float16  | LSTM-17.T
onnxruntime-webgpu | bfloat16 | MatMul-17.T
"""


@pytest.mark.parametrize(("table", "has"), [(HAVE, True), (LACK, False)])
def test_kernels_are_those_of_the_version_in_the_model(table, has):
    """A kernel with an open end serves no newer version; each variable has types of its own."""
    for target, half, ports in rows(table):
        for port in ports.split():
            operator, _, variable = port.partition(".")
            assert support(operator, half, target).has(variable, half) is has, port


FUNCTIONS = """
float16  | Mish-18 Elu-22 GroupNormalization-21 CenterCropPad-18 |
bfloat16 | | Elu-22 AffineGrid-20 Clip-13 LogSoftmax-13 CenterCropPad-18
"""


@pytest.mark.parametrize(("half", "run", "lack"), rows(FUNCTIONS))
def test_an_operator_without_a_kernel_runs_as_its_function(half, run, lack):
    """Where all parts of the function have half kernels, or the function depends on the node."""
    for operator in (*run.split(), *lack.split()):
        assert (support(operator, half) is None) is (operator in run), operator


@pytest.mark.parametrize(
    ("operator", "groups"),
    [
        ("Attention-23", [{"T1", "T2", "U"}]),
        ("BatchNormalization-15", [{"T", "T1", "T2"}]),
        ("LayerNormalization-17", []),
        ("Cast-13", []),
        ("Pow-13", []),
    ],
)
def test_variables_that_no_kernel_takes_apart_are_joined(operator, groups):
    """Attention wants its data and an additive mask in one type; Pow takes an exponent of any."""
    assert [set(group) for group in support(operator, "float16").joined("float16")] == groups


@pytest.mark.parametrize("opset", [23, 26])
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


REPORT = Path(__file__).parents[2] / "shared" / "cases" / "01_open_sums.onnx"


@pytest.mark.skipif(not REPORT.exists(), reason="needs the shared cases")
@pytest.mark.parametrize("dims", [{}, {"H": 1024, "W": 1024}])
def test_the_report_of_open_sums(dims):
    """A mean over 1024 x 1024 elements was infinite in half on WebGPU, and not seen: its size was open."""
    found = analyze(REPORT, Options(target="onnxruntime-webgpu", dims=dims))
    halves = {unit.node.op_type for unit in found.graph.units if found.painting.is_half(unit.index)}
    assert halves
    assert "ReduceMean" not in halves


# ---- nodes that onnxruntime's CUDA provider refuses for an attribute, as `targets.cases` has them

HELD = "kernel for its "


def cases():
    """The valid cases of the file, without flags, beside a row that is about an attribute."""
    found = list(case_files.read(Path(__file__).parent / "cases" / "targets.cases"))
    held = {case.sentence for case in found if any(HELD in claim for claim in case.claims)}
    found = [case for case in found if case.sentence in held and not case.flags]
    return [case for case in found if not any(claim.startswith("not ") for claim in case.claims)]


@marks
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_cuda_refuses_these_and_no_others(half):
    """In float32 already; and the results have no node on the CPU, copy or inserted Cast more."""
    with cuda_placer() as place:
        for case in cases():
            before = model(case.model)
            original, result = place(before), place(rewritten(before, Options(half=half)).model)
            refused = {group.why for group in original.on_cpu} == {CpuReason.REFUSED}
            assert refused == any(HELD in claim for claim in case.claims), case.title
            assert (result.refused, worsened(original, result)) == ("", []), case.title
