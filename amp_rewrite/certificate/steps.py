"""Work in steps that ask for others, so that what is nested deeply is no deep recursion."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

Step = Generator["Step", Any, Any]
"""A part of the work that may ask for others, whose results it is sent."""


def run(step: Step) -> Any:
    """Carries out a step and all that it asks for."""
    stack, value = [step], None
    while stack:
        try:
            asked = stack[-1].send(value)
        except StopIteration as end:
            stack.pop()
            value = end.value
        else:
            stack.append(asked)
            value = None
    return value
