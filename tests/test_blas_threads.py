"""NumPy's products of matrices on one thread, where many small ones are needed."""

import numpy as np
from threadpoolctl import threadpool_info

from amp_rewrite.bounds import spectral_norm
from amp_rewrite.demo import network
from amp_rewrite.pipeline import analyze
from amp_rewrite.process import blas_threads


def _threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_one_thread_within_the_context_and_as_many_as_before_behind_it():
    """NumPy's BLAS is found, and has its threads back, after an exception too."""
    before = _threads()
    assert before
    try:
        with blas_threads.single():
            assert set(_threads()) == {1}
            raise InterruptedError
    except InterruptedError:
        assert _threads() == before


def test_gram_matrices_are_multiplied_on_one_thread(monkeypatch):
    """Bounds of weights do not wait for threads that a busy machine does not run."""
    seen, norm = [], np.linalg.norm

    def watched(matrix):
        seen.extend(_threads())
        return norm(matrix)

    monkeypatch.setattr(spectral_norm.np.linalg, "norm", watched)
    analyze(network()).ranges()
    assert set(seen) == {1}
