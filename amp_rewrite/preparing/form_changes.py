"""What was changed of a model's form before it was analysed, as data."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FormChangeKind(enum.Enum):
    """What happened to a part of a model; what the model computes stays the same.

    OPSET_RAISED: the opset, from `before` to `after`. FOLDED: a node that depends on stored values alone was
    computed. MERGED: a BatchNormalization went into the weights of `into`. MAX_AND_MIN: a Clip is written so.
    RECIPROCAL: a Reciprocal is written as a division. SQUARE: a product of a value with itself is written as
    its power of 2. RANK: a stored weight took the rank of the data, from `before` to `after`.
    """

    OPSET_RAISED = "opset raised"
    FOLDED = "folded"
    MERGED = "merged"
    MAX_AND_MIN = "max and min"
    RECIPROCAL = "reciprocal"
    SQUARE = "square"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class FormChange:
    """A change of one part of a model's form.

    `node` is the name by which a user finds the part (policy.node_patterns.pinned_as), empty where it is the
    whole model; `into` names the node that does its work now. `before` and `after` are numbers that changed.
    """

    kind: FormChangeKind
    node: str = ""
    into: str = ""
    before: int = 0
    after: int = 0
