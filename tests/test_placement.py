"""What onnxruntime executes of a model: read from its log and the graph that it saves."""

import json

import onnx
import pytest
from onnx import parser

from amp_rewrite import measure_placement
from amp_rewrite.errors import OptionError
from amp_rewrite.placement import placement, profile, saved_graph
from amp_rewrite.placement.placement import CpuReason, OnCpu
from amp_rewrite.placement.profile import CPU
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device
from tests import text
from tests.commands import failure, run

CUDA = "CUDAExecutionProvider"

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
m (float[n, 4] x, int64[2] i) => (float[n, 4] y, int64[3] s) <float16[4, 4] w, float[4] b, int64[1] l = {1}> {
  [down] h = Cast <to = 10> (x) [product] p = MatMul (h, w) [up] f = Cast <to = 1> (p) [bias] y = Add (f, b)
  [join] s = Concat <axis = 0> (i, l) }"""

SAVED = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
m (float[n, 4] x, int64[2] i) => (float[n, 4] y, int64[3] s) <float16[4, 4] w, float[4] b, int64[1] l> {
  [down] h = Cast <to = 10> (x) [product] p = com.microsoft.FusedMatMul <alpha = 0.5> (h, w)
  [up] f = Cast <to = 1> (p) [InsertedPrecisionFreeCast_f] g = Cast <to = 1> (p) [bias] y = Add (f, b)
  [Memcpy_token_4] c = MemcpyToHost (i) [join] s = Concat <axis = 0> (c, l) }"""

VERIFY = "2026-01-01 [V:onnxruntime:, session_state.cc:1586 VerifyEachNodeIsAssignedToAnEp] "
LOG = f"""
\x1b[0;93m[I:onnxruntime:, x.cc:1] Force fallback to CPU execution for node: join because it is faster\x1b[m
[I:onnxruntime:, x.cc:1] CUDA kernel not found in registries for Op type: STFT node name: s t (1)
[W:onnxruntime:, x.cc:1] Fallback to CPU execution provider for Op type: LSTM node name:
{VERIFY}Node placements
{VERIFY} Node(s) placed on [{CPU}]. Number of nodes: 3
{VERIFY}  Concat (join)
{VERIFY}  STFT (s t (1))
{VERIFY}  LSTM ()
{VERIFY} Node(s) placed on [{CUDA}]. Number of nodes: 2
{VERIFY}  Cast (down)
{VERIFY}  FusedMatMul (product)
"""


@pytest.fixture
def log():
    """The log of LOG."""
    return placement.parse_log(LOG.splitlines(keepends=True))


def saved(tmp_path, source):
    """The nodes of a saved graph, given as text."""
    onnx.save(text.unchecked(source), tmp_path / "optimised.onnx")
    return saved_graph.read(tmp_path / "optimised.onnx")


def test_the_log_says_where_nodes_are_and_why(log):
    """Names may hold brackets and spaces, or be empty; colours are ignored."""
    assert log.counts == {CPU: 3, CUDA: 2}
    assert set(log.nodes[CPU]) == {("Concat", "join"), ("STFT", "s t (1)"), ("LSTM", "")}
    assert log.why == {
        ("Concat", "join"): CpuReason.PREFERRED,
        ("STFT", "s t (1)"): CpuReason.NO_KERNEL,
        ("LSTM", ""): CpuReason.REFUSED,
    }


