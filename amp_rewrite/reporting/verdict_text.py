"""A verdict as text: the cells of its table, and hints on what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from amp_rewrite.coverage.assumptions import some
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.running.verification import Output, Verdict

COLUMNS = ("output", "relative L2", "max abs", "mean abs", "SNR dB", "cosine", "agree", "verdict")


def describe(verdict: Verdict) -> str:
    """On which inputs and where the two models were compared."""
    if verdict.signature and not verdict.samples:
        return "not compared with the original: names, types or shapes differ, or it does not run"
    return f"compared with the original on {_samples(verdict)}; {verdict.how}"


def _samples(verdict: Verdict) -> str:
    inputs = verdict.inputs
    if inputs.is_synthetic:
        return f"{plural(verdict.samples, 'synthetic sample')} (seed {inputs.seed})"
    source = f" from {some(inputs.paths, _NAMED)}" if inputs.paths else ""
    return f"{plural(verdict.samples, 'sample')}{source}"


_NAMED = 3
"""How many paths are named."""


def cells(output: Output) -> tuple[str, ...]:
    """The row of an output, one cell for each of COLUMNS."""
    m = output.metrics
    if not (output.is_compared or output.broken):
        return (output.name, *[""] * (len(COLUMNS) - 2), "not compared")
    agreement = "" if m.agreement is None else f"{m.agreement:.1%}"
    numbers = (f"{m.relative_l2:.1e}", f"{m.max_abs:.1e}", f"{m.mean_abs:.1e}", f"{m.snr_db:.1f}")
    return (output.name, *numbers, f"{m.cosine:.6f}", agreement, "FAIL" if output.broken else "PASS")


def hints(verdict: Verdict) -> Iterator[str]:
    """Flags to try after a failed verdict."""
    patterns = verdict.blame.keep_full if verdict.blame is not None else ()
    if verdict.is_far and patterns:
        yield " ".join(f"--keep-full {shlex.quote(pattern)}" for pattern in patterns)
    if verdict.inputs.is_synthetic and (verdict.is_far or verdict.unproven):
        yield "--data FILE.npz   # these inputs were synthetic: compare on real ones"
