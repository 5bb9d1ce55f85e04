"""onnxruntime's own schemas: asked of onnxruntime where it is installed, and read from a table."""

import importlib
import json
import sys
from importlib import resources

import pytest

from amp_rewrite.onnx_types import contrib_schemas, schema

MADE_WITH = "1.31.1"
"""The onnxruntime that contrib_schemas.json was written with."""


def test_the_table_is_what_onnxruntime_says():
    """With the onnxruntime that wrote it the stored table is up to date, to the letter."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if onnxruntime.__version__ != MADE_WITH:
        pytest.skip(f"the table is of onnxruntime {MADE_WITH}")
    path = resources.files("amp_rewrite.onnx_types") / "contrib_schemas.json"
    assert contrib_schemas.table() == path.read_text(encoding="utf-8")


@pytest.fixture
def without_onnxruntime(monkeypatch):
    """A process in which onnxruntime cannot be imported."""
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
def test_the_table_serves_where_onnxruntime_is_missing():
    """Schemas of com.microsoft are known without onnxruntime, and are the same."""
    with pytest.raises(ImportError):
        importlib.import_module("onnxruntime")
    groups = schema.layout("com.microsoft", "SkipLayerNormalization", 1, 4, 1)
    assert [(str(g.var), g.inputs, g.outputs) for g in groups] == [("T", (0, 1, 2, 3), (0,))]
    assert len(schema.known_operators("com.microsoft")) > 100


@pytest.mark.parametrize("error", [ImportError, AttributeError, OSError])
def test_an_onnxruntime_that_does_not_work_is_none(error, monkeypatch):
    """A build that cannot be loaded, or that has no schemas to give, leaves the table to answer."""

    def broken(name):
        raise error(name)

    monkeypatch.setattr(contrib_schemas.fork_safe, "import_module", broken)
    assert contrib_schemas.from_onnxruntime() == {}


def test_what_the_installed_onnxruntime_is_too_old_for_is_in_the_table(monkeypatch):
    """Operators come and go: the newest that the table has are known, and what is installed has the say."""
    rows = ({"since": 7, "inputs": [], "outputs": [], "types": {}},)
    monkeypatch.setattr(
        contrib_schemas, "_from_onnxruntime", lambda: {("com.microsoft", "FusedMatMul"): rows}
    )
    contrib_schemas.records.cache_clear()
    try:
        known = contrib_schemas.records()
        assert known["com.microsoft", "FusedMatMul"] == rows
        assert ("com.microsoft", "SkipLayerNormalization") in known
    finally:
        contrib_schemas.records.cache_clear()


def test_the_table_holds_versions_oldest_first():
    """Every operator has at least one version, the oldest first, with types that ONNX can name."""
    table = contrib_schemas.stored()
    assert {domain for domain, _ in table} == {"", "com.microsoft"}
    for versions in table.values():
        since = [version["since"] for version in versions]
        assert since == sorted(set(since))
        assert since
    text = json.dumps([version["types"] for versions in table.values() for version in versions])
    assert "tensor(float16)" in text
