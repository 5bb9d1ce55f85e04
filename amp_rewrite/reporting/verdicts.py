"""A verdict in words: the cells of its table, what is wrong, and what would help."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from amp_rewrite.explaining.sentences import plural
from amp_rewrite.running.verification import Output, Verdict

COLUMNS = ("output", "relative L2", "max abs", "mean abs", "SNR dB", "cosine", "agree", "verdict")


def how(verdict: Verdict) -> str:
    """On what, and where, the two models were compared."""
    if verdict.signature and not verdict.samples:
        return "not compared with the original: names, types or shapes differ, or it does not run"
    return f"compared with the original on {_samples(verdict)}; {verdict.how}"


def _samples(verdict: Verdict) -> str:
    inputs = verdict.inputs
    if inputs.is_synthetic:
        return f"{plural(verdict.samples, 'synthetic sample')} (seed {inputs.seed})"
    source = f" from {_listed(inputs.paths)}" if inputs.paths else ""
    return f"{plural(verdict.samples, 'sample')}{source}"


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


_NAMED = 3
"""So many paths are named."""


def cells(output: Output) -> tuple[str, ...]:
    """An output's row, a text for each of COLUMNS."""
    m = output.metrics
    if not (output.is_compared or output.broken):
        return (output.name, *[""] * (len(COLUMNS) - 2), "not compared")
    agreement = "" if m.agreement is None else f"{m.agreement:.1%}"
    numbers = (f"{m.relative_l2:.1e}", f"{m.max_abs:.1e}", f"{m.mean_abs:.1e}", f"{m.snr_db:.1f}")
    return (output.name, *numbers, f"{m.cosine:.6f}", agreement, "FAIL" if output.broken else "PASS")


def hints(verdict: Verdict) -> Iterator[str]:
    """What to do about a bad verdict, as flags."""
    patterns = verdict.blame.keep_full if verdict.blame is not None else ()
    if verdict.is_far and patterns:
        yield " ".join(f"--keep-full {shlex.quote(pattern)}" for pattern in patterns)
    if verdict.inputs.is_synthetic and (verdict.is_far or verdict.unproven):
        yield "--data FILE.npz   # these inputs were made up: compare on yours"