def test_types_of_the_saved_graph_are_inferred(tmp_path):
    """Those of operators that onnxruntime alone knows, and behind copies, too; also in subgraphs, where types
    come from outside.
    """
    nodes = {node.name: node for node in saved(tmp_path, SAVED) if node.operator != "Cast"}
    assert {name: (node.operator, node.precision) for name, node in nodes.items()} == {
        "product": ("com.microsoft:FusedMatMul", "float16"),
        "bias": ("Add", "float32"),
        "Memcpy_token_4": ("MemcpyToHost", "other"),
        "join": ("Concat", "other"),
    }
    assert nodes["join"].inputs == ("int64", "int64")
    source = """<ir_version: 8, opset_import: ["" : 17]> m (bool c, float16[4] x) => (float16[4] y) {
      y = If <then_branch = t () => (float16[4] a) { a = Relu (x) },
              else_branch = e () => (float16[4] b) { b = Neg (x) }> (c) }"""
    nodes = {(node.operator, node.precision) for node in saved(tmp_path, source)}
    assert nodes == {("If", "float16"), ("Neg", "float16"), ("Relu", "float16")}


@pytest.mark.parametrize(
    ("source", "inserted", "fused"), [(MODEL, 1, {"com.microsoft:FusedMatMul": 1}), (SAVED, 0, {})]
)
def test_a_placement_counts(tmp_path, log, source, inserted, fused):
    """Casts by their types; what onnxruntime inserted or fused is told from what the model has, whatever its
    names.
    """
    given = placement.own_nodes(parser.parse_model(source))
    placed = placement.of(saved(tmp_path, SAVED), log, given, cpu_asked=False)
    assert (placed.nodes, placed.copies, placed.cpu_nodes) == (7, 1, 3)
    assert (placed.half, placed.full, placed.untyped) == ({"com.microsoft:FusedMatMul": 1}, {"Add": 1}, {})
    assert placed.casts == {"float16>float32": 2, "float32>float16": 1}
    assert (placed.float_casts, placed.inserted_casts, placed.fused) == (3, inserted, fused)
    assert OnCpu("Concat", "other", CpuReason.PREFERRED, 1) in placed.on_cpu
    found = json.loads(json.dumps(placed.to_json()))
    assert (found["loads"], found["nodes"], found["float_casts"]) == (True, 7, 3)
    assert {"operator": "Concat", "precision": "other", "why": "preferred", "count": 1} in found["on_cpu"]


def on_cpu(log, *nodes):
    """What is on the CPU and why; of the nodes, those called `conv` and `s` are the model's."""
    executed = [saved_graph.Executed(operator, name, ("float32",), ("float32",)) for operator, name in nodes]
    parsed = placement.parse_log(log)
    return placement.of(executed, parsed, placement.OwnNodes({}, {"conv", "s"}), cpu_asked=False).on_cpu


def test_a_node_that_onnxruntime_moved_keeps_its_reason():
    """It appends `_token_7` to the name of a node that it moves past a Transpose, and adds nodes.

    Where all is on the CPU its log lists nothing.
    """
    found = on_cpu(
        [
            "kernel not found in registries for Op type: QLinearConv node name: conv",
            f"{VERIFY} Node(s) placed on [{CPU}]. Number of nodes: 2",
            f"{VERIFY}  QLinearConv (conv_token_7)",
            f"{VERIFY}  Transpose (Transpose_token_8)",
        ],
        ("com.microsoft:QLinearConv", "conv_token_7"),
        ("Transpose", "Transpose_token_8"),
    )
    assert {group.operator: group.why for group in found} == {
        "com.microsoft:QLinearConv": CpuReason.NO_KERNEL,
        "Transpose": CpuReason.INSERTED,
    }
    found = on_cpu([f"{VERIFY} All nodes placed on [{CPU}]. Number of nodes: 1"], ("STFT", "s"))
    assert found == (OnCpu("STFT", "float32", CpuReason.UNSAID, 1),)


def test_a_model_on_the_cpu_from_python():
    """onnxruntime itself says what it executes: here the CPU provider has no half kernel for MatMul."""
    pytest.importorskip("onnxruntime")
    source = "g (float16[2, 4] x) => (float16[2, 4] y) <float16[4, 4] w> { y = MatMul (x, w) }"
    found = measure_placement(text.model(source), Device.CPU)
    assert (found.refused, found.full) == ("", {"MatMul": 1})
    assert found.inserted_casts >= 1


