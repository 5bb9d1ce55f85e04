"""Models in files and in memory, for the tests of reading and writing."""

import numpy as np
import onnx
import pytest

from amp_rewrite import rewrite
from amp_rewrite.errors import ModelError
from tests import text

TEXT = """g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w> { h = MatMul(x, w)  y = Relu(h) }"""
LARGE = 700
"""A square of this side is converted when it is written, not before: see editing.LAZY_FROM."""


@pytest.fixture
def model():
    """A small model that is rewritten."""
    return text.model(TEXT)


@pytest.fixture
def external(tmp_path):
    """The path of a model whose weights, larger than a mebibyte, lie in `m.onnx.data` beside it."""
    folder = tmp_path / "external"
    folder.mkdir()
    weights = np.random.default_rng(0).standard_normal((LARGE, LARGE), np.float32)
    proto = text.model(
        "g (float[1, 700] x) => (float[1, 700] y) <float[700, 700] w> { y = MatMul(x, w) }",
        {"w": weights},
    )
    save_external(proto, folder / "m.onnx", "m.onnx.data")
    return folder / "m.onnx"


def save_external(proto, path, location):
    """Writes a model with all its initializers in another file."""
    onnx.save(proto, path, save_as_external_data=True, location=location, size_threshold=0)


def names(folder):
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def line(caught):
    """The error as it is printed: one line that says what would help."""
    printed = str(caught.value)
    assert "\n" not in printed
    assert caught.value.remedy
    return printed


def refused(source, **where):
    """The one line with which a source is refused."""
    with pytest.raises(ModelError) as caught:
        rewrite(source, **where)
    return line(caught)
