"""Benches of invented figures."""

from pathlib import Path

from amp_rewrite.running.latency import Bench, Footprint, Latency, Profile, Speedup, TimedModel
from amp_rewrite.running.sessions import Device


def latency(name, p50, *, speed=1.0, tf32=False, on_cpu=0, memory=2_500_000):
    """A latency with these figures."""
    profile = Profile(9, on_cpu, 4, 2, (("Unique", on_cpu),) if on_cpu else ())
    return Latency(
        model=TimedModel(name, Path(name), tf32),
        p50=p50,
        p90=p50 * 1.5,
        p99=p50 * 2,
        throughput=1000 / p50,
        speedup=Speedup(speed, speed * 0.9, speed * 1.1),
        size=1200,
        footprint=Footprint(0.25, memory, profile),
    )


def bench(*latencies, device=Device.CUDA):
    """A bench of them."""
    return Bench(latencies, device, 40, "1.31.1")
