"""Upper bounds of the largest singular value of a matrix.

Gram iteration (Delattre et al., "Efficient bound of Lipschitz constant for convolutional layers by Gram
iteration", ICML 2023): with G = W'W, four times G <- G'G, the Frobenius norm of G bounds its largest singular
value from above, and its 2^5-th root that of W. Power iteration bounds it from below, and proves nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_STEPS = 4
_SAFETY = 1 + 2.0**-20
"""For rounding in float64: a step of matrices below 2^11 rows errs by at most n * 2^-53 of the squared
Frobenius norm, which is at most n times the squared spectral norm, so by less than 2^-30 of what it bounds
(Higham, section 3.5); the roots that follow halve it each time.
"""

Matrix = NDArray[np.float64]


def of_gram(gram: Matrix) -> float:
    """A bound of the largest singular value of W from W'W."""
    size = float(np.linalg.norm(gram))
    if not math.isfinite(size):
        return math.inf
    logarithm, weight = 0.0, 1.0
    for _ in range(_STEPS):
        if size == 0:
            return 0.0
        gram = gram / size
        logarithm += weight * math.log(size)
        gram, weight = gram @ gram, weight / 2
        size = float(np.linalg.norm(gram))
    largest = math.exp(logarithm + weight * math.log(size)) if size else 0.0
    return math.sqrt(largest * _SAFETY)
