"""The profile of one run: what ran, and where."""

import json

from amp_rewrite.placement import placement


def node(name, operator, provider="CPUExecutionProvider", index="0"):
    """The event of an executed node, as onnxruntime writes it."""
    args = {"op_name": operator, "provider": provider, "node_index": index}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": 1, "args": args}


CUDA = "CUDAExecutionProvider"
EVENTS = [
    {"cat": "Session", "name": "model_run", "dur": 9, "args": {}},
    {"cat": "Node", "name": "a_fence_before", "dur": 0, "args": {"op_name": "Cast"}},
    node("a", "Cast", CUDA, "1"),
    node("b", "MatMul", CUDA, "2"),
    node("to_host", "MemcpyToHost", CUDA, "3"),
    node("unique", "Unique", index="4"),
    node("shape", "Shape", index="5"),
    node("shape", "Shape", index="6"),
    *[node("inner", "Cast", CUDA, "7")] * 3,
]


def test_a_profile_counts_what_ran_where(tmp_path):
    """Nodes are counted once, whatever their names; Casts and copies at each execution."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(EVENTS))
    found = placement.read_profile(path)
    assert (found.nodes, found.on_cpu, found.casts, found.copies) == (7, 3, 4, 1)
    assert found.cpu_operators == (("Shape", 2), ("Unique", 1))


def test_an_empty_profile_counts_nothing():
    """A run without nodes has an empty profile."""
    assert placement.parse_profile([]) == placement.Profile(0, 0, 0, 0, ())


def test_a_profile_with_names_that_are_not_escaped(tmp_path):
    """onnxruntime 1.30 does not escape names: events that are invalid JSON do not hide the others."""
    event = '{"cat": "Node", "name": "%s_kernel_time", "args": {"op_name": "Add", "provider": "P"}}'
    lines = (event % "one", event % 'of " a quote', event % "two\\nlines", "1", event % "last")
    (tmp_path / "profile").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    assert placement.read_profile(tmp_path / "profile").nodes == 3
