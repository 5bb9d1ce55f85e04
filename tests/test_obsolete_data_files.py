"""Which files a model refers to. What becomes of those of a replaced model is in obsolete.transcript."""

import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from amp_rewrite import rewrite
from amp_rewrite.model import external_data
from tests import text
from tests.model_files import BESIDE, saved

__all__ = ["saved"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all files")
def test_data_that_an_unreadable_model_may_refer_to_stays(saved):
    """Nobody can know, and a warning says so."""
    out = rewrite(saved, BESIDE, output=saved.with_name("out.onnx")).model
    out.with_name("secret.onnx").write_bytes(b"\x08")
    out.with_name("secret.onnx").chmod(0)
    (warning,) = text.complaints(rewrite(saved, BESIDE, output=out))
    assert warning.endswith(
        "stays beside the result: it cannot be known whether others need it (Permission denied)"
    )
    assert out.with_name("out.onnx.data").is_file()


def test_tensors_everywhere(tmp_path):
    """Files of initializers, attributes, sparse tensors, bodies and functions are found."""
    places = iter("abcdefg")

    def placed(tensor):
        onnx.external_data_helper.set_external_data(tensor, next(places))
        tensor.ClearField("raw_data")
        return tensor

    def tensor(dtype=np.float32):
        return placed(numpy_helper.from_array(np.ones(2, dtype), "t"))

    constant = helper.make_node("Constant", [], ["c"], value=tensor())
    body = helper.make_graph([], "b", [], [], [tensor()])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=body)
    function = helper.make_function("f", "F", [], ["c"], [constant], [helper.make_opsetid("", 17)])
    graph = helper.make_graph([constant, branch], "g", [], [], [tensor()])
    graph.sparse_initializer.append(helper.make_sparse_tensor(tensor(), tensor(np.int64), [4]))
    model = helper.make_model(graph, functions=[function])
    model.training_info.add().algorithm.initializer.append(tensor())
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert {path.name for path in external_data.referenced_by(tmp_path / "m.onnx")} == set("abcdef")


def test_what_is_no_model_names_nothing(tmp_path):
    """Any file may be replaced by a result."""
    for content in (b"", b"location", b"\x08\x01 location", b"PK\x03\x04 location"):
        (tmp_path / "out").write_bytes(content)
        assert external_data.referenced_by(tmp_path / "out") == frozenset()
    assert external_data.referenced_by(tmp_path / "missing") == frozenset()
