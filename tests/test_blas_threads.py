"""NumPy's products of matrices on one thread, where many small ones are needed."""

import pytest
from threadpoolctl import threadpool_info

from amp_rewrite.process import blas_threads


def _threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_one_thread_within_the_context_and_as_many_as_before_behind_it():
    """NumPy's BLAS is found, and has its threads back, after an exception too."""
    before = _threads()
    assert before
    with blas_threads.single():
        assert set(_threads()) == {1}
    assert _threads() == before
    with pytest.raises(ZeroDivisionError), blas_threads.single():
        1 / 0  # noqa: B018
    assert _threads() == before


def test_contexts_of_several_threads_overlap():
    """The first to end does not restore what the other still needs, and the last one does."""
    before, first, second = _threads(), blas_threads.single(), blas_threads.single()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(_threads()) == {1}
    second.__exit__(None, None, None)
    assert _threads() == before
