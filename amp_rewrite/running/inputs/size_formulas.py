"""Symbols that are formulas of other symbols, as PyTorch's exporter writes them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping


def is_formula(symbol: str) -> bool:
    """Whether a symbol is a formula of others, such as `past + seq` or `2*s0`; `batch-size` is a name."""
    return bool(re.search(r"[+*]|//|\s[-/]\s", symbol))


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}


def evaluate(formula: str, sizes: Mapping[str, int]) -> int | None:
    """The value of a formula, at least 0; None if it is malformed or has a symbol without a size."""
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
