"""External data in memory, and data that shrinks. What files say of it is in external.transcript."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_rewrite import rewrite
from amp_rewrite.model import external_data as external_module
from tests import text
from tests.model_files import LARGE, external, refused, save_external

__all__ = ["external"]


def test_a_tensor_without_a_folder_may_lie_anywhere(external):
    """An onnx_ir.Model whose tensors have full paths and no base folder is rewritten."""
    source = ir.from_proto(onnx.load(external))
    (value,) = source.graph.initializers.values()
    where, shape = external.with_name("m.onnx.data"), ir.Shape((LARGE, LARGE))
    value.const_value = ir.ExternalTensor(
        where, 0, where.stat().st_size, ir.DataType.FLOAT, shape=shape, name="w"
    )
    (made,) = rewrite(source).model.graph.initializers.values()
    assert made.const_value.numpy().dtype == np.float16


@pytest.mark.parametrize("columns", [700, 701])
def test_data_that_shrinks_meanwhile(columns, tmp_path, monkeypatch):
    """A file truncated after it was checked is an error in one line, not a crash, whoever reads it first."""
    resolve, path = external_module.resolve, tmp_path / "m.onnx"
    stored = f"<float[700, {columns}] w>"
    source = f"g (float[1, 700] x) => (float[1, {columns}] y) {stored} {{ y = MatMul (x, w) }}"
    save_external(text.model(source), path, "m.onnx.data")

    def cut(model, path):
        found = resolve(model, path)
        path.with_name("m.onnx.data").write_bytes(b"short")
        return found

    monkeypatch.setattr(external_module, "resolve", cut)
    assert "it ends too early" in refused(path)
