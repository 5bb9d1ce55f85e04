"""The golden results of tools/goldens.py: what is recorded, and how a difference is printed."""

import importlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from amp_rewrite.demo import feeds, network

pytest.importorskip("onnxruntime")
TOOLS = Path(__file__).parents[1] / "tools"
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x) => (float[4] y) <float w = {1}, float[4] v> { v = Add (x, w) y = Relu (v) }
"""

PRINTED = """\
m
  graph (float16)
  counts (float16) -1 +1
      -Cast 1
      +Cast 3
  decisions (float16) -1 +1
      -Add 'a' | T | half | allow | fast
      +Add 'a' | T | full | deny | a sum
  failure (half-io) None -> ended with -11
1 of 3 results are identical; different: graph 1, counts 1, decisions 1, failure 1
units: half -> full 1
"""


@pytest.fixture
def tool(monkeypatch):
    """The modules of the tool, by name."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module


def test_hashes_tell_graph_types_and_stored_values_apart(tool):
    """Each sees its own part of a result, and none of them what we write into the metadata."""
    results = tool("golden_results")

    def changed(old="", new="", key=""):
        model = onnx.parser.parse_model(MODEL.replace(old, new))
        if key:
            onnx.helper.set_model_props(model, {key: "a record"})
        first = results.hashes(onnx.parser.parse_model(MODEL), {})
        second = results.hashes(model, {})
        return [name for name in results.HASHES if first[name] != second[name]]

    assert changed("{1}", "{2}") == ["values"]
    assert changed("float[4] v", "float[n] v") == ["types"]
    assert changed("Relu", "Tanh") == ["graph"]
    assert changed(key="amp_rewrite.rescaled") == []
    assert changed(key="author") == ["graph"]


def test_a_difference_is_printed_once_for_all_settings_that_have_it(tool, tmp_path, capsys):
    """Single values stand beside each other, lists show the lines that went and came, hashes only a name."""
    was = {"graph": "1", "counts": {"Cast": 1}, "decisions": [["Add 'a'", "T", "half", "allow", "fast"]]}
    now = {"graph": "2", "counts": {"Cast": 3}, "decisions": [["Add 'a'", "T", "full", "deny", "a sum"]]}
    for folder, record in (("old", was), ("new", now)):
        for setting in ("float16", "half-io"):
            (tmp_path / folder / "m").mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "m" / f"{setting}.json").write_text(json.dumps(record))
    (tmp_path / "new" / "m" / "half-io.json").write_text(json.dumps({"failure": "ended with -11"}))
    settings = ["float16", "half-io", "observed"]
    assert tool("goldens").compare(tmp_path / "old", tmp_path / "new", ["m"], settings)
    assert capsys.readouterr().out == PRINTED


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["results", "verdicts"])
def test_a_record_is_compared_with_another_run(mode, tool, tmp_path, monkeypatch, capsys):
    """Two runs of one commit are the same, and an edited record is different; damaged files are results."""
    goldens, shared, folder = tool("goldens"), tmp_path / "shared", tmp_path / "goldens"
    for each in ("models", "cases", "tools"):
        (shared / each).mkdir(parents=True)
    (shared / "models" / "index.json").write_text("[]")
    onnx.save(network(), shared / "cases" / "demo.onnx")
    np.savez(shared / "cases" / "demo.npz", **feeds())
    (shared / "cases" / "damaged.onnx").write_bytes(b"no model")

    def ran(*flags):
        flags = ["goldens", folder, "--shared", shared, *flags, *["--verdicts"] * (mode == "verdicts")]
        monkeypatch.setattr("sys.argv", [str(each) for each in flags])
        return goldens.main(), capsys.readouterr().out

    assert ran("--update")[0] == 0
    code, said = ran()
    assert code == 0, said
    edited = folder / mode / "cases" / "demo" / {"results": "observed.json", "verdicts": "data.json"}[mode]
    record = json.loads(edited.read_text())
    assert "failure" not in record
    edited.write_text(json.dumps(record | {"explain": "else", "verdict": "FAIL"}))
    code, said = ran("--only", "cases/demo", "--settings", edited.stem)
    assert code == 1
    assert "0 of 1 results are identical" in said
