"""What a search emulates, and what it then says of the real result."""

import dataclasses
import math

import pytest

from amp_rewrite.demo import feeds, network

pytest.importorskip("onnxruntime")
from amp_rewrite.cli import next_steps
from amp_rewrite.rewriting.report import Counts
from amp_rewrite.running.verdict import Output
from amp_rewrite.tuning import tune as confirming
from amp_rewrite.tuning.search import Point
from amp_rewrite.tuning.tune import tune

TARGET = 1e-3


@pytest.fixture(scope="module")
def tuned():
    """A search's result, to be changed."""
    return tune(network(), feeds(), max_error=TARGET)


def with_error(tuned, error):
    """The same with an error, which passes up to TARGET."""
    (output, *_) = tuned.verdict.outputs
    broken = ("too far",) if error > TARGET else ()
    judged = dataclasses.replace(output, error=error, broken=broken)
    assert isinstance(judged, Output)
    return dataclasses.replace(tuned, verdict=dataclasses.replace(tuned.verdict, outputs=(judged,)))


@pytest.mark.parametrize("sensitive", [0, 3])
def test_nothing_is_said_to_be_within_that_is_not(tuned, sensitive):
    """The line of the search is that of the verdict."""
    failed = with_error(tuned, 1.1e-3)
    report = dataclasses.make_dataclass("Report", ["sensitive", "nodes"])(sensitive, Counts(1, 1, 0, 0))
    (line,) = confirming.lines(failed, report, is_taken=True)
    assert line.text.startswith("no plan was found")
    assert ("the nearest has an error of 1.1e-03" in line.text) == bool(sensitive)
    (line,) = confirming.lines(with_error(tuned, 9e-4), report, is_taken=True)
    assert line.text.startswith("within 1.0e-03, predicted ")


def test_a_bound_by_another_name_is_named(tuned):
    """A relative L2 error is not given out as the error of the verdict, which may be much smaller."""
    failed = dataclasses.replace(with_error(tuned, 1.1e-3), bound="relative_l2")
    report = dataclasses.make_dataclass("Report", ["sensitive", "nodes"])(3, Counts(1, 1, 0, 0))
    (line,) = confirming.lines(failed, report, is_taken=True)
    reached = failed.verdict.outputs[0].metrics.relative_l2
    assert line.text.startswith("no plan was found within relative_l2 1.0e-03; the nearest has relative_l2 ")
    assert f"relative_l2 {reached:.1e} (" in line.text


@pytest.mark.parametrize(
    ("errors", "bound", "offered"),
    [
        # of what was measured, that of the default plan needs no search
        ((5.04e-3, 2e-3, 0.0), "error", "5.5e-03"),
        ((5.04e-3, 2e-3, 0.0), "relative_l2", ""),  # which was measured by another metric
        # a default plan that is far off, or makes what is not finite, is no reason for a looser bound
        ((1.0,), "error", ""),
        ((math.inf,), "error", ""),
    ],
)
def test_the_looser_bound_that_is_offered(tuned, errors, bound, offered):
    """That of the default plan, or none."""
    points = tuple(Point(1.0, 9 - number, error, 1.5) for number, error in enumerate(errors))
    found = dataclasses.replace(with_error(tuned, 0.0), half=0, walked=points, bound=bound)
    assert next_steps.looser(found) == offered


@pytest.mark.parametrize(
    ("speedups", "gated", "said"),
    [
        ((0.5, 0.9), True, "float32 is fastest: the fastest plan that was found within 1.0e-03 is"),
        ((1.2, 0.9), True, "no plan within 1.0e-03 was found that is predicted to be faster than float32"),
        ((), True, "nothing in half was found within 1.0e-03"),
        ((0.5, 0.9), False, "nothing in half was found that passes"),
        ((), False, "nothing in half was found within 1.0e-03"),
    ],
)
def test_float32_as_the_answer_says_why(tuned, speedups, gated, said):
    """By what was measured within the target, if anything was; by speed only where that decided."""
    points = (Point(1.0, 9, 5e-3, 1.5), *(Point(1.0, 3, 5e-4, speedup) for speedup in speedups))
    found = dataclasses.replace(with_error(tuned, 0.0), half=0, speedup=1.0, walked=points)
    report = dataclasses.make_dataclass("Report", ["gated"])(gated)
    (line,) = confirming.lines(found, report, is_taken=True)
    assert line.text.startswith(said)
    assert "so the model stays as it is" in line.text
