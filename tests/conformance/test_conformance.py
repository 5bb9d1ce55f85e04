"""onnx's backend test suite, every case: at the defaults, and with all in half that the types allow."""

from collections import Counter

import pytest

from amp_rewrite import measure_coverage
from amp_rewrite.policy.options import Level, Options
from tests.conformance import cases as suite
from tests.conformance.judging import Outcome, judge

pytest.importorskip("onnxruntime")
DEFAULTS = Options(check=False)
FORCED = Options(check=False, level=Level.UNSAFE_FORCE_ALL)
_LARGE = "inputs near 10000, where half has steps of 8"
_STEEP = "near pi / 2 the rounding of x alone moves the tangent by a hundredth"
_RANDOM = "random weights, with activations far beyond 65504"
BEYOND_HALF = {
    "test_dynamicquantizelinear_expanded": "a quotient at the edge between two integers",
    "test_logsoftmax_large_number": _LARGE,
    "test_logsoftmax_large_number_expanded": _LARGE,
    "test_logsoftmax_large_number_expanded_ver18": _LARGE,
    "test_reduce_prod_default_axes_keepdims_example": "12! is 479001600, beyond 65504",
    "test_softmax_large_number": _LARGE,
    "test_softmax_large_number_expanded": _LARGE,
    "test_softmax_large_number_expanded_ver18": _LARGE,
    "test_tan": _STEEP,
    "real/test_bvlc_alexnet": _RANDOM,
    "real/test_inception_v1": _RANDOM,
    "real/test_resnet50": _RANDOM,
    "real/test_squeezenet": _RANDOM,
    "real/test_vgg19": _RANDOM,
    "real/test_zfnet512": _RANDOM,
}
"""What is not close when it is forced, and the reason in its numbers."""

IN_HALF = 1118
"""How many of the single nodes compute in half when forced, at least: what all other tools reach together."""

FINE = {Outcome.GOOD, Outcome.UNCHANGED, Outcome.UNRUN}


@pytest.fixture(scope="module")
def node_cases():
    """Every case of one operator."""
    return suite.of_nodes()


@pytest.fixture(scope="module")
def model_cases():
    """Every case of a whole model."""
    return suite.of_models()


@pytest.fixture
def judged(runtime, capsys):
    """Judges cases, prints tables of outcomes and of reasons, and gives what became of each by name."""

    def _judged(title, cases, asked):
        found = {case.name: judge(case, asked, runtime) for case in cases}
        with capsys.disabled():
            print("", title, *_tables(found), sep="\n")  # noqa: T201 - the tables are what is asked for
        return found

    return _judged


def _tables(found):
    """How many came out how, why those that stay as they are do, and what is wrong with the others."""
    yield from _counted(case.outcome.value for case in found.values())
    yield f"of those that {Outcome.UNCHANGED.value}:"
    yield from _counted(case.why for case in found.values() if case.outcome is Outcome.UNCHANGED)
    yield from (f"{name}: {case.outcome.value}: {case.why}" for name, case in wrong(found).items())


def _counted(words):
    return (f"{count:>6} {word}" for word, count in Counter(words).most_common())


def wrong(found):
    """What is neither good nor left alone for a reason."""
    return {name: case for name, case in found.items() if case.outcome not in FINE}


@pytest.mark.slow
@pytest.mark.parametrize("rooms", ["node_cases", "model_cases"])
def test_all_at_the_defaults(rooms, judged, request):
    """Every case is converted, valid, stable, loaded, and its outputs are close."""
    found = judged(f"{rooms}, at the defaults", request.getfixturevalue(rooms), DEFAULTS)
    assert wrong(found) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("rooms", "least"), [("node_cases", IN_HALF), ("model_cases", 114)])
def test_all_when_everything_is_forced(rooms, least, judged, request):
    """The same with all in half that the types allow, but for those whose numbers half cannot hold."""
    found = judged(f"{rooms}, all forced", request.getfixturevalue(rooms), FORCED)
    far = {name for name, case in found.items() if case.outcome is Outcome.FAR}
    assert far == wrong(found).keys() == found.keys() & BEYOND_HALF
    good = sum(case.outcome is Outcome.GOOD for case in found.values())
    assert good + len(far) >= least


@pytest.mark.slow
def test_every_case_is_counted(node_cases):
    """Coverage knows no case that it fails on, and counts each node of it once."""
    for case in node_cases:
        found = measure_coverage(case.proto)
        assert found.nodes.total == sum(row.nodes.total for row in found.rows) == len(found.node_list), (
            case.name
        )
