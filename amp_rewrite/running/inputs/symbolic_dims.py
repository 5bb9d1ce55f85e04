"""Dimensions that are written as formulas of others: `past + seq`, `2*s0`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}
_SIGNS = re.compile(r"[+*]|//|\s[-/]\s")
"""What only a formula has: `batch-size` is a name."""


def is_formula(symbol: str) -> bool:
    """Whether the symbol of a dimension is a formula."""
    return bool(_SIGNS.search(symbol))


def evaluate(formula: str, sizes: Mapping[str, int]) -> int | None:
    """What a formula comes to, at least 0; None where it is odd or has a symbol without a size."""
    try:
        return max(0, _term(ast.parse(formula.strip(), mode="eval").body, sizes))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
        return None


def _term(term: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(term, ast.BinOp):
        return _OPERATIONS[type(term.op)](_term(term.left, sizes), _term(term.right, sizes))
    if isinstance(term, ast.Constant):
        return int(str(term.value))
    return sizes[ast.unparse(term)]
