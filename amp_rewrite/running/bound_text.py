"""Violated bounds in words."""

from __future__ import annotations

_MOST_DIGITS = 17
"""The digits after which any two numbers differ."""


def above(name: str, value: float, bound: float) -> str:
    """That a value is above its bound."""
    shown, most = _apart(value, bound, 3)
    return f"{name} {shown} is above {most}"


def below(name: str, value: float, bound: float) -> str:
    """That a value is below its bound."""
    shown, least = _apart(value, bound, 4)
    return f"{name} {shown} is below {least}"


def _apart(value: float, bound: float, digits: int) -> tuple[str, str]:
    """Both numbers with as many significant digits as it takes to tell them apart."""
    shown = f"{value:.{digits}g}", f"{bound:.{digits}g}"
    return shown if shown[0] != shown[1] or digits >= _MOST_DIGITS else _apart(value, bound, digits + 1)
