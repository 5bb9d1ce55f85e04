"""Evidence in words: the only place that has them, for terminal, JSON, plans and pages alike."""

from __future__ import annotations

from collections.abc import Mapping

from amp_rewrite.policy.entries import Entry
from amp_rewrite.policy.evidence import Authority, Evidence, Reason


def in_words(evidence: Evidence) -> str:
    """The evidence as words that finish the sentence "stays float32: ..." (or "allowed: ...")."""
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
    """The nodes and Casts of a part of the model."""
    counts = ((evidence.nodes, "node"), (evidence.casts, "Cast"))
    known = ((count, noun) for count, noun in counts if count is not None)
    return ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in known)


def _price(times: float | None) -> str:
    return "more than it saves" if times is None else f"{times:.3g} times what it saves"


class _Number:
    """A number to be formatted; one that is not known is "a number"."""

    def __init__(self, number: float | None) -> None:
        self._number = number

    def __format__(self, spec: str) -> str:
        return "a number" if self._number is None else format(self._number, spec)


def authority_in_words(entry: Entry) -> str:
    """Who says it: the name of a list, the flag of an override, else the authority."""
    if entry.authority is Authority.LIST:
        return entry.evidence.subject
    return f"--{entry.kind.value}" if entry.authority is Authority.OVERRIDE else entry.authority.value


_WORDS: Mapping[Reason, str] = {
    Reason.UNKNOWN_OPERATOR: "the operator, or a part of it, is unknown here",
    Reason.NO_HALF_TYPE: "the schema has no {half} here",
    Reason.TYPE_ATTRIBUTE: "the attribute {subject} sets this type, and means more than a type",
    Reason.TYPE_PROTO_ATTRIBUTE: "the attribute type spells the element type out",
    Reason.CONTAINER_IO: "a sequence or optional that is an input or output of the model keeps its type",
    Reason.OPSET_WITHOUT_HALF: "{half} needs opset {limit}, and the model has {number}",
    Reason.KEPT: "kept by {subject!r}",
    Reason.FORCED: "forced by {subject!r}",
    Reason.ASKED: "asked for by the user",
    Reason.LOSS_REGION: (
        "no product is between it and {value}: the numbers where a loss ends and its gradients begin are too "
        "small for half"
    ),
    Reason.SCALING: "it applies the loss scale, or checks what that gives, in float32",
    Reason.OPTIMISER: "it follows the gradients: optimiser and state, the master weights, stay float32",
    Reason.UNEQUAL_RANKS: (
        "onnxruntime fails on a Cast between a Transpose of the first axis and a MatMul of operands that are "
        "not known to have the same rank"
    ),
    Reason.HALF_REDUCTION: "it sums into its data, for which onnxruntime's CPU provider has no half kernel",
    Reason.FLOAT32_FUNCTION: "onnxruntime runs it as a function with float32 constants, and refuses half",
    Reason.MASKED_SCORES: "it outputs its masked scores, and fills them with the lowest number of the type",
    Reason.CLASHING_CAST: (
        "onnxruntime's CPU provider inserts a Cast that clashes with its attribute output_datatype"
    ),
    Reason.NO_KERNEL_AT_ALL: "onnxruntime has no half kernel for it at all",
    Reason.NO_CPU_KERNEL: "onnxruntime's CPU provider has no half kernel for it, and no input of it to cast",
    Reason.BATCH_OF_ONE: "onnxruntime runs it as a function, which fails in half for a batch of one",
    Reason.OVERFLOW: "{number:.6g} in {value} is beyond {half}'s {limit:.6g}",
    Reason.VANISHING_DIVISOR: "{number:.3g} in {value} becomes 0 in {half}, and is divided by",
    Reason.RECIPROCAL_OVERFLOW: "{number:.6g} / {limit:.3g}, which {value} admits, is beyond {half}",
    Reason.INEXACT_FACTOR: "{number:.3g} in {value} becomes {limit:.3g} in {half}",
    Reason.FAINT_FACTOR: (
        "{value} has numbers up to {number:.2g}, where {half} has steps of {limit:.2g}, and what they make "
        "is multiplied up"
    ),
    Reason.ABSORPTION: (
        "{number:.6g} in {value} absorbs what it is added to: {half} has steps of {limit:g} there"
    ),
    Reason.FROM_INTEGER: "comes from an integer that may exceed {limit}, where half is no longer exact",
    Reason.TO_INTEGER: "ends as an integer, and half is exact for integers to {limit} only",
    Reason.TO_PIXEL_COORDINATES: "ends as pixel coordinates, and half is exact for integers to {limit} only",
    Reason.TO_ANGLE: "it makes the angle of a Sin or Cos from inputs of the model, and half would round that",
    Reason.CANCELLATION: "its terms may be much larger than their sum, and half would round off what is left",
    Reason.GAUSSIAN: "it makes how far positions of a Gaussian are from a grid, and half would round those",
    Reason.SPECTRUM: (
        "it makes the logarithm of a spectrum of inputs of the model, and half would lose what is faint there"
    ),
    Reason.ACCUMULATED: "it is added up step by step, and half would round it in every step",
    Reason.NEAR_1: "how far from 0 or 1 something is counts here, and half would round that away",
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
    Reason.ALLOW_LIST_ONLY: "not on the allow list, and only that is asked for",
    Reason.FINAL_SOFTMAX: "it makes output {value}, and the policy keeps a final softmax in float32",
    Reason.INFER_AS_DENY: "infer is treated as deny ({text})",
    Reason.EVERYTHING_FORCED: "everything that the types allow is forced",
    Reason.NO_KERNEL: "{subject} has no {half} kernel",
    Reason.WRITTEN_OUT: "part of a written-out {subject}, whose kernels compute this in float32",
    Reason.REFUSED_ATTRIBUTE: "{subject} refuses it for its {text}, and runs it on the CPU",
    Reason.LONG_SUM: "{subject} adds up its {number:.0f} terms in {half}, which {limit:.0f} at most bear",
    Reason.OPEN_SUM: "{subject} adds up in {half}, which {limit:.0f} terms at most bear, over an open size",
    Reason.CAST: "a Cast takes the types that are beside it",
    Reason.NOT_LISTED: "the operator is on no list of {subject}",
    Reason.LISTED: "{text}",
    Reason.ISLAND: "an island of {part}, predicted to cost {price} on {subject}",
    Reason.GATED: "the gate: {half} is predicted to be {number:.3g} times as fast as float32 on {subject}",
}
