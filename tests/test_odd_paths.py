"""Paths that no file can have, at every door of Python."""

import numpy as np
import pytest

from amp_rewrite import analyze, emulate, measure_coverage, observe, rewrite
from amp_rewrite.errors import AmpRewriteError, OptionError, OutputError
from tests import text

DOORS = (rewrite, analyze, emulate, measure_coverage, lambda path: observe(path, SAMPLES))
SAMPLES = [{"x": np.ones((4, 4), np.float32)}]
each_path = pytest.mark.parametrize(
    "path", ["", ".", "/", "a\0b", "x" * 5000], ids=["empty", "here", "root", "null", "long"]
)


@each_path
@pytest.mark.parametrize("door", DOORS)
def test_a_path_of_no_model(door, path):
    """One line says what is wrong with it."""
    with pytest.raises(AmpRewriteError) as caught:
        door(path)
    assert "\n" not in str(caught.value)


@each_path
def test_a_path_of_no_result(tmp_path, path):
    """It is refused before anything is written."""
    (tmp_path / "m.onnx").write_bytes(MODEL.SerializeToString())
    with pytest.raises((OutputError, OptionError)):
        rewrite(tmp_path / "m.onnx", output=path)
    assert [made.name for made in tmp_path.iterdir()] == ["m.onnx"]


MODEL = text.model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { y = MatMul(x, w) }")
