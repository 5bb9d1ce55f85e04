"""The evidence for a unit's kind: the authority, the reason, and the value and numbers behind it; and its
words, for terminal, JSON, plans and pages alike.

The code behind a sentence is what names its `Reason`.
"""

from __future__ import annotations

import enum

import msgspec

from amp_rewrite.text import plural


class Authority(enum.Enum):
    """The authorities that decide on a unit, highest first: a lower one never overrules a higher one.

    SCHEMA: the only valid type. PIN: the user, of a node. TRAINING: the parts of a train
    step that need float32. OVERRIDE: the user, of operators. RUNTIME_BUG: a runtime would refuse the result,
    or crash on it. FORCE_ALL: the level that forces all that the types allow. RANGE: the stored values, and
    bounds that follow from them. QUANTISED: regions that a runtime recognises by their float32 types.
    OBSERVATION: values observed in a run. LEVEL: a level that treats lists differently. POLICY: a precision
    policy. TARGET: the kernels of the target. IDIOM: the operator that a subgraph spells out. PROOF: bounds
    of values for every input, or what data of the user show of them, which free operators that a list denies
    for their range. LIST: an operator list. PREDICTION: times predicted for a device; it only ever moves
    units from half to float32.
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
    """The reason behind a decision, one member for each statement about a unit: its name in files, and its
    words, which finish the sentence "stays float32: ..." (see `in_words`).
    """

    words: str

    def __new__(cls, name: str, words: str) -> Reason:
        """Return the member with this name as its value."""
        member = object.__new__(cls)
        member._value_, member.words = name, words
        return member

    # the schema
    UNKNOWN_OPERATOR = "unknown operator", "unknown operator (or one in its body)"
    NO_HALF_TYPE = "no half type", "the schema has no {half} here"
    KEEPS_TYPE = "keeps its type", "{text}"
    OPSET_WITHOUT_HALF = "opset without half", "{half} needs opset {limit}, and the model has {number}"
    # the user
    PINNED = "pinned", "{more} by {subject!r}"
    ASKED = "asked for", "asked for by the user"
    # train steps
    LOSS_REGION = (
        "loss region",
        (
            "no product is between it and {value}: the numbers where a loss ends and its gradients begin are "
            "too small for half"
        ),
    )
    SCALING = "scaling", "it applies the loss scale, or checks what that gives, in float32"
    OPTIMISER = "optimiser", "it follows the gradients: optimiser and state, the master weights, stay float32"
    # faults of runtimes
    FAULT = "fault", "{text}"
    # values
    OVERFLOW = "overflow", "{number:.6g} in {value} is beyond {half}'s {limit:.6g}"
    ROUNDED = "rounded", "{number:.3g} in {value} becomes {limit:.3g} in {half}{more}"
    ABSORPTION = (
        "absorption",
        "adding {number:.6g} ({value}) loses small values: {half} is spaced by {limit:g} there",
    )
    INTEGER = (
        "integer",
        "holds integers (such as positions), which {half} represents exactly only up to {limit}",
    )
    TO_ANGLE = (
        "to an angle",
        "angle of a Sin or Cos from inputs of the model: half would lose fractions of a turn",
    )
    SPECTRUM = "spectrum", "logarithm of a spectrum of inputs of the model: half would lose small magnitudes"
    ACCUMULATED = "accumulated", "a running sum: half precision would round it at every step"
    QUANTISED_REGION = (
        "quantised region",
        "works on quantised data, between DequantizeLinear and QuantizeLinear",
    )
    OBSERVED_OVERFLOW = (
        "observed overflow",
        "{number:.3g} was seen in {value}{more}, and {half} ends at {limit:.6g}",
    )
    SENSITIVE = (
        "sensitive",
        "rounding it adds about {number:.2g} to the error of the outputs, which may be {limit:.2g}",
    )
    IMPRECISE_OUTPUT = (
        "imprecise output",
        (
            "it makes output {value}, whose rounding to {half} alone makes a relative error of "
            "{number:.1e}, above {limit:.1e}"
        ),
    )
    DECLARED_OVERFLOW = (
        "declared overflow",
        "{value} is declared to reach {number:.6g}, and {half} ends at {limit:.6g}",
    )
    PROVEN_IN_RANGE = (
        "proven in range",
        "{value} is proven to be at most {number:.4g}; {half} is safe up to {limit:.4g}",
    )
    OBSERVED_IN_RANGE = (
        "observed in range",
        "{value} is at most {number:.3g} on the given samples, of {limit:.4g} allowed",
    )
    # levels, targets, lists
    LEVEL = "level", "{text}"
    FINAL_SOFTMAX = (
        "final softmax",
        "it makes output {value}, and the policy keeps a final softmax in float32",
    )
    NO_KERNEL = "no kernel", "{subject} has no {half} kernel{more}"
    WRITTEN_OUT = "written out", "part of a written-out {subject}, whose kernels compute this in float32"
    LONG_SUM = "long sum", "{subject} accumulates {more} in {half}; more than {limit:.0f} lose accuracy"
    CAST = "cast", "a Cast has the types of its neighbours"
    NOT_LISTED = "not listed", "the operator is on no list of {subject}"
    LISTED = "listed", "{text}"
    # predicted times
    UNPROFITABLE = (
        "unprofitable region",
        "an unprofitable region of {part}, predicted to cost {price} on {subject}",
    )
    GATED = (
        "gated",
        (
            "below the minimum speed-up: {half} is predicted to be {number:.3g} times as fast as float32 on "
            "{subject}"
        ),
    )


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ground of a decision on a unit: its authority, its reason, and the facts, where there are any.

    `subject` names a value, a pattern, an attribute, a list, a target or a device. `number` is the measured
    number and `limit` the one it is compared with. `half` names the half type, and `text` is the sentence of
    a list, a runtime or a level. `nodes` and `casts` count those of a part of the model.
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


def in_words(evidence: Evidence) -> str:
    """Return the evidence as words that finish the sentence "stays float32: ..." (or "allowed: ...")."""
    return evidence.reason.words.format(
        subject=evidence.subject,
        value=f"'{evidence.subject}'" if evidence.subject else "a stored value",
        number=_Number(evidence.number),
        limit=_Number(evidence.limit),
        half=evidence.half,
        more=evidence.text,
        text=evidence.text or Reason.ASKED.words,
        part=_part(evidence),
        price=_price(evidence.number),
    )


def _part(evidence: Evidence) -> str:
    """Return the nodes and Casts of a part of the model."""
    counts = ((evidence.nodes, "node"), (evidence.casts, "Cast"))
    return ", ".join(plural(count, noun) for count, noun in counts if count is not None)


def _price(times: float | None) -> str:
    return "more than it saves" if times is None else f"{times:.3g} times what it saves"


class _Number:
    """A number to be formatted; one that is not known is "a number"."""

    def __init__(self, number: float | None) -> None:
        self._number = number

    def __format__(self, spec: str) -> str:
        return "a number" if self._number is None else format(self._number, spec)
