"""The output of `bench` in a terminal: a column for each model, a row for each metric."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Column

from amp_rewrite.console import Console
from amp_rewrite.explaining.sentences import plural, size
from amp_rewrite.running.latency import Bench, Latency
from amp_rewrite.running.sessions import Device


def print_bench(console: Console, bench: Bench) -> None:
    """Prints the device, the models, and the table."""
    rounds = plural(bench.rounds, "round")
    console.print(f"on {bench.device.value}, onnxruntime {bench.onnxruntime}, {rounds}")
    named = letters(len(bench.latencies))
    for letter, latency in zip(named, bench.latencies, strict=True):
        console.print(f"  {letter}  {bench.title(latency)}")
    rows = [(name, *(cell(bench, latency) for latency in bench.latencies)) for name, cell in _ROWS]
    console.table(("", *(Column(letter, justify="right") for letter in named)), rows)
    for letter, latency in zip(named, bench.latencies, strict=True):
        _print_fallen(console, bench, letter, latency)


def letters(count: int) -> list[str]:
    """A, B, ..., Z, AA, AB, ..."""
    return [_letters(number) for number in range(count)]


def _letters(number: int) -> str:
    more, last = divmod(number, 26)
    return (_letters(more - 1) if more else "") + chr(ord("A") + last)


Cell = Callable[[Bench, Latency], str]


def _speed(_: Bench, latency: Latency) -> str:
    return f"{latency.speedup.median:.2f}x"


def _between(bench: Bench, latency: Latency) -> str:
    """The interval of the speedup; empty for the first model."""
    if latency is bench.latencies[0]:
        return ""
    return f"{latency.speedup.low:.2f} to {latency.speedup.high:.2f}"


def _memory(_: Bench, latency: Latency) -> str:
    memory = latency.footprint.memory
    return "n/a" if memory is None else size(max(memory, 0))


def _on_cpu(bench: Bench, latency: Latency) -> str:
    profile = latency.footprint.profile
    return f"{profile.on_cpu:,} of {profile.nodes:,}" if bench.device is not Device.CPU else "n/a"


_ROWS: tuple[tuple[str, Cell], ...] = (
    ("p50 ms", lambda _, latency: f"{latency.p50:.3f}"),
    ("p90 ms", lambda _, latency: f"{latency.p90:.3f}"),
    ("p99 ms", lambda _, latency: f"{latency.p99:.3f}"),
    ("runs/s", lambda _, latency: f"{latency.throughput:,.1f}"),
    ("speed against A", _speed),
    ("  with 90 % between", _between),
    ("to open, s", lambda _, latency: f"{latency.footprint.session_seconds:.2f}"),
    ("file", lambda _, latency: size(latency.size)),
    ("peak memory", _memory),
    ("nodes on the CPU", _on_cpu),
    ("Casts that ran", lambda _, latency: f"{latency.footprint.profile.casts:,}"),
)


_SHOWN = 5
"""How many of the operators that ran on the CPU are named."""


def _print_fallen(console: Console, bench: Bench, letter: str, latency: Latency) -> None:
    fallen = latency.footprint.profile.cpu_operators
    if bench.device is Device.CPU or not fallen:
        return
    named = ", ".join(f"{count} {operator}" for operator, count in fallen[:_SHOWN])
    more = ", ..." if len(fallen) > _SHOWN else ""
    console.print(f"{letter} on the CPU: {named}{more}")
