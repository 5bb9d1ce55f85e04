"""Benches of invented figures."""

from pathlib import Path

from amp_rewrite.running.latency import Bench, Latency, Speedup, TimedModel
from amp_rewrite.running.sessions import Device


def latency(name, p50, *, speed=1.0, tf32=False):
    """A latency with these figures."""
    return Latency(
        model=TimedModel(name, Path(name), tf32),
        p50=p50,
        speedup=Speedup(speed, speed * 0.9, speed * 1.1),
        size=1200,
    )


def bench(*latencies, device=Device.CUDA):
    """A bench of them."""
    return Bench(latencies, device, 40, "1.31.1")
