"""The evidence for a unit's kind, as data: the authority, the reason, and the value and numbers behind it.

`policy.reasons` renders it as text. The code behind a sentence is what names its `Reason`.
"""

from __future__ import annotations

import enum

import msgspec


class Authority(enum.Enum):
    """The authorities that decide on a unit, highest first: a lower one never overrules a higher one.

    SCHEMA: the only valid type. PIN: the user, of a node. TRAINING: the parts of a train
    step that need float32. OVERRIDE: the user, of operators. RUNTIME_BUG: a runtime would refuse the result,
    or crash on it. FORCE_ALL: the level that forces all that the types allow. RANGE: the stored values, and
    bounds that follow from them. QUANTISED: regions that a runtime recognises by their float32 types.
    OBSERVATION: values observed in a run. LEVEL: a level that treats lists differently. POLICY: a precision
    policy. TARGET: the kernels of the target. IDIOM: the operator that a subgraph spells out. PROOF: bounds
    of values for every input, or what data of the user show of them, which free operators that a list denies
    for their range. LIST: an
    operator list. PREDICTION: times predicted for a device; it only ever moves units from half to float32.
    """

    SCHEMA = "schema"
    PIN = "pin"
    TRAINING = "training"
    OVERRIDE = "override"
    RUNTIME_BUG = "runtime bug"
    FORCE_ALL = "force-all"
    RANGE = "range"
    QUANTISED = "quantised region"
    OBSERVATION = "observation"
    LEVEL = "level"
    POLICY = "policy"
    TARGET = "target"
    IDIOM = "idiom"
    PROOF = "proof"
    LIST = "list"
    PREDICTION = "prediction"

    def outranks(self, other: Authority) -> bool:
        """Return whether this authority prevails over the other."""
        return _RANK[self] < _RANK[other]


_RANK = {authority: rank for rank, authority in enumerate(Authority)}

OF_FINDINGS = frozenset(
    (
        Authority.TRAINING,
        Authority.RUNTIME_BUG,
        Authority.RANGE,
        Authority.QUANTISED,
        Authority.OBSERVATION,
    )
)
"""The authorities that only findings have, the results of analyses on single units."""


class Reason(enum.Enum):
    """The reason behind a decision, one member for each statement about a unit."""

    # the schema
    UNKNOWN_OPERATOR = "unknown operator"
    NO_HALF_TYPE = "no half type"
    KEEPS_TYPE = "keeps its type"
    OPSET_WITHOUT_HALF = "opset without half"
    # the user
    PINNED = "pinned"
    ASKED = "asked for"
    # train steps
    LOSS_REGION = "loss region"
    SCALING = "scaling"
    OPTIMISER = "optimiser"
    # faults of runtimes
    FAULT = "fault"
    # values
    OVERFLOW = "overflow"
    ROUNDED = "rounded"
    ABSORPTION = "absorption"
    INTEGER = "integer"
    TO_ANGLE = "to an angle"
    SPECTRUM = "spectrum"
    ACCUMULATED = "accumulated"
    QUANTISED_REGION = "quantised region"
    OBSERVED_OVERFLOW = "observed overflow"
    SENSITIVE = "sensitive"
    FAINT_OUTPUT = "faint output"
    DECLARED_OVERFLOW = "declared overflow"
    PROVEN_TAME = "proven tame"
    OBSERVED_IN_RANGE = "observed in range"
    # levels, targets, lists
    LEVEL = "level"
    FINAL_SOFTMAX = "final softmax"
    NO_KERNEL = "no kernel"
    WRITTEN_OUT = "written out"
    LONG_SUM = "long sum"
    CAST = "cast"
    NOT_LISTED = "not listed"
    LISTED = "listed"
    # predicted times
    ISLAND = "island"
    GATED = "gated"


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ground of a decision on a unit: its authority, its reason, and the facts, where there are any.

    `subject` names a value, a pattern, an attribute, a list, a target or a device. `number` is the measured
    number and `limit` the one it is compared with. `half` names the half type, and
    `text` is the sentence of a list, a runtime or a level. `nodes` and `casts` count those
    of a part of the model.
    """

    authority: Authority
    reason: Reason
    subject: str = ""
    number: float | None = None
    limit: float | None = None
    half: str = ""
    text: str = ""
    nodes: int | None = None
    casts: int | None = None
