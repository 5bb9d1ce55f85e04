"""A verdict in words: the cells of its table, and what is wrong."""

from __future__ import annotations

from amp_rewrite.reporting.sentences import plural
from amp_rewrite.running.verification import Output, Verdict

COLUMNS = ("output", "relative L2", "max abs", "mean abs", "SNR dB", "cosine", "agree", "verdict")


def how(verdict: Verdict) -> str:
    """On what, and where, the two models were compared."""
    if verdict.signature and not verdict.samples:
        return "not compared with the original: names, types or shapes differ"
    return f"compared with the original on {plural(verdict.samples, 'sample')} ({verdict.how})"


def cells(output: Output) -> tuple[str, ...]:
    """An output's row, a text for each of COLUMNS."""
    m = output.metrics
    agreement = "" if m.agreement is None else f"{m.agreement:.1%}"
    numbers = (f"{m.relative_l2:.1e}", f"{m.max_abs:.1e}", f"{m.mean_abs:.1e}", f"{m.snr_db:.1f}")
    return (output.name, *numbers, f"{m.cosine:.6f}", agreement, "TOO FAR" if output.broken else "close")


def faults(verdict: Verdict) -> tuple[str, ...]:
    """Everything that is broken, a sentence each."""
    broken = (f"{output.name}: {fault}" for output in verdict.outputs for fault in output.broken)
    return (*verdict.signature, *broken)