@pytest.fixture
def files(tmp_path):
    """A model, and one that onnxruntime refuses: its LayerNormalization reads two types."""
    pytest.importorskip("onnxruntime")
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    onnx.save(text.model("g (float[2, 4] x) => (float[2, 4] y) { h = Relu (x) y = Exp (h) }"), good)
    onnx.save(text.unchecked("g (float[2] x) => (float[2] y) { y = NoSuch (x) }"), bad)
    return good, bad


def test_the_command_prints_and_writes(files, tmp_path):
    """A table; a model that does not load has its message in one line, and exit code 1."""
    good, bad = files
    written = tmp_path / "p.json"
    result = run("placement", good, bad, "--show=run", "--provider", "cpu", "--json", written)
    assert result.exit_code == 1, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split()[:4] == ["model", "nodes", "half", "float32"]
    assert lines[1].split()[1:] == ["2", "0", "2", "0", "0", "0", "0"]
    assert any("one run" in line and "2 nodes" in line for line in lines)
    assert any(line.startswith("REFUSED") and "NoSuch" in line for line in lines)
    found = json.loads(written.read_text())
    assert found["provider"] == "cpu"
    assert [one["loads"] for one in found["models"]] == [True, False]
    assert found["models"][0]["profile"]["nodes"] == 2


def test_bad_input(files, monkeypatch):
    """One line that says what would help: without CUDA, where the CPU is asked by default, with flags of a
    run where nothing is run, and for a model that is not there.
    """
    monkeypatch.setattr(sessions, "best_device", lambda: Device.CPU)
    assert "CUDA does not work here" in failure("placement", files[0], "--provider", "cuda")
    with pytest.raises(OptionError, match="CUDA does not work here"):
        measure_placement(files[0], Device.CUDA)
    assert measure_placement(files[0]).nodes == 2
    gone = files[0].with_name("no.onnx")
    assert "there is no such file" in failure("placement", gone, "--provider", "cpu")


# ---- the profile of one run: what ran, and where


def event(name, operator, provider="CPUExecutionProvider", index="0"):
    """The event of an executed node, as onnxruntime writes it."""
    args = {"op_name": operator, "provider": provider, "node_index": index}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": 1, "args": args}


EVENTS = [
    {"cat": "Session", "name": "model_run", "dur": 9, "args": {}},
    {"cat": "Node", "name": "a_fence_before", "dur": 0, "args": {"op_name": "Cast"}},
    event("a", "Cast", CUDA, "1"),
    event("b", "MatMul", CUDA, "2"),
    event("to_host", "MemcpyToHost", CUDA, "3"),
    event("unique", "Unique", index="4"),
    event("shape", "Shape", index="5"),
    event("shape", "Shape", index="6"),
    *[event("inner", "Cast", CUDA, "7")] * 3,
]


def test_a_profile_counts_what_ran_where(tmp_path):
    """Nodes are counted once, whatever their names; Casts and copies at each execution."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(EVENTS))
    found = profile.read(path)
    assert (found.nodes, found.on_cpu, found.casts, found.copies) == (7, 3, 4, 1)
    assert found.cpu_operators == (("Shape", 2), ("Unique", 1))


def test_an_empty_profile_counts_nothing():
    """A run without nodes has an empty profile."""
    assert profile.parse([]) == profile.Profile(0, 0, 0, 0, ())


def test_a_profile_with_names_that_are_not_escaped(tmp_path):
    """onnxruntime 1.30 does not escape names: events that are invalid JSON do not hide the others."""
    event = '{"cat": "Node", "name": "%s_kernel_time", "args": {"op_name": "Add", "provider": "P"}}'
    lines = (event % "one", event % 'of " a quote', event % "two\\nlines", "1", event % "last")
    (tmp_path / "profile").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    assert profile.read(tmp_path / "profile").nodes == 3
