"""What a search goes from and to: what is preferred, the plans that it finds, and its steps."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from amp_rewrite.colouring.painting import Painting
from amp_rewrite.costs.model_costs import Prediction


class Prefer(enum.Enum):
    """What a plan that meets the target has as much of as it can: less predicted TIME, or FLOPS in half."""

    TIME = "time"
    FLOPS = "flops"


@dataclass(frozen=True, slots=True)
class Found:
    """A painting, the units that the search keeps in float32 for it, the sites that it rounds, its squared
    error as measured, its predicted seconds at large sizes, what is predicted at the sizes that the model
    has, and what the search makes least of: `is_refused` where float32 itself is preferred, then `cost`.
    """

    painting: Painting
    kept: tuple[int, ...]
    rounded: tuple[int, ...]
    squared: float
    seconds: float
    predicted: Prediction
    is_refused: bool
    cost: float

    @property
    def rank(self) -> tuple[bool, float]:
        """The less, the better."""
        return self.is_refused, self.cost


@dataclass(frozen=True, slots=True)
class Step:
    """What is known at a step of the search, for who watches it: its runs, and the best plan so far, with
    the values that it rounds, of how many.
    """

    runs: int
    error: float
    rounded: int
    sites: int


@dataclass(frozen=True, slots=True)
class Point:
    """A plan that was measured: its predicted seconds at large sizes, its units in half, its error, and how
    many times as fast as float32 it is predicted to be at the sizes that the model has.
    """

    seconds: float
    half: int
    error: float
    speedup: float


Watch = Callable[[Step], None]
