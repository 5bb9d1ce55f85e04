"""How much of a model runs in half, as one frozen value that all faces print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from amp_rewrite.coverage.precision import Precision
from amp_rewrite.flops.opened import Dims


@dataclass(frozen=True, slots=True)
class Counts:
    """Something counted by precision: nodes, FLOPs, or bytes of weights."""

    half: int = 0
    full: int = 0
    mixed: int = 0
    other: int = 0

    @property
    def floats(self) -> int:
        """All but what does no float arithmetic."""
        return self.half + self.full + self.mixed

    @property
    def total(self) -> int:
        """All of it."""
        return self.floats + self.other

    @property
    def share(self) -> float | None:
        """The part of the floats that is half, 0 to 1; None where there are no floats."""
        return self.half / self.floats if self.floats else None

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        numbers = {"half": self.half, "full": self.full, "mixed": self.mixed, "other": self.other}
        return {**numbers, "share": self.share}


def add(amounts: Iterable[tuple[Precision, int]]) -> Counts:
    """The amounts by precision."""
    sums = dict.fromkeys(Precision, 0)
    for precision, amount in amounts:
        sums[precision] += amount
    return Counts(**{precision.value: amount for precision, amount in sums.items()})


@dataclass(frozen=True, slots=True)
class Part:
    """A node: its name (that of what it makes, if it has none), operator, precision and FLOPs in one run.

    `flops` is None where they are not known. `runs` is how often it runs, 0 in a branch that is not counted.
    """

    name: str
    operator: str
    precision: Precision
    flops: int | None
    runs: int = 1

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "name": self.name,
            "operator": self.operator,
            "precision": self.precision.value,
            "flops": self.flops,
            "runs": self.runs,
        }


@dataclass(frozen=True, slots=True)
class Cast:
    """A Cast between half and float32: `moved` are the bytes that it reads and writes in one run.

    None where the shape of its value is not known.
    """

    name: str
    before: str
    after: str
    moved: int | None

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"name": self.name, "from": self.before, "to": self.after, "moved": self.moved}


@dataclass(frozen=True, slots=True)
class Weight:
    """A stored tensor, as it is read, and its size in bytes."""

    name: str
    precision: Precision
    size: int

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"name": self.name, "precision": self.precision.value, "bytes": self.size}


@dataclass(frozen=True, slots=True)
class Row:
    """The nodes of one operator; `unknown` of them have FLOPs that are not known."""

    operator: str
    nodes: Counts
    flops: Counts
    unknown: int

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"nodes": self.nodes.to_json(), "flops": self.flops.to_json(), "unknown": self.unknown}


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a model runs in half.

    `nodes`, `flops` (of one run) and `weights` (bytes) count the whole model, bodies included; `rows` the
    same by operator, the one with most FLOPs first. `parts` are all nodes in their order, `casts` the
    Casts between half and float32, `stored` all tensors that the model holds. `dims` are the sizes that
    were given to open dimensions, `assumed` those that count as 1, and `assumptions` says in words what
    the numbers rest on.
    """

    nodes: Counts
    flops: Counts
    weights: Counts
    rows: tuple[Row, ...]
    parts: tuple[Part, ...]
    casts: tuple[Cast, ...]
    stored: tuple[Weight, ...]
    dims: Dims
    assumed: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def cast_bytes(self) -> int:
        """The bytes that Casts between half and float32 read and write in one run, as far as known."""
        return sum(cast.moved or 0 for cast in self.casts)

    @property
    def unknown(self) -> tuple[Part, ...]:
        """The nodes whose FLOPs are not known."""
        return tuple(part for part in self.parts if part.flops is None)

    def row(self, operator: str) -> Row | None:
        """The row of an operator; None where the model has none such."""
        return next((row for row in self.rows if row.operator == operator), None)

    def summary(self) -> dict[str, Any]:
        """The numbers as plain data, without single nodes: what a baseline holds."""
        return {
            "nodes": self.nodes.to_json(),
            "flops": self.flops.to_json(),
            "weights": self.weights.to_json(),
            "casts": {"count": len(self.casts), "bytes": self.cast_bytes},
            "unknown_flops": len(self.unknown),
            "dims": dict(self.dims),
            "assumed": list(self.assumed),
            "operators": {row.operator: row.to_json() for row in self.rows},
        }

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            **self.summary(),
            "assumptions": list(self.assumptions),
            "cast_nodes": [cast.to_json() for cast in self.casts],
            "weight_list": [weight.to_json() for weight in self.stored],
            "node_list": [part.to_json() for part in self.parts],
        }
