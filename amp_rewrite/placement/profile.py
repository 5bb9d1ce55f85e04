"""The nodes that one run executed, from the profile that onnxruntime writes."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
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
COPIES = ("MemcpyFromHost", "MemcpyToHost")
"""Operators that copy between devices."""


def read(path: Path) -> Profile:
    """Return the profile of a session after one run."""
    events: list[Mapping[str, Any]] = []
    for line in path.read_text(errors="replace").splitlines():  # one event each; names are not escaped
        with contextlib.suppress(ValueError):
            event = json.loads(line.rstrip(","))
            entries: list[Any] = event if isinstance(event, list) else [event]
            events += [each for each in entries if isinstance(each, dict)]
    return parse(events)


def parse(events: Iterable[Mapping[str, Any]]) -> Profile:
    """Return the profile from the Chrome trace events of the file."""
    ran = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_RAN)]
    nodes = {(event["name"], event["args"].get("node_index")): event["args"] for event in ran}
    operators = Counter(event["args"].get("op_name", "") for event in ran)
    cpu = Counter(node.get("op_name", "") for node in nodes.values() if node.get("provider") == CPU)
    return Profile(
        nodes=len(nodes),
        on_cpu=cpu.total(),
        casts=operators["Cast"],
        copies=sum(operators[name] for name in COPIES),
        cpu_operators=tuple(sorted(cpu.items(), key=lambda entry: (-entry[1], entry[0]))),
    )
