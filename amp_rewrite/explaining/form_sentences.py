"""What was changed of a model's form before anything was decided, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from amp_rewrite.explaining.sentences import plural
from amp_rewrite.preparing.form_changes import FormChange, FormChangeKind


def summary(changes: Iterable[FormChange]) -> Iterator[str]:
    """One sentence for each kind of change, with the number of nodes; opsets with their versions."""
    counts = Counter(change.kind for change in changes if change.kind is not FormChangeKind.OPSET_RAISED)
    yield from (of(change) for change in changes if change.kind is FormChangeKind.OPSET_RAISED)
    for kind, text in _SUMMARIES.items():
        if counts[kind]:
            yield text.format(count=plural(counts[kind], _NOUNS[kind]))


def of(change: FormChange) -> str:
    """What became of the part of the model that was changed."""
    return _SENTENCES[change.kind].format(change=change)


_NOUNS = {
    FormChangeKind.FOLDED: "node",
    FormChangeKind.MERGED: "BatchNormalization",
    FormChangeKind.MAX_AND_MIN: "Clip",
    FormChangeKind.RECIPROCAL: "Reciprocal",
    FormChangeKind.SQUARE: "square",
    FormChangeKind.RANK: "weight",
}
_SUMMARIES = {
    FormChangeKind.FOLDED: "{count} of stored values alone computed",
    FormChangeKind.MERGED: "{count} merged into the weights before",
    FormChangeKind.MAX_AND_MIN: "{count} written as Max and Min",
    FormChangeKind.RECIPROCAL: "{count} written as Div",
    FormChangeKind.SQUARE: "{count} written as Pow",
    FormChangeKind.RANK: "{count} given the rank of the data",
}
_SENTENCES = {
    FormChangeKind.OPSET_RAISED: "opset raised from {change.before} to {change.after} for its half kernels",
    FormChangeKind.FOLDED: "computed beforehand in float32: it depends on stored values alone",
    FormChangeKind.MERGED: "merged into the weights of '{change.into}', in float32",
    FormChangeKind.MAX_AND_MIN: "written as '{change.into}' and a Max, which have half kernels at this opset",
    FormChangeKind.RECIPROCAL: "written as a division, which runtimes fuse into the norm",
    FormChangeKind.SQUARE: "written as a power of 2, which runtimes fuse into the norm",
    FormChangeKind.RANK: "its stored weight has rank {change.after} in place of {change.before}, as the data",
}
