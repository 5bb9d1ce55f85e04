"""The command line: what it writes, prints and answers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from amp_rewrite import pipeline
from amp_rewrite.errors import MissingPackageError
from amp_rewrite.text import plural
from tests import text
from tests.commands import failure, run
from tests.text import FUNCTIONS

ROOT = Path(__file__).parents[1]

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
two_products (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) {
  [product] a = MatMul (x, w)
  [exponential] e = Exp (a)
  [root] r = Sqrt (e)
  [second] y = MatMul (r, w)
}
"""


@pytest.fixture
def model(tmp_path):
    """A model in a folder of its own."""
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return path


def half_nodes(path):
    """The names of the nodes whose first output is float16."""
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    half = {v.name for v in (*graph.value_info, *graph.output) if v.type.tensor_type.elem_type == 10}
    return {node.name for node in graph.node if node.output[0] in half and node.op_type != "Cast"}


def test_a_bare_model_is_written_beside_itself(model):
    """`amp-rewrite model.onnx` writes model_fp16.onnx beside it, and leaves the model as it was."""
    before = model.read_bytes()
    result = run(model)
    assert result.exit_code == 0
    assert half_nodes(model.with_name("model_fp16.onnx")) == {"product", "second"}
    assert model.read_bytes() == before
    assert sorted(p.name for p in model.parent.iterdir()) == ["model.onnx", "model_fp16.onnx"]


def test_bfloat16_has_a_name_of_its_own(model):
    """With --to bfloat16 the result is model_bf16.onnx."""
    assert run(model, "--to", "bfloat16").exit_code == 0
    assert model.with_name("model_bf16.onnx").exists()


def test_flags_before_the_model_mean_rewrite_too(model, tmp_path):
    """A first argument that is no command means rewrite, also when it is a flag."""
    out = tmp_path / "out.onnx"
    assert run("-q", "-o", out, model).exit_code == 0
    assert out.exists()


def test_the_summary_says_what_was_done(model):
    """With -v the summary counts nodes and Casts, and without it ends as that does, and says what is next."""
    output = run(model, "-v").output
    assert "2 in float16, 2 in float32" in output
    assert "5 added" in output
    assert f"amp-rewrite explain {model}" in output
    short = run(model).output
    assert output.endswith("".join(short.splitlines(keepends=True)[-3:]))
    assert not re.search(r"^(nodes|Casts|size|form|proof|ranges|speed|versions) ", short, re.MULTILINE)


SHORT = r"""output +error +limit +verdict
probabilities  3.6e-04  1e-02  PASS *
PASS  \S+/demo_fp16.onnx  106.9 -> 59.3 kB, over 99% of FLOPs in float16, largest error 3.6e-04 \(limit.*\)
      about 1.1 times as fast as float32 on an H200 \(predicted at 64x3x32x32, open sizes count as 64\)
next  amp-rewrite explain \S+/demo.onnx   # why nodes stay float32
"""
MOSTLY = """g (float[N,64] x) => (float[N,64] y) <float[64,64] u, float[64,64] v, float[64,64] w> {
    [a] a = MatMul (x, u) [b] b = MatMul (a, v) [c] y = MatMul (b, w) }"""


@pytest.mark.parametrize(("kept", "said"), [(("a", "b"), True), (("a",), False)])
def test_a_result_that_is_mostly_float32_says_so(tmp_path, kept, said):
    """A PASS is good news of the error; what little is half stands in the same line."""
    onnx.save(text.model(MOSTLY), tmp_path / "m.onnx")
    done = run(tmp_path / "m.onnx", "--tolerance=error=0.5", *(f"--keep-full={name}" for name in kept))
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("PASS"))
    assert ("mostly float32: 33% of FLOPs in float16" in line) == said, line


OWN_WORDS = "unit licence island kind paint freed floor witness seen denied tied".split()


def test_quiet_prints_nothing(model):
    """With -q a run that goes well prints nothing at all."""
    assert run(model, "-q").output == ""


