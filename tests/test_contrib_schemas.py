"""Schemas of onnxruntime's own operators: from a table that onnxruntime wrote."""

import json
from importlib import resources

import pytest

from amp_rewrite.onnx_types import schema
from tools import contrib_schemas

MADE_WITH = "1.32.0"
"""The onnxruntime that contrib_schemas.json was written with."""


def test_the_table_matches_onnxruntime():
    """With the onnxruntime that it was written with, the table is up to date, byte for byte."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if onnxruntime.__version__ != MADE_WITH:
        pytest.skip(f"the table is of onnxruntime {MADE_WITH}")
    assert contrib_schemas.table() == contrib_schemas.TABLE.read_text(encoding="utf-8")


def test_schemas_of_com_microsoft_are_known():
    """An optional input is one of its type variable."""
    groups = schema.layout("com.microsoft", "SkipLayerNormalization", 1, 4, 1)
    assert [(str(g.var), g.inputs, g.outputs) for g in groups] == [("T", (0, 1, 2, 3), (0,))]
    assert len(schema.known_operators("com.microsoft")) > 100


def test_the_table_holds_versions_oldest_first():
    """Every operator has at least one version, the oldest first, with types that ONNX can name."""
    text = (resources.files("amp_rewrite.onnx_types") / "contrib_schemas.json").read_text("utf-8")
    table = json.loads(text)
    assert set(table) == {"", schema.CONTRIB, schema.BLOCKED}
    for versions in (versions for operators in table.values() for versions in operators.values()):
        since = [version["since"] for version in versions]
        assert since == sorted(set(since))
        assert since
    assert "tensor(float16)" in text
