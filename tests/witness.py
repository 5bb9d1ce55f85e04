"""The second witness: WebGPU, where there is an adapter that computes in half."""

import functools

import pytest

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.running import witness_sessions


@functools.cache
def missing():
    """Why there is no witness here; empty where there is one."""
    try:
        witness_sessions.require()
    except AmpRewriteError as error:
        return str(error)
    return ""


def needs_witness():
    """Skips the test, saying why, where WebGPU does not work."""
    if missing():
        pytest.skip(missing())
