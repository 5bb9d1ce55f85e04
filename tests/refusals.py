"""Calls that must be refused with an error of ours."""

import pytest

from amp_rewrite.errors import AmpRewriteError


def refusal(call, *arguments, **fields):
    """The one line of the error of ours that a call ends with."""
    with pytest.raises(AmpRewriteError) as caught:
        call(*arguments, **fields)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 300
    return line
