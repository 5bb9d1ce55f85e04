"""The operators that a rule may name: a misspelt one would be a rule that nothing can break."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.errors import OptionError
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.contrib_schemas import CONTRIB


def refuse_others(coverage: Coverage, operators: Sequence[str]) -> None:
    """Raises OptionError for an operator that neither the model nor any schema has."""
    for operator in operators:
        domain, _, name = operator.rpartition(":")
        if coverage.row(operator) is None and name not in schema.known_operators(domain):
            near = _near(coverage, operator)
            offer = f"did you mean {near}?" if near else "write it as in MatMul or com.microsoft:FusedMatMul"
            raise OptionError(f"no operator is called {operator}", remedy=offer)


def _near(coverage: Coverage, operator: str) -> str | None:
    theirs = [f"{CONTRIB}:{name}" for name in schema.known_operators(CONTRIB)]
    words = {*schema.known_operators(""), *theirs, *(row.operator for row in coverage.rows)}
    return next(iter(difflib.get_close_matches(operator, sorted(words), n=1)), None)
