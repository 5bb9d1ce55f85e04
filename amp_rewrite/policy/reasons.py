"""Evidence as text, for terminal, JSON, plans and pages alike."""

from __future__ import annotations

from collections.abc import Mapping

from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.evidence import Authority, Evidence, Reason


def in_words(evidence: Evidence) -> str:
    """Return the evidence as words that finish the sentence "stays float32: ..." (or "allowed: ...")."""
    return _WORDS[evidence.reason].format(
        subject=evidence.subject,
        value=f"'{evidence.subject}'" if evidence.subject else "a stored value",
        number=_Number(evidence.number),
        limit=_Number(evidence.limit),
        half=evidence.half,
        more=evidence.text,
        text=evidence.text or _WORDS[Reason.ASKED],
        part=_part(evidence),
        price=_price(evidence.number),
    )


def _part(evidence: Evidence) -> str:
    """Return the nodes and Casts of a part of the model."""
    counts = ((evidence.nodes, "node"), (evidence.casts, "Cast"))
    counted_nouns = ((count, noun) for count, noun in counts if count is not None)
    return ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counted_nouns)


def _price(times: float | None) -> str:
    return "more than it saves" if times is None else f"{times:.3g} times what it saves"


class _Number:
    """A number to be formatted; one that is not known is "a number"."""

    def __init__(self, number: float | None) -> None:
        self._number = number

    def __format__(self, spec: str) -> str:
        return "a number" if self._number is None else format(self._number, spec)


def flag_of(option: str, subject: str = "") -> str:
    """Return the flag for a subject: of a pin by its field, or of a kind by its value."""
    is_listed = option in (Kind.INFER.value, Kind.CLEAR.value)
    name, separator = (f"list {option}", "=") if is_listed else (option.replace("_", "-"), " ")
    return f"--{name}{separator}{subject}" if subject else f"--{name}"


def authority_in_words(evidence: Evidence, kind: Kind) -> str:
    """Return the name of the list, the flag of the override that gave a kind, else the authority."""
    if evidence.authority is Authority.LIST:
        return evidence.subject
    is_listed = evidence.authority is Authority.OVERRIDE and evidence.reason is Reason.ASKED
    return flag_of(kind.value) if is_listed else evidence.authority.value


_WORDS: Mapping[Reason, str] = {
    Reason.UNKNOWN_OPERATOR: "the operator, or a part of it, is unknown here",
    Reason.NO_HALF_TYPE: "the schema has no {half} here",
    Reason.KEEPS_TYPE: "{text}",
    Reason.OPSET_WITHOUT_HALF: "{half} needs opset {limit}, and the model has {number}",
    Reason.PINNED: "{more} by {subject!r}",
    Reason.ASKED: "asked for by the user",
    Reason.LOSS_REGION: (
        "no product is between it and {value}: the numbers where a loss ends and its gradients begin are too "
        "small for half"
    ),
    Reason.SCALING: "it applies the loss scale, or checks what that gives, in float32",
    Reason.OPTIMISER: "it follows the gradients: optimiser and state, the master weights, stay float32",
    Reason.OVERFLOW: "{number:.6g} in {value} is beyond {half}'s {limit:.6g}",
    Reason.ROUNDED: "{number:.3g} in {value} becomes {limit:.3g} in {half}{more}",
    Reason.FAULT: "{text}",
    Reason.ABSORPTION: (
        "{number:.6g} in {value} absorbs what it is added to: {half} has steps of {limit:g} there"
    ),
    Reason.INTEGER: "it carries positions or other whole numbers, and {half} is exact to {limit} only",
    Reason.TO_ANGLE: "angle of a Sin or Cos from inputs of the model: half would lose fractions of a turn",
    Reason.SPECTRUM: "logarithm of a spectrum of inputs of the model: half would lose what is faint",
    Reason.ACCUMULATED: "it is added up step by step, and half would round it in every step",
    Reason.QUANTISED_REGION: "works on quantised data, between DequantizeLinear and QuantizeLinear",
    Reason.SENSITIVE: (
        "rounding it adds about {number:.2g} to the error of the outputs, which may be {limit:.2g}"
    ),
    Reason.OBSERVED_OVERFLOW: "{number:.3g} was seen in {value}{more}, and {half} ends at {limit:.6g}",
    Reason.FAINT_OUTPUT: (
        "it makes output {value}, whose rounding to {half} alone makes a relative error of "
        "{number:.1e}, above {limit:.1e}"
    ),
    Reason.DECLARED_OVERFLOW: "{value} is declared to reach {number:.6g}, and {half} ends at {limit:.6g}",
    Reason.PROVEN_TAME: "{value} is proven to be at most {number:.4g}, where {half} bears {limit:.4g}",
    Reason.OBSERVED_IN_RANGE: "{value} is at most {number:.3g} on the given samples, of {limit:.4g} allowed",
    Reason.LEVEL: "{text}",
    Reason.FINAL_SOFTMAX: "it makes output {value}, and the policy keeps a final softmax in float32",
    Reason.NO_KERNEL: "{subject} has no {half} kernel{more}",
    Reason.WRITTEN_OUT: "part of a written-out {subject}, whose kernels compute this in float32",
    Reason.LONG_SUM: "{subject} adds up {more} in {half}, which has the precision for {limit:.0f}",
    Reason.CAST: "a Cast takes the types that are beside it",
    Reason.NOT_LISTED: "the operator is on no list of {subject}",
    Reason.LISTED: "{text}",
    Reason.ISLAND: "an island of {part}, predicted to cost {price} on {subject}",
    Reason.GATED: "the gate: {half} is predicted to be {number:.3g} times as fast as float32 on {subject}",
}
