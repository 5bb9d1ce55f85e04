"""The rules that keep nodes in float32, each explained by the docstring of the module that decides it."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

from amp_rewrite.analysis import (
    absorption,
    accumulators,
    constant,
    floors,
    flows,
    long_sums,
    observed,
    outputs,
    runtimes,
)
from amp_rewrite.analysis.idioms import marking
from amp_rewrite.bounds import deciding
from amp_rewrite.costs import unpaid_parts
from amp_rewrite.errors import OptionError
from amp_rewrite.policy.evidence import Reason

RULES: dict[Reason, ModuleType] = {
    Reason.OVERFLOW: constant,
    Reason.ROUNDED: floors,
    Reason.ABSORPTION: absorption,
    Reason.INTEGER: flows,
    Reason.TO_ANGLE: flows,
    Reason.SPECTRUM: flows,
    Reason.ACCUMULATED: accumulators,
    Reason.WRITTEN_OUT: marking,
    Reason.LONG_SUM: long_sums,
    Reason.QUANTISED_REGION: runtimes,
    Reason.FAULT: runtimes,
    Reason.NO_KERNEL: runtimes,
    Reason.OBSERVED_OVERFLOW: observed,
    Reason.IMPRECISE_OUTPUT: outputs,
    Reason.FINAL_SOFTMAX: outputs,
    Reason.DECLARED_OVERFLOW: deciding,
    Reason.PROVEN_IN_RANGE: deciding,
    Reason.OBSERVED_IN_RANGE: deciding,
    Reason.UNPROFITABLE: unpaid_parts,
}
"""The rules beyond lists, schemas and the user's pins, in the order of the pipeline."""

_FREE = (Reason.PROVEN_IN_RANGE, Reason.OBSERVED_IN_RANGE)
"""The rules that give half to what a list denies."""


def describe(name: str) -> str:
    """Return what a rule does, why, with an example, and what overrules it.

    Raises OptionError for an unknown name.
    """
    rule = next((reason for reason in RULES if reason.value == name.replace("-", " ")), None)
    if rule is None:
        names = ", ".join(reason.value for reason in RULES)
        raise OptionError(f"no rule is called '{name}'", remedy=f"the rules are: {names}")
    change = "`Options.free`" if rule in _FREE else "`Pins.force_half`"
    return f"{rule.value}: {message(rule)}\n\n{inspect.getdoc(RULES[rule])}\n\nTo overrule it: {change}"


def message(rule: Reason) -> str:
    """Return the words of a rule as reports have them, with NUMBER, VALUE and the like in place of facts."""
    words = rule.words.replace("{more}", "")
    return re.sub(r"\{(\w+)[^}]*\}", lambda field: field[1].upper(), words)
