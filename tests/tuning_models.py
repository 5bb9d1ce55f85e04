"""A model of which the plan is searched for."""

import numpy as np

from tests import text

OFFSET = """g (float[8, 64] x) => (float[8, 64] y)
<float[64, 64] w, float[64, 64] v, float[64] offset, float[8, 8] average> {
  [front] a = MatMul (x, w)
  [shift] b = Add (a, offset)
  [mean] c = MatMul (average, b)
  [centre] d = Sub (b, c)
  [middle] e = MatMul (d, v)
  [squash] f = Tanh (e)
  [back] y = MatMul (f, v)
}"""
"""Half loses what is beside an offset of 40 that is subtracted again; all else is exact enough. The mean is a
product, which no rule looks through.
"""


def offset(width=64):
    """The model, and a sample; half pays for its products only where it is wide (PAYS)."""
    draw = np.random.default_rng(0)
    weights = {
        "w": (draw.normal(size=(width, width)) / width).astype(np.float32),
        "v": (draw.normal(size=(width, width)) / width**0.5).astype(np.float32),
        "offset": np.full(width, 40.0, np.float32),
        "average": np.full((8, 8), 1 / 8, np.float32),
    }
    sample = {"x": draw.normal(size=(8, width)).astype(np.float32)}
    return text.model(OFFSET.replace("64", str(width)), weights), sample


def sample(width=64):
    """The sample of the model."""
    return offset(width)[1]
