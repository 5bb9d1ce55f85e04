"""What is known of values with the same elements after a run: how they are treated, and what follows."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from amp_rewrite.running import followers
from amp_rewrite.running.followers import Follower


class Treatment(enum.Enum):
    """Which numbers a value gives.

    REDUCED: its extremes, and where it is needed a sum, to know whether there is a NaN. COUNTED: extremes and
    counts of a value all of which float16 holds. SEPARATED: counts of any value, and the extremes of its
    finite elements. HANDED_OUT: none, the value is an output.
    """

    REDUCED = "reduced"
    COUNTED = "counted"
    SEPARATED = "separated"
    HANDED_OUT = "handed out"


@dataclass(frozen=True, slots=True)
class Slot:
    """Values with the same elements, how they are treated, and the number of their sums.

    `followers` are other values, whose extremes follow.
    """

    names: list[str]
    treatment: Treatment
    sums: int = 0
    followers: list[Follower] = field(default_factory=list[Follower])

    @property
    def all_names(self) -> list[str]:
        """Those of the followers too."""
        return [*self.names, *followers.names(self.followers)]
