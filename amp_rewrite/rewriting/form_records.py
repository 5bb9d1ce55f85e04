"""How a saved plan holds the form of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.form import Form
from amp_rewrite.policy.targets import Target
from amp_rewrite.rewriting.json_fields import FLAG, TEXTS, JsonFields

FIELDS: JsonFields = {
    "fold": FLAG,
    "raise_opset": FLAG,
    "idioms": FLAG,
    "kept_nodes": TEXTS,
    "kept_operators": TEXTS,
}


def of(form: Form) -> dict[str, Any]:
    """The fields of a form that stand nowhere else in a plan."""
    return {
        "fold": form.fold,
        "raise_opset": form.raise_opset,
        "idioms": form.idioms,
        "kept_nodes": list(form.kept_nodes),
        "kept_operators": [schema.written(*operator) for operator in form.kept_operators],
    }


def form(record: Mapping[str, Any], half: Half, target: Target, *, keep_functions: bool) -> Form:
    """The form that `of` wrote."""
    return Form(
        half=half,
        target=target,
        keep_functions=keep_functions,
        fold=record["fold"],
        raise_opset=record["raise_opset"],
        idioms=record["idioms"],
        kept_nodes=tuple(record["kept_nodes"]),
        kept_operators=tuple(map(schema.parse, record["kept_operators"])),
    )
