"""The kinds of values of which nothing tells the type, from the operators that read them."""

from __future__ import annotations

from collections.abc import Sequence

from amp_rewrite.certificate import signatures
from amp_rewrite.certificate.numbered import MISSING, Numbered
from amp_rewrite.certificate.value_kinds import Kind


def deduce(model: Numbered, operator: tuple[str, str], version: int, inputs: Sequence[int]) -> None:
    """Gives an input of unknown kind that of another input, where an operator takes both in one type."""
    kinds = [model.kinds[number] for number in inputs]
    if None not in [kind for number, kind in zip(inputs, kinds, strict=True) if number != MISSING]:
        return
    signature = signatures.find(*operator, version)
    if signature is None or not signature.inputs:
        return
    last = len(signature.inputs) - 1
    known: dict[str, Kind] = {}
    for port, kind in enumerate(kinds):
        text, homogeneous = signature.inputs[min(port, last)]
        if kind is not None and homogeneous and text in signature.types:
            known[text] = kind
    for port, number in enumerate(inputs):
        text, homogeneous = signature.inputs[min(port, last)]
        if number != MISSING and model.kinds[number] is None and homogeneous and text in known:
            model.kinds[number] = known[text]
