"""Evidence as text, for terminal, JSON, plans and pages alike."""

from __future__ import annotations

from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.evidence import Authority, Evidence, Reason


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
