"""Counts of numbers by binade: of stored numbers, and of what a run showed."""

import math

import numpy as np
import onnx_ir as ir
import pytest

from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.model import constants
from amp_rewrite.reporting import binades
from tests.text import model


def test_stored_numbers_are_counted_by_binade():
    """Each number counts in its binade; zeros and infinities do not count."""
    array = np.array([1.0, 1.5, -2.0, 0.0, np.inf, np.nan, 2.0**-30, 7e4], np.float32)
    proto = model("g (float[8] x) => (float[8] y) <float[8] w> { y = Add (x, w) }", {"w": array})
    held = constants.find(ir.from_proto(proto)).values()
    assert binades.of_stored(held) == {0: 2, 1: 1, -30: 1, 16: 1}


@pytest.mark.parametrize("number", [1.0, 1.99, 2.0, 65504.0, 2.0**-24, 1e-30])
def test_what_a_run_showed_is_counted_by_its_largest_number(number):
    """A value counts once, in the binade of its largest number."""
    assert binades.of_values({"v": Extremes(1e-31, number)}) == {math.floor(math.log2(number)): 1}
