"""What a search goes from and to: what is preferred, its plans and its steps, and what it came to."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from amp_rewrite.colouring.painting import Painting
from amp_rewrite.costs.prediction import Prediction
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.running.verdict import Verdict


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


@dataclass(frozen=True, slots=True)
class Tuned:
    """A plan, and what it rests on.

    `verdict` is that of the model which the plan makes, on all samples. `target` is the error that the search
    stayed within (Metrics.error), and `noise` what float32 differs from itself by, optimised in another way.
    `kept` are the nodes that the search keeps in float32, and `sensitivity` the error that rounding adds at
    nodes, by name, as far as it was measured apart. `runs` counts how often all samples were run for the
    search, and `walked` has the plans that were measured, in their order: the default one first, with the
    error of its result. `seconds` is the time that is predicted for the plan at large sizes, as those of
    `walked` are, `half` the number of
    its units in half, 0 where float32 itself is the answer, and `speedup` how many times as fast as float32
    it is predicted to be at the sizes that the model has. `bound` names the tolerance that the target is of.

    Examples:
        >>> from amp_rewrite import tune
        >>> from amp_rewrite.demo import feeds, network
        >>> tuned = tune(network(), feeds(), max_error=1e-3)
        >>> tuned.is_met, tuned.kept
        (True, ())
    """

    plan: SavedPlan
    verdict: Verdict
    target: float
    noise: float
    kept: tuple[str, ...]
    sensitivity: dict[str, float]
    sites: int
    runs: int
    walked: tuple[Point, ...]
    seconds: float
    half: int
    speedup: float
    bound: str = "error"

    @property
    def is_met(self) -> bool:
        """Whether the target is met, on all samples."""
        return self.verdict.ok

    @property
    def is_float32(self) -> bool:
        """Whether nothing is half, as what is within the error is predicted to be no faster than float32."""
        return not self.half

    @property
    def is_below_noise(self) -> bool:
        """Whether no plan can meet the target: float32 itself misses it."""
        return self.noise > self.target

    def to_json(self) -> dict[str, Any]:
        """This as JSON data, without the plan.

        Examples:
            >>> from amp_rewrite import tune
            >>> from amp_rewrite.demo import feeds, network
            >>> tune(network(), feeds()).to_json()["target"]
            0.01
        """
        names = "is_met is_float32 target noise kept sensitivity sites runs seconds half speedup".split()
        plain = {name: getattr(self, name) for name in names}
        walked = [asdict(point) for point in self.walked]
        return {**plain, "verdict": self.verdict.to_json(), "walked": walked}
