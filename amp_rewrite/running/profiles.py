"""Which nodes ran where, from the profile that onnxruntime writes of a run."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Profile:
    """The nodes that one run executed, including subgraphs, after the runtime's own fusions.

    `nodes` is their number, `on_cpu` the number of those on the CPU provider, and `cpu_operators` counts the
    latter by operator. `casts` is the number of executions of Casts, the runtime's own included, `copies`
    that of copies between devices; each iteration of a loop counts.
    """

    nodes: int
    on_cpu: int
    casts: int
    copies: int
    cpu_operators: tuple[tuple[str, int], ...]


CPU = "CPUExecutionProvider"
_RAN = "_kernel_time"
"""Suffix of the events of executed nodes; older versions also write events of fences before and after."""
_COPIES = frozenset(("MemcpyFromHost", "MemcpyToHost"))


def read(path: Path) -> Profile:
    """The profile of a session that ran once."""
    text = path.read_text(errors="replace")
    try:
        return parse(json.loads(text))
    except ValueError:
        return parse(_valid_events(text))


def _valid_events(text: str) -> Iterator[Mapping[str, Any]]:
    """The events that are valid JSON: onnxruntime 1.30 writes one a line, and does not escape names."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line.rstrip(","))
            if isinstance(event, dict):
                yield event


def parse(events: Iterable[Mapping[str, Any]]) -> Profile:
    """The profile from the events of the file: a list of Chrome trace events."""
    ran = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_RAN)]
    nodes = {(event["name"], event["args"].get("node_index")): event["args"] for event in ran}
    operators = Counter(event["args"].get("op_name", "") for event in ran)
    cpu = Counter(node.get("op_name", "") for node in nodes.values() if node.get("provider") == CPU)
    return Profile(
        nodes=len(nodes),
        on_cpu=cpu.total(),
        casts=operators["Cast"],
        copies=sum(operators[name] for name in _COPIES),
        cpu_operators=tuple(sorted(cpu.items(), key=lambda entry: (-entry[1], entry[0]))),
    )
