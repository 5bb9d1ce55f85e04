"""Nodes with very many ports: time is linear in their number."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import amp_rewrite
from amp_rewrite.model.loading import load
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.options import Level, Options
from amp_rewrite.rewriting import annotations
from tests import text

ROOT = Path(__file__).parents[1]
LINEAR = 120
"""Seconds, ten times what a run takes; in quadratic time it took many times that."""


def loop(states):
    """A Loop with this many states, all float32."""
    names = range(states)

    def each(written):
        return ", ".join(written.format(i) for i in names)

    return text.unchecked(
        f"""g (float[2] x, int64 m, bool k) => (float[{2 * states}] y) {{
        r = Relu (x)
        [loop] {each("l{}")} = Loop (m, k, {", ".join(["r"] * states)}) <
            body = b (int64 turn, bool go, {each("float[2] b{}")}) => (bool on, {each("float[2] o{}")}) {{
                on = Identity (go) {" ".join(f"o{i} = Relu (b{i})" for i in names)} }}>
        y = Concat <axis = 0> ({each("l{}")}) }}"""
    )


def test_units_of_a_node_share_what_it_makes():
    """The names of its outputs are stored once for all units; also when metadata is read."""
    proto = loop(20)
    rewritten = load(amp_rewrite.rewrite(proto, Options(level=Level.UNSAFE_FORCE_ALL)).model).model
    for found in (amp_rewrite.analyze(proto).decisions(), annotations.read(rewritten)):
        units = [decision for decision in found.all if decision.node == "loop"]
        assert len(units) == 20
        assert len({decision.outputs for decision in units}) == 1


@pytest.mark.slow
def test_ports_are_gathered_in_one_go():
    """A type variable for each of fifty thousand outputs."""
    groups = schema.layout("", "Loop", 17, 50_002, 50_000)
    assert groups is not None
    assert sum(len(group.outputs) for group in groups) == 50_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["explain loop", "--dry-run"])
def test_a_loop_with_very_many_states(name, tmp_path):
    """Five thousand states, by each command that counts or decides."""
    onnx.save(loop(5_000), tmp_path / "m.onnx")
    first, *rest = name.split()
    line = [sys.executable, "-m", "amp_rewrite", first, str(tmp_path / "m.onnx"), *rest]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=LINEAR, check=False)
    assert done.returncode == 0, done.stderr
