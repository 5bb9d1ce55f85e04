"""What an earlier rewrite saw in runs holds in a second one, which may not run the model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from amp_rewrite import Options, Pins, analyze, observe, rewrite, tune
from amp_rewrite.cli.commands import main
from amp_rewrite.demo import feeds, network
from amp_rewrite.rewriting.annotations import KEY
from tests import text

GRAPH = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) <float[4, 4] w, float[4, 4] v> {
    [large] a = MatMul (x, w)  [small] b = MatMul (a, v)  [last] y = Tanh (b)
    [other] z = MatMul (x, v) }"""
WEIGHTS = {"w": np.full((4, 4), 300, np.float32), "v": np.eye(4, dtype=np.float32) / 100000}
SAMPLES = [{"x": np.full((2, 4), 100, np.float32)}]


@pytest.fixture(scope="module")
def proto():
    """A product whose values leave the range of float16, and no stored number that would say so."""
    return text.model(GRAPH, WEIGHTS)


@pytest.fixture(scope="module")
def once(proto):
    """Its result after a run that showed it."""
    return rewrite(proto, observed=observe(proto, SAMPLES)).model


def kept(model, options=None):
    """The nodes that an analysis keeps in float32."""
    return {d.node for d in analyze(model, options).decisions().all if not d.is_half and d.node}


def test_what_was_seen_is_kept(proto, once):
    """The second rewrite changes nothing, and says for what."""
    assert "large" not in kept(proto)
    assert "large" in kept(once)
    again = rewrite(once)
    assert again.model.SerializeToString() == once.SerializeToString()
    assert (again.report.earlier > 0, again.report.observed) == (True, 0)


def test_what_a_search_found_is_kept():
    """So are the nodes whose rounding moves the outputs too far."""
    found = tune(network(), feeds(), max_error=2e-4, prefer="flops")
    assert found.kept
    once = rewrite(network(), replay=found.plan)
    again = rewrite(once.model)
    assert again.report.earlier == once.report.sensitive > 0
    assert again.model.SerializeToString() == once.model.SerializeToString()


def test_the_user_decides_all_the_same(once):
    """A pin outranks what was seen, in the second rewrite as in the first."""
    assert "large" not in kept(once, Options(pins=Pins(force_half="large")))


def test_without_metadata_nothing_is_known(proto):
    """A result that carries no decisions is a model like any other."""
    bare = rewrite(proto, Options(metadata=False), observed=observe(proto, SAMPLES)).model
    assert "large" not in kept(bare)


@pytest.mark.parametrize("damage", ["{", "eJwDAAAAAAE="])
def test_damaged_decisions_hold_nothing(once, damage):
    """They are warned of, and the rewrite goes on without."""
    broken = type(once).FromString(once.SerializeToString())
    next(entry for entry in broken.metadata_props if entry.key == KEY).value = damage
    again = rewrite(broken)
    assert again.report.earlier == 0
    assert any("damaged" in warning for warning in again.report.warnings)


def test_the_command_says_so(once, tmp_path):
    """A line counts the units, and the next command reads their reasons in the model itself."""
    path = tmp_path / "once.onnx"
    path.write_bytes(once.SerializeToString())
    told = CliRunner().invoke(main, [str(path), "--skip=verify", "-v"])
    assert told.exit_code == 0
    assert "for what an earlier rewrite of this model saw in runs" in told.output
    assert f"amp-rewrite explain {path}" in told.output
    assert "--save plan" not in told.output
    CliRunner().invoke(
        main, [str(path), "--skip=verify", "--dry-run", "--json", str(tmp_path / "report.json")]
    )
    assert json.loads((tmp_path / "report.json").read_text())["earlier"] > 0
