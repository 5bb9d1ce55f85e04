"""A model whose coverage was measured and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.coverage.rules import RuleResult


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """The `title` of a model, its coverage, and the result of every rule."""

    title: str
    coverage: Coverage
    checks: Sequence[RuleResult]

    @property
    def ok(self) -> bool:
        """Whether every rule holds."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        rules = [check.to_json() for check in self.checks]
        return {"model": self.title, **self.coverage.to_json(), "rules": rules, "ok": self.ok}
