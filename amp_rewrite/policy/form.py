"""The options that decide the form in which a model is analysed."""

from __future__ import annotations

from dataclasses import dataclass

from amp_rewrite.numerics.half import Half
from amp_rewrite.policy.entries import Operator
from amp_rewrite.policy.targets import Target


@dataclass(frozen=True, slots=True)
class Form:
    """The preparation of a model, in float32, for a half type and a target.

    `keep_functions` leaves calls of functions alone. `fold` computes what depends on stored values alone,
    and merges a BatchNormalization into its producer; `raise_opset` takes an opset that has more kernels
    where that changes nothing else, `opset` the one that is asked for; `idioms` rewrites subgraphs that
    spell one operator to the form that runtimes recognise; `keep_overridable` leaves inputs that have a
    default. Nodes that `kept_nodes` match (patterns of pins), and `kept_operators`, stay as they are.
    """

    half: Half
    target: Target
    keep_functions: bool
    fold: bool
    raise_opset: bool
    idioms: bool
    kept_nodes: tuple[str, ...]
    kept_operators: tuple[Operator, ...]
    opset: int | None = None
    keep_overridable: bool = False
