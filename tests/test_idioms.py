"""Norms that are written out: one decision for the whole pattern, Casts before and behind its statistics."""

import numpy as np
import pytest

from amp_rewrite import pipeline
from amp_rewrite.analysis.idioms.idiom import Part
from amp_rewrite.policy.entries import Kind
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


def norm(body, **stored):
    """A model with a norm between two products."""
    return text.model(
        f"g (float[2, 4, 8] x) => (float[2, 4, 8] y) <float[8, 8] v, float[8] w, float[8] b> "
        f"{{ a = MatMul (x, v) {body} y = MatMul (z, v) }}",
        {**WEIGHTS, **stored},
    )


def parts(analysis):
    """The part of each node of an idiom, by the node's output."""
    graph = analysis.graph
    return {graph.units[unit].node.outputs[0].name: spelled.part for unit, spelled in graph.spelled.items()}


def test_statistics_are_float32_and_weights_half():
    """The Cast back stands before the weight; what is float32 makes nothing suspect."""
    analysis = pipeline.analyze(norm(RMS))
    assert parts(analysis) == {
        **dict.fromkeys("qmps", Part.INNER),
        "n": Part.RESULT,
        "z": Part.OUTER,
    }
    assert text.values_in_half(analysis) == {"a", "z", "y"}


SPREAD = """m = ReduceMean <axes = [-1]> (a)
  d = Sub (a, m)
  mm = ReduceMean <axes = [-1], keepdims = 0> (a)
  mk = Unsqueeze (mm, last)
  dd = Sub (a, mk)
  q = Mul (dd, dd)
  r = ReduceMean <axes = [-1], keepdims = 0> (q)
  sizes = Shape (a)
  size = Gather <axis = 0> (sizes, two)
  c = Cast <to = 1> (size)
  t = Mul (r, c)
  l = Sub (c, one)
  v_ = Div (t, l)
  k = Unsqueeze (v_, last)
  s = Sqrt (k)
  p = Add (s, e)
"""
AROUND = """last = Constant <value_ints = [-1]> ()
  two = Constant <value_int = 2> ()
  one = Constant <value_float = 1.0> ()
  e = Constant <value_float = 1e-5> ()
"""
VIEWED = """rows = Constant <value_ints = [8, 8]> ()
  apart = Constant <value_ints = [2, 4, 1]> ()
  u = Reshape (a, rows)
  m = ReduceMean <axes = [-1]> (u)
  mm = Reshape (m, apart)
  whole = Shape (a)
  me = Expand (mm, whole)
  d = Sub (a, me)
  dd = Sub (u, m)
  q = Mul (dd, dd)
  r = ReduceMean <axes = [-1]> (q)
  k = Reshape (r, apart)
  s = Sqrt (k)
  p = Add (s, e)
  n = Div (d, p)
  z = Mul (n, w)"""


SHARED = """rows = Constant <value_ints = [2, 4, 1]> ()
  n_ = Constant <value_float = 8.0> ()
  axes = Constant <value_ints = [2]> ()
  mm = ReduceMean <axes = [2]> (a)
  dd = Sub (a, mm)
  q = Mul (dd, dd)
  r = ReduceMean <axes = [2], keepdims = 0> (q)
  k = Reshape (r, rows)
  t = ReduceSum <keepdims = 0> (a, axes)
  u = Reshape (t, rows)
  m = Div (u, n_)
  d = Sub (a, m)
  p = Add (k, e)
  s = Sqrt (p)
  n = Div (d, s)
  z = Mul (n, w)"""


@pytest.mark.parametrize(
    ("body", "half"),
    [
        (AROUND + SPREAD + "n = Div (d, p) i = Mul (w, n) z = Add (i, b)", {"a", "i", "z", "y"}),
        (AROUND + SPREAD + "i = Mul (w, d) n = Div (i, p) z = Add (n, b)", {"a", "z", "y"}),
        (AROUND + VIEWED, {"a", "z", "y"}),
        (AROUND + SHARED, {"a", "z", "y"}),
    ],
    ids=["deviation", "weight-before", "view", "sum"],
)
def test_a_standard_deviation_is_a_norm(body, half):
    """As PyTorch exports x.std(), over n - 1, of a second mean; a weight before; of a view, as in AdaIN; and
    torch.var_mean, whose mean is a sum over n.
    """
    model = norm(body)
    found = text.values_in_half(pipeline.analyze(model))
    assert found - {"sizes", "whole"} == half
    result = pipeline.rewrite(model)
    assert result.report.casts_added <= 4
    text.agree(model, result.model, 3e-2)


def test_a_sum_over_another_number_is_no_mean():
    """What is left of data without that is not centred, and no norm."""
    analysis = pipeline.analyze(norm((AROUND + SHARED).replace("8.0", "7.0")))
    assert not parts(analysis)


@pytest.mark.parametrize(
    ("quotient", "is_bounded"), [("n = Div (d, s)", True), ("i = Mul (d, w) n = Div (i, s)", False)]
)
def test_a_weight_before_the_quotient_is_no_part_of_its_bound(quotient, is_bounded):
    """A normalised value is at most the root of its length, and its square fits; not so times a weight."""
    centred = "o = ReduceMean <axes = [-1]> (a) d = Sub (a, o)"
    body = RMS.replace("Pow (a,", "Pow (d,").replace("n = Div (a, s)", quotient)
    body = body.replace("z = Mul (n, w)", "z = Pow (n, two)")
    found = text.values_in_half(
        pipeline.analyze(norm(f"{centred} {body}", v=np.full((8, 8), 0.1, np.float32)))
    )
    assert ("z" in found) == is_bounded


@pytest.mark.parametrize(
    ("options", "half"),
    [
        (Options(pins=Pins(keep_full="n")), {"a", "z", "y"}),
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
    assert text.values_in_half(pipeline.analyze(model, options)) == half


GROUPS = text.model(
    """g (float[1,4,4,4] x) => (float[1,4,4,4] y)
    <float[4,4,3,3] k, float[2] one, float[2] none, float[4,1,1] w, float[4,1,1] b> {
      grouped = Constant <value_ints = [0, 2, -1]> ()
      apart = Constant <value_ints = [1, 4, 4, 4]> ()
      a = Conv <pads = [1, 1, 1, 1]> (x, k)
      before = Reshape (a, grouped)
      norm = InstanceNormalization (before, one, none)
      after = Reshape (norm, apart)
      scaled = Mul (after, w)
      z = Add (scaled, b)
      y = Conv <pads = [1, 1, 1, 1]> (z, k)
    }"""
)
WHOLE = {"before", "norm", "after", "scaled", "z"}


def test_groups_as_channels_have_one_colour():
    """A GroupNormalization by way of an InstanceNormalization is half as a whole, or not at all."""
    analysis = pipeline.analyze(GROUPS)
    assert parts(analysis) == dict.fromkeys(WHOLE, Part.OUTER)
    assert text.values_in_half(analysis) == {"a", "y", *WHOLE}
    denied = Options(lists=Options().operator_lists().override(Kind.DENY, ["InstanceNormalization"]))
    assert text.values_in_half(pipeline.analyze(GROUPS, denied)) == {"a", "y"}
    text.agree(GROUPS, pipeline.rewrite(GROUPS).model)
