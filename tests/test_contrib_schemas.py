"""Schemas of onnxruntime's own operators: from onnxruntime if it is installed, else from a table."""

import importlib
import json
import sys
from importlib import resources

import pytest

from amp_rewrite.onnx_types import contrib_schemas, schema

MADE_WITH = "1.32.0"
"""The onnxruntime that contrib_schemas.json was written with."""


def test_the_table_matches_onnxruntime():
    """With the onnxruntime that it was written with, the table is up to date, byte for byte."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if onnxruntime.__version__ != MADE_WITH:
        pytest.skip(f"the table is of onnxruntime {MADE_WITH}")
    path = resources.files("amp_rewrite.onnx_types") / "contrib_schemas.json"
    assert contrib_schemas.table() == path.read_text(encoding="utf-8")


@pytest.fixture
def without_onnxruntime(monkeypatch):
    """Makes the import of onnxruntime fail."""
    for name in [n for n in sys.modules if n.split(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    caches = (contrib_schemas.records, schema.find, schema.layout, schema.known_operators)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("without_onnxruntime")
def test_the_table_replaces_a_missing_onnxruntime():
    """Schemas of com.microsoft are known without onnxruntime, and are the same."""
    with pytest.raises(ImportError):
        importlib.import_module("onnxruntime")
    groups = schema.layout("com.microsoft", "SkipLayerNormalization", 1, 4, 1)
    assert [(str(g.var), g.inputs, g.outputs) for g in groups] == [("T", (0, 1, 2, 3), (0,))]
    assert len(schema.known_operators("com.microsoft")) > 100


@pytest.mark.parametrize("error", [ImportError, AttributeError, OSError])
def test_a_broken_onnxruntime_is_ignored(error, monkeypatch):
    """If a build cannot be loaded, or does not expose schemas, the table is used."""

    def broken(name):
        raise error(name)

    monkeypatch.setattr(contrib_schemas.importlib, "import_module", broken)
    assert contrib_schemas.installed() == {}


@pytest.mark.usefixtures("without_onnxruntime")
def test_the_installed_onnxruntime_takes_precedence_over_the_table(monkeypatch):
    """Operators that only the table has, since the installed version is older, are known as well."""
    rows = ({"since": 7, "inputs": [], "outputs": [], "types": {}},)
    monkeypatch.setattr(contrib_schemas, "installed", lambda: {("com.microsoft", "FusedMatMul"): rows})
    known = contrib_schemas.records()
    assert known["com.microsoft", "FusedMatMul"] == rows
    assert ("com.microsoft", "SkipLayerNormalization") in known


def test_the_table_holds_versions_oldest_first():
    """Every operator has at least one version, the oldest first, with types that ONNX can name."""
    table = contrib_schemas.stored()
    assert {domain for domain, _ in table} == {"", "com.microsoft", "com.microsoft.nchwc"}
    for versions in table.values():
        since = [version["since"] for version in versions]
        assert since == sorted(set(since))
        assert since
    text = json.dumps([version["types"] for versions in table.values() for version in versions])
    assert "tensor(float16)" in text