def test_the_report_as_json_agrees_with_the_summary(model, tmp_path):
    """--json holds the numbers of the summary."""
    path = tmp_path / "report.json"
    run(model, "--json", path)
    report = json.loads(path.read_text())
    assert report["nodes"] == {"half": 2, "mixed": 0, "full": 2, "other": 0}
    assert report["casts_added"] == 5
    assert report["ok"] is True
    assert report["size_before"] == model.stat().st_size


def test_a_dry_run_writes_nothing(model):
    """--dry-run prints the Casts, and leaves the folder as it was."""
    result = run(model, "--dry-run")
    assert result.exit_code == 0
    assert "no model was written" in result.output
    assert result.output.count("Cast ") == 5
    assert [p.name for p in model.parent.iterdir()] == ["model.onnx"]


def test_a_dry_run_reports_what_it_would_do(model, tmp_path):
    """--dry-run --json holds the numbers that the rewrite itself would report."""
    planned, done = tmp_path / "planned.json", tmp_path / "done.json"
    assert run(model, "--dry-run", "--json", planned).exit_code == 0
    assert not model.with_name("model_fp16.onnx").exists()
    run(model, "--json", done)
    planned, done = (json.loads(path.read_text()) for path in (planned, done))
    for key in ("half", "nodes", "casts_added", "stored_half", "size_before", "warnings", "changed"):
        assert planned[key] == done[key]
    assert planned["verification"] is None


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--deny", "Exp"),
        ("--io", "half"),
        ("--io", "half", "--keep-io", "x"),
        ("--to", "bfloat16"),
        ("--target", "any"),
        ("--skip=inline",),
    ],
)
def test_a_saved_plan_gives_the_same_bytes(model, tmp_path, flags):
    """--plan alone carries out what --save-plan saved, to the byte, whatever flags the first run had."""
    plan, first, again = tmp_path / "plan.json", tmp_path / "first.onnx", tmp_path / "again.onnx"
    assert run(model, "--save-plan", plan, "-o", first, *flags).exit_code == 0
    result = run(model, "--plan", plan, "-o", again)
    assert result.exit_code == 0
    assert again.read_bytes() == first.read_bytes() != model.read_bytes()
    assert "BROKEN" not in result.output


def test_a_bare_clone_has_a_version():
    """--version of a checkout that is not installed says so, and ends well."""
    command = [sys.executable, "-S", "-c", BARE, "--version"]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout == "amp-rewrite, version 0+unknown\n"


BARE = """
from importlib import metadata
def version(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = version
from amp_rewrite.cli import main
main(prog_name="amp-rewrite")
"""
"""The command line where the package's metadata cannot be found."""


@pytest.mark.parametrize(
    ("flags", "half"),
    [
        ((), {"product", "second"}),
        (("--list", "infer=Exp"), {"product", "exponential", "root", "second"}),
        (("--deny", "MatMul"), set()),
        (("--keep-full", "product"), {"second"}),
        (("--keep-full", ".*o.*"), set()),
        (("--force-half", "exponential"), {"product", "exponential", "root", "second"}),
        (("--level", "tensor-cores-only"), {"product", "second"}),
        (("--level", "unsafe-force-all"), {"product", "exponential", "root", "second"}),
        (("--list", "tensorflow"), {"product", "second"}),
    ],
)
def test_flags_decide(model, flags, half):
    """Each flag moves the colours as it says."""
    assert run(model, *flags).exit_code == 0
    assert half_nodes(model.with_name("model_fp16.onnx")) == half


def test_explain_a_node_prints_the_chain_of_causes(model):
    """`explain MODEL NODE` goes from the node back to the operator that is denied."""
    lines = run("explain", model, "root").output.splitlines()
    assert lines[0] == "Sqrt 'root'"
    assert lines[1].startswith("  float32: Sqrt 'root': downstream of Exp")
    assert lines[2].startswith("    float32: Exp 'exponential': denied: ")
    assert "11.09" in lines[2]


def test_explain_finds_a_node_by_what_it_makes(model):
    """NODE may be the name of a value."""
    assert run("explain", model, "e").output == run("explain", model, "exponential").output


