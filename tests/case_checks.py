"""What a case claims, and what holds for every case: it is valid, runs, is close, and is proved."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from amp_rewrite import Analysis, Options, Result, emulate, rewrite
from amp_rewrite.cli.decisions import options_of
from amp_rewrite.errors import AmpRewriteError
from tests import certificate_pairs
from tests.case_files import SEPARATOR, Case
from tests.onnx_text import RUNS, agree, graphs, lines, model, printed, run, sizes, stored, types, unchecked

TO_WRITE = "?"
"""Stands where an update writes what is float32 or half."""
CLOSE = 1e-2
"""How far outputs may be from those of the original, unless a case says otherwise."""


@dataclass
class Outcome:
    """What a rewrite made of a model: the reasons of what is float32 by name, what is half, and the result.

    `refusal` is why there is no result.
    """

    proto: onnx.ModelProto
    options: Options
    full: dict[str, str] = field(default_factory=dict)
    half: list[str] = field(default_factory=list)
    result: Result[onnx.ModelProto] | None = None
    refusal: str = ""

    @property
    def rewritten(self) -> Result[onnx.ModelProto]:
        """The result; a case that is refused fails with the message."""
        assert self.result is not None, f"it is refused: {self.refusal}"
        return self.result


def outcome(case: Case) -> Outcome:
    """What becomes of the model of a case."""
    build = unchecked if _says_not("checked", case.claims) else model
    made = Outcome(build(case.model), _options(case.flags))

    def read(analysis: Analysis) -> None:
        for claim in filter(None, analysis.claims().split(SEPARATOR)):
            if claim.startswith("half "):
                made.half = _names(claim.removeprefix("half "))
            else:
                made.full.update(_reasons(claim))

    try:
        made.result = rewrite(made.proto, made.options, on_plan=read)
    except AmpRewriteError as refusal:
        made.refusal = str(refusal)
    return made


_options = functools.cache(options_of)


def problems(case: Case) -> tuple[list[str], list[str]]:
    """What is wrong with a case, a line each, and the claims that hold: its own, as far as they do."""
    if case.result is not None:
        today = _verdicts(case)
        return _differences(case.claims, today), today
    made = outcome(case)
    if made.refusal:
        today = [f"refused {made.refusal}"]
        held = [
            each for each in case.claims if each.startswith("refused ") and _said(each, 1) in made.refusal
        ]
        return ([], held) if held else (_differences(case.claims, today), today)
    today = _today(case.claims, made)
    return [*_differences(case.claims, today), *_always(case.claims, made)], today


def _verdicts(case: Case) -> list[str]:
    """What the certificate says of a pair; of powers of two, whether they are exact too."""
    pair = certificate_pairs.model(case.model), certificate_pairs.model(case.result or "")
    claimed, *others = case.claims or ("",)
    today = [certificate_pairs.verdict(*pair, claimed, _options(case.flags).op_types)]
    return [*today, certificate_pairs.exact(*pair)] if "exact" in others else today


def _differences(claimed: Sequence[str], today: Sequence[str]) -> list[str]:
    if not claimed:
        return ["it claims nothing", *(f"found:   {each}" for each in today)]
    wrong = [f"claimed: {each}" for each in claimed if each not in today]
    return wrong + [f"found:   {each}" for each in today if each not in claimed]


def _today(claims: Sequence[str], made: Outcome) -> list[str]:
    """The claims that hold: those that were made as they are, as far as they do."""
    colours = [claim for claim in claims if _is_reason(claim)]
    today = _float32(colours, made) if colours or not claims else []
    for claim in claims:
        if claim not in colours:
            verb, _, words = claim.partition(" ")
            assert verb in VERBS, f"no such verb: {claim}"
            today.append(f"{verb} {VERBS[verb](made, words)}".strip())
    return today


# ---- what is float32 and why, and what is half


def _is_reason(claim: str) -> bool:
    verb = claim.partition(" ")[0]
    return verb in ("full", TO_WRITE) or (verb not in VERBS and ": " in claim)


def _float32(claims: Sequence[str], made: Outcome) -> list[str]:
    """What is float32, each with the claimed reason where it is part of the one that is found."""
    if not made.full and set(claims) <= {TO_WRITE}:
        return [f"half {' '.join(made.half)}"]
    said = {name: reason for claim in claims for name, reason in _reasons(claim).items()}
    holds = {name: reason in made.full.get(name, "") for name, reason in said.items()}
    if claims and said.keys() == made.full.keys() and all(holds.values()):
        return [*claims]
    groups: dict[str, list[str]] = {}
    for name, reason in made.full.items():
        groups.setdefault(said[name] if holds.get(name) else _clause(reason), []).append(name)
    return [
        f"{' '.join(names)}: {reason}" if reason else f"full {' '.join(names)}"
        for reason, names in groups.items()
    ] or ["full"]


def _clause(reason: str) -> str:
    """The first clause of a reason, without the rule that it is for."""
    reason = re.sub(r"^(stays float32|denied): ", "", reason)
    return re.sub(r"^(no arithmetic|safe in half|\S+ \S+ \S+ .*?)([,;] | \().*", r"\1", reason)


def _reasons(claim: str) -> Mapping[str, str]:
    """The names of a claim `a b: why` or `full a b`, each with its reason."""
    names, _, reason = claim.partition(": ")
    return dict.fromkeys(_names(re.sub("^full( |$)", "", names)), reason)


def _names(text: str) -> list[str]:
    return re.findall(r'"[^"]*"|\S+', text)


def _set(claimed: str, found: Sequence[str]) -> str:
    """The names that are found; in the order in which they were claimed where they are the same."""
    return claimed if sorted(_names(claimed)) == sorted(found) else " ".join(found)


# ---- verbs: each gives the words that hold today, and those that were claimed where they hold


def _stores(made: Outcome, words: str) -> str:
    """`stores NAME [TYPE[[SIZES]]] [NUMBERS]`: a stored tensor of the result, its type, and its numbers."""
    name, *said = _names(words)
    array = stored(made.rewritten.model).get(name)
    if array is None:
        return f"{name} not"
    sizes = f"[{','.join(map(str, array.shape))}]" if said and said[0].endswith("]") else ""
    kind = [f"{array.dtype}{sizes}"] if not said or said[0][0].isalpha() else []
    claimed = said[len(kind) :]
    numbers = [_number(each) for each in array.reshape(-1)] if claimed else []
    same = len(numbers) == len(claimed) and all(map(_equal, claimed, numbers))
    return " ".join([name, *kind, *(claimed if same else numbers)])


def _number(value: np.generic) -> str:
    return f"{float(value):.9g}"


def _equal(said: str, found: str) -> bool:
    a, b = np.float32(said), np.float32(found)
    return said == found or bool(a == b and np.signbit(a) == np.signbit(b))


def _has_type(made: Outcome, words: str) -> str:
    """`type NAME TYPE[[SIZES]]`: the type that the result declares of a value, with its sizes."""
    name = _names(words)[0]
    kind = types(made.rewritten.model).get(name, "not").lower()
    return f"{name} {kind}{sizes(made.rewritten.model).get(name, '') if words.endswith(']') else ''}"


def _merged(made: Outcome, words: str) -> str:
    """`folds A into B, C into D`: all BatchNormalizations that were merged into weights, and whose."""
    found = [f"{each.node} into {each.into}" for each in _changes(made, "merged")]
    return words if sorted(words.split(", ")) == sorted(found) else ", ".join(found)


def _licences(made: Outcome, words: str) -> str:
    """`licences converted 1, folded 2`: what the certificate allowed besides Casts and rounding."""
    certificate = made.rewritten.report.certificate
    used = certificate.licences.items() if certificate is not None else ()
    found = [f"{licence.value} {count}" for licence, count in used]
    return words if sorted(words.split(", ")) == sorted(found) else ", ".join(found) or "none"


def _computed(made: Outcome, words: str) -> str:
    """`computes A B`: all nodes that were computed beforehand."""
    return _set(words, [each.node for each in _changes(made, "folded")])


def _written(made: Outcome, words: str) -> str:
    """`forms KIND NODE, KIND NODE`: all nodes that were written in another form."""
    kinds = ("max and min", "reciprocal", "square", "rank")
    found = [f"{kind} {each.node}" for kind in kinds for each in _changes(made, kind)]
    return words if sorted(words.split(", ")) == sorted(found) else ", ".join(found)


def _changes(made: Outcome, kind: str) -> list[Any]:
    return [each for each in made.rewritten.report.form_changes if each.kind.value == kind]


def _becomes(made: Outcome, words: str) -> str:
    """`becomes TEXT`: the whole result, but for numbers."""
    text = printed(made.rewritten.model)
    return (
        words
        if lines(text) == lines(words)
        else " ".join(re.sub(r": (int|tensor|graph) =", " =", text).split())
    )


def _unchanged(made: Outcome, _: str) -> str:
    return "" if made.rewritten.model == made.proto else "not"


def _warns(made: Outcome, words: str) -> str:
    told = _complaints(made)
    return words if words and any(words in each for each in told) else " / ".join(told)


def _opset(made: Outcome, _: str) -> str:
    return str(next(each.version for each in made.rewritten.model.opset_import if not each.domain))


def _count(name: str) -> Callable[[Outcome, str], str]:
    return lambda made, _: str(getattr(made.rewritten.report, name))


def _operators(made: Outcome, words: str) -> str:
    """`operators A B B`: the operators of the result and its bodies, each as often as it is there."""
    return _set(words, [node.op_type for graph in graphs(made.rewritten.model.graph) for node in graph.node])


def _as_said(_: Outcome, words: str) -> str:
    return words


VERBS: Mapping[str, Callable[[Outcome, str], str]] = {
    "half": lambda made, words: _set(words, made.half),
    "stores": _stores,
    "type": _has_type,
    "saturated": _count("saturated"),
    "flushed": _count("flushed"),
    "casts": _count("casts_added"),
    "opset": _opset,
    "folds": _merged,
    "computes": _computed,
    "licences": _licences,
    "forms": _written,
    "operators": _operators,
    "becomes": _becomes,
    "unchanged": _unchanged,
    "refused": lambda *_: "not",
    "warns": _warns,
    "error": _as_said,  # the limit of a comparison
    "not": _as_said,  # `not run: why`, `not proved: why`, `not checked: why`
}


def _said(claim: str, words: int) -> str:
    return claim.split(" ", words)[-1]


# ---- what holds for every case


def _says_not(what: str, claims: Sequence[str]) -> bool:
    return any(claim.startswith(f"not {what}: ") for claim in claims)


def _complaints(made: Outcome) -> list[str]:
    """The warnings of a result, but that so small a model is predicted to be no faster."""
    return [told for told in made.rewritten.report.warnings if " does not pay: " not in told]


def _always(claims: Sequence[str], made: Outcome) -> list[str]:
    """What is wrong with a result whatever is claimed."""
    report, proto = made.rewritten.report, made.rewritten.model
    certificate = report.certificate
    wrong = [f"not valid: {fault}" for fault in report.broken]
    if not any(claim.startswith("warns ") for claim in claims):
        wrong += [f"it warns: {told}" for told in _complaints(made)]
    if report.changed and not _says_not("checked", claims):
        onnx.checker.check_model(proto, full_check=True)
    unproved = _says_not("proved", claims)
    is_proved = not report.changed or (certificate is not None and certificate.proved)
    if is_proved is unproved:
        wrong.append("it is proved" if is_proved else f"it is not proved: {certificate}")
    if _says_not("run", claims) or not RUNS:
        return wrong
    close = next((float(_said(claim, 1)) for claim in claims if claim.startswith("error ")), CLOSE)
    return wrong + _run(made, close)


def _run(made: Outcome, close: float) -> list[str]:
    """What is wrong where both models run; the result itself in float16 alone, as the CPU lacks the other."""
    proto = made.rewritten.model
    try:
        if made.options.half.name == "float16":
            run(proto)
        agree(made.proto, emulate(proto), close)
    except Exception as error:
        return [f"run: {error}"]
    return []
