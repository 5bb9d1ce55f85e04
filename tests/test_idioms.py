"""Norms that are written out: one decision for the whole pattern, Casts before and behind its statistics."""

import numpy as np
import pytest

from amp_rewrite import pipeline
from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.policy.options import Options, Pins
from tests import text

RMS = """two = Constant <value = float {2.0}> ()
  e = Constant <value = float {1e-6}> ()
  q = Pow (a, two)
  m = ReduceMean <axes = [-1]> (q)
  p = Add (m, e)
  s = Sqrt (p)
  n = Div (a, s)
  z = Mul (n, w)"""
WEIGHTS = {"w": np.linspace(0.5, 1.5, 8, dtype=np.float32), "b": np.linspace(-1, 1, 8, dtype=np.float32)}


def norm(body):
    """A model with a norm between two products."""
    return text.model(
        f"g (float[2, 4, 8] x) => (float[2, 4, 8] y) <float[8, 8] v, float[8] w, float[8] b> "
        f"{{ a = MatMul (x, v) {body} y = MatMul (z, v) }}",
        WEIGHTS,
    )


def parts(analysis):
    """The part of each node of an idiom, by the node's output."""
    graph = analysis.graph
    return {graph.units[unit].node.outputs[0].name: spelled.part for unit, spelled in graph.spelled.items()}


def halves(analysis):
    """The outputs of nodes that are half."""
    graph, painting = analysis.graph, analysis.painting
    return {unit.node.outputs[0].name for unit in graph.units if painting.is_half(unit.index)}


def test_statistics_are_float32_and_weights_half():
    """The Cast back stands before the weight; what is float32 makes nothing suspect."""
    analysis = pipeline.analyze(norm(RMS))
    assert parts(analysis) == {
        **dict.fromkeys("qmps", Part.INNER),
        "n": Part.RESULT,
        "z": Part.OUTER,
    }
    assert halves(analysis) == {"a", "z", "y"}


@pytest.mark.parametrize(
    ("options", "half"),
    [
        (Options(pins=Pins(keep_full="n")), {"a", "y"}),
        (Options(pins=Pins(keep_full="z")), {"a", "y"}),
        (Options(level="tensor-cores-only"), {"a", "y"}),
        (Options(lists="tensorflow", follow=False), {"a", "y"}),
    ],
)
def test_what_is_asked_for_counts(options, half):
    """A pin, a level, and Grappler's own lists decide an idiom."""
    model = norm(RMS)
    for node in model.graph.node:
        node.name = node.output[0]
    assert halves(pipeline.analyze(model, options)) == half