def test_explain_names_what_holds_nodes_back(model):
    """`explain MODEL` has the causes of float32, each with the flag that would help."""
    first, reason, remedy, *_ = run("explain", model).output.splitlines()
    assert first == "2 nodes, 11% of FLOPs: downstream of Exp 'exponential'"
    assert reason.startswith("  denied: overflows above 11.09")
    assert remedy == "  to allow: --list infer=Exp (frees 2 nodes, 11% of FLOPs; not compared)"


def test_explain_all_prints_float32_first(model):
    """`explain MODEL --all` has a line for every unit, those in float32 before those in half."""
    colours = [line.split()[0] for line in run("explain", model, "--show=all").stdout.splitlines()]
    assert colours == ["float32", "float32", "half", "half"]


@pytest.mark.parametrize(
    ("asked", "files"), [("never", 0), ("auto", 0), ("always", 1), ("Always", 1), ("1.5 kB", 2), ("1GiB", 1)]
)
def test_one_flag_says_where_weights_go(tmp_path, asked, files):
    """--external-data takes a word or a size, and with a size there are as many files as it takes."""
    path = tmp_path / "model.onnx"
    onnx.save(
        text.model("""g (float[32,32] x) => (float[32,32] y) <float[32,32] v, float[32,32] w> {
            h = MatMul(x, v) y = MatMul(h, w)
        }"""),
        path,
    )
    assert run(path, "--external-data", asked).exit_code == 0
    assert len(list(tmp_path.glob("*.data"))) == files


def test_in_place_writes_over_the_model(model):
    """--in-place is how the model itself is replaced."""
    assert run(model, "--in-place").exit_code == 0
    assert half_nodes(model) == {"product", "second"}


def test_a_fault_of_our_own_is_no_traceback(model, monkeypatch):
    """An error that nobody foresaw is one line as well, and says how to report it."""

    def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(pipeline, "rewrite", fail)
    line = failure(model)
    assert "ZeroDivisionError: a bug" in line
    assert "AMP_REWRITE_TRACEBACK=1" in line


def test_a_result_that_is_not_valid_ends_with_1(model, monkeypatch):
    """When the check fails, the file is written, the summary says what broke, and the exit code is 1."""
    monkeypatch.setattr("amp_rewrite.rewriting.result_checks.broken_io", lambda *_: ("the output is gone",))
    result = run(model)
    assert result.exit_code == 1
    assert "BROKEN" in result.output
    assert "the output is gone" in result.output
    assert model.with_name("model_fp16.onnx").exists()


def test_the_demo_compares_and_says_so(tmp_path):
    """`amp-rewrite demo` writes both models and ends with a verdict on every output."""
    pytest.importorskip("onnxruntime")
    result = run("demo", "-o", tmp_path / "demo")
    assert result.exit_code == 0
    assert re.fullmatch(SHORT, result.output)
    assert len(result.output.splitlines()) <= 6
    assert not re.search(rf"\b({'|'.join(OWN_WORDS)})s?\b", result.output)
    assert sorted(p.name for p in (tmp_path / "demo").iterdir()) == ["demo.onnx", "demo_fp16.onnx"]


def test_the_demo_without_onnxruntime(tmp_path, monkeypatch):
    """Where nothing can run the models, the demo still rewrites, says so in one line, and ends well."""

    def missing(*_, **__):
        raise MissingPackageError("onnxruntime", extra="cpu", purpose="running a model")

    monkeypatch.setattr("amp_rewrite.running.verification.verify_trials", missing)
    result = run("demo", "-o", tmp_path / "demo")
    assert result.exit_code == 0
    assert "in float16" in result.output
    told, last, _, _ = result.output.splitlines()
    assert last.startswith("not compared  ")
    assert told.startswith("not compared with the original: running a model needs the package onnxruntime")
    assert "pip install onnxruntime" in told


def test_a_file_may_be_called_like_a_command(model, monkeypatch):
    """A file whose name is nearly a command's is the model."""
    monkeypatch.chdir(model.parent)
    model.rename("verfy")
    assert run("verfy", "-q").exit_code == 0
    assert Path("verfy_fp16.onnx").exists()


