"""A share of the trials of tests/fuzz.py; all of them: python -m tests.fuzz --count 10000."""

import importlib.util

import pytest

from tests import fuzz

FEW = 40
"""What fits into a quarter of a minute on two cores."""


@pytest.mark.slow
def test_mutated_models():
    """Each is rewritten, or refused in one line; nothing is left behind, and nothing that runs is refused."""
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("onnxruntime says which models a runtime takes")
    assert [trial for trial in fuzz.run(range(FEW), jobs=1) if trial.fault] == []


@pytest.mark.slow
def test_a_trial_is_known_by_its_number():
    """The same number gives the same model, in whatever process."""
    first, again = (fuzz.Trials(seed=5) for _ in range(2))
    assert first.damaged(7) == again.damaged(7) != first.damaged(8)
