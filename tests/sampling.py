"""Which cases of a long table run by default."""

import pytest


def every(step, cases, name=str):
    """The cases as parameters: one of `step` runs by default, the others in the slow run."""
    return [
        pytest.param(case, id=name(case), marks=pytest.mark.slow if number % step else ())
        for number, case in enumerate(cases)
    ]