def test_a_model_that_was_optimised_for_a_cpu_is_warned_of(model):
    """By operators that no other device has; the warning says what would help."""
    assert "optimised this model" not in run(model, "--skip=verify").output
    imports = '<ir_version: 8, opset_import: ["": 17, "com.microsoft.nchwc": 1]>'
    nodes = (
        "r = com.microsoft.nchwc.ReorderInput (x) y = com.microsoft.nchwc.ReorderOutput <channels = 8> (r)"
    )
    saved = f"{imports} g (float[1,8,4,4] x) => (float[1,8,4,4] y) {{ {nodes} }}"
    onnx.save(parser.parse_model(saved), model)
    told = run(model, "--skip=verify").output
    assert "warning  onnxruntime optimised this model for a CPU" in told
    assert "ORT_ENABLE_EXTENDED" in told


def test_inputs_with_a_default_become_constant(model):
    """From IR version 4 on, where callers may override them: one line counts them, and a flag keeps them."""
    square, row = f"float[4,4] v = {{{', '.join('1' * 16)}}}", "float[4] c = {1, 2, 3, 4}"
    nodes = "{ a = MatMul (x, v) b = MatMul (a, w) y = Add (b, c) }"
    inputs = {"v": "float[4,4] v", "w": "float[4,4] w", "c": "float[4] c"}
    for ir_version, given, flags, count in (
        (8, "vwc", "", 3),
        (8, "c", "", 1),
        (8, "vwc", "--skip=defaults", 0),
        (3, "vwc", "", 0),
    ):
        shown = "".join(f", {inputs[name]}" for name in given)
        text = f"""<ir_version: {ir_version}, opset_import: ["": 9]> g (float[2,4] x{shown}) => (float[2,4] y)
            <{square}, {square.replace("v", "w")}, {row}> {nodes}"""
        onnx.save(parser.parse_model(text), model)
        told = run(model, "-o", model.with_stem("made"), "--force", *flags.split()).output
        assert (f"{plural(count, 'input')} with a default became constant" in told) is bool(count)
        assert "PASS" in told
        made = onnx.load(model.with_stem("made")).graph
        assert len(made.input) == 1 + len(given) - count
        assert (sum(node.op_type == "Cast" for node in made.node) == 2) is (flags == "")


def test_functions_that_are_kept_are_counted(model):
    """--skip inline warns that what it keeps stays float32; without functions there is nothing to say."""
    assert "kept, in float32" not in run(model, "--skip=inline").output
    onnx.save(parser.parse_model(FUNCTIONS), model)
    assert "warning  1 model-local function kept, in float32" in run(model, "--skip=inline").output
    assert "kept, in float32" not in run(model).output


def test_verbose_has_versions_and_the_time_of_each_stage(tmp_path):
    """Before and after the work; with --quiet it is refused."""
    path = tmp_path / "m.onnx"
    onnx.save(text.model("g (float[4,4] x) => (float[4,4] y) { y = MatMul(x, x) }"), path)
    said = run(path, "--skip=verify", "--verbose").output
    assert re.search(r"^versions +amp-rewrite \S+, Python \d[\d.]+, onnx \d", said, re.MULTILINE)
    assert re.search(
        r"^seconds +inputs \d+\.\d\d, load \d+\.\d\d, widen \d+\.\d\d, prepare \d.*; \d+\.\d\d in all$",
        said,
        re.MULTILINE,
    )
    assert "--verbose has no effect with --quiet" in failure(path, "-v", "-q")


def test_a_dry_run_of_nothing_has_no_table(model):
    """Where no Cast and no stored tensor would change; one is said as one."""
    done = run(model, "--dry-run", "--deny", "MatMul").stdout
    assert "change" not in done
    assert ", 0 Casts; no model was written" in done
    assert run(model, "--dry-run").stdout.startswith("change")


def test_a_dry_run_warns_as_the_rewrite_does(model):
    """Of what it decided by, and of the predicted speed."""
    for flags in (("--list", "bfloat16"), ("--to", "bfloat16", "--list", "tensorflow")):
        told = [
            [line for line in run(model, *flags, more).stdout.splitlines() if line.startswith("warning")]
            for more in ("--dry-run", "--skip=verify")
        ]
        assert told[0] == told[1]
        assert any(line.startswith("warning  the list ") for line in told[0])
