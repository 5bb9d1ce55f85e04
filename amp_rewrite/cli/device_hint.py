"""The hint of a precision policy: whether a device gains from half, and which sizes fit its Tensor Cores."""

from __future__ import annotations

from collections.abc import Callable

from amp_rewrite.advice import advice
from amp_rewrite.advice.advice import Advice
from amp_rewrite.console import Console
from amp_rewrite.policy.named_policies import Policy
from amp_rewrite.reporting import terminal_rewrite
from amp_rewrite.reporting.summary import SummaryLine


def show(console: Console, policy: Policy | None, advise: Callable[[], Advice]) -> None:
    """Prints the check where a policy is given, unless nothing becomes half under it."""
    if policy is None or policy.compute is None or console.quiet:
        return
    told = advice.device_lines(advise())
    terminal_rewrite.print_lines(console, (SummaryLine("device", text) for text in told))
