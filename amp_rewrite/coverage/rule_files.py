"""Coverage rules from a YAML file; errors name the line.

min-flops: 0.95
min-nodes: 0.8
min-weights: 0.9
require:
  MatMul: 1.0
if-present: true   # required operators that the model lacks are no fault
forbid-half: [Softmax]
max-casts: 12
baseline: coverage.json   # beside this file
tolerance: 0.01
dims:
  batch: 4
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from amp_rewrite.coverage.ci_rules import SHARE
from amp_rewrite.policy import yaml_fields
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.policy.yaml_fields import Field


@dataclass(frozen=True, slots=True)
class RuleFile:
    """The content of a rule file; None or empty where a key is absent. `baseline` is a path."""

    min_flops: float | None = None
    min_nodes: float | None = None
    min_weights: float | None = None
    require: Mapping[str, float] = field(default_factory=dict[str, float])
    if_present: bool = False
    forbid_half: tuple[str, ...] = ()
    max_casts: int | None = None
    baseline: Path | None = None
    tolerance: float | None = None
    dims: Dims = field(default_factory=dict[str, int])


def load(path: Path) -> RuleFile:
    """The rules of a file. Raises ListError, which names file and line."""
    top = yaml_fields.parse(path, tuple(_READERS), trusted=False)
    found = {
        f.name.replace("-", "_"): _READERS[f.name](f) for f in yaml_fields.fields(path, top, tuple(_READERS))
    }
    return RuleFile(**found)


def _share(held: Field) -> float:
    try:
        number = float(_scalar(held))
    except ValueError:
        raise held.error(f"{held.name} is not a number", SHARE) from None
    if not 0 <= number <= 1:
        raise held.error(f"{held.name} is {number:g}", SHARE)
    return number


def _truth(held: Field) -> bool:
    text = _scalar(held)
    if text not in ("true", "false"):
        raise held.error(f"{held.name} is not a truth value", "write true or false")
    return text == "true"


def _count(held: Field) -> int:
    text = _scalar(held)
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise held.error(
            f"{held.name} is not a whole number of at most {_DIGITS} digits", "write it as in 12"
        )
    return int(text)


_DIGITS = 18
"""Numbers of this many digits fit into the 64 bits of an ONNX dimension."""


def _scalar(held: Field) -> str:
    return held.value.value if isinstance(held.value, yaml.ScalarNode) else ""


def _mapping(read: Callable[[Field], Any]) -> Callable[[Field], dict[str, Any]]:
    def mapping(held: Field) -> dict[str, Any]:
        if not isinstance(held.value, yaml.MappingNode):
            raise held.error(f"{held.name} is not a mapping", "write NAME: NUMBER below it, one per line")
        return {inner.name: read(inner) for inner in yaml_fields.fields(held.file, held.value)}

    return mapping


def _names(held: Field) -> tuple[str, ...]:
    if yaml_fields.is_text(held.value):
        return (yaml_fields.text(held),)
    rows = held.value.value if isinstance(held.value, yaml.SequenceNode) else ()
    if not rows or not all(map(yaml_fields.is_text, rows)):
        raise held.error(f"{held.name} is not a list of operators", f"write {held.name}: [Softmax]")
    return tuple(row.value for row in rows)


def _path(held: Field) -> Path:
    return held.file.parent / yaml_fields.text(held)


_READERS: Mapping[str, Callable[[Field], Any]] = {
    "min-flops": _share,
    "min-nodes": _share,
    "min-weights": _share,
    "require": _mapping(_share),
    "if-present": _truth,
    "forbid-half": _names,
    "max-casts": _count,
    "baseline": _path,
    "tolerance": _share,
    "dims": _mapping(_count),
}
