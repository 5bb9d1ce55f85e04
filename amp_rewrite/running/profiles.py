"""What ran where, from the profile that onnxruntime writes of a run."""

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
    """The nodes that one run of a model executed, subgraphs included, after the runtime's own fusions.

    `nodes` counts them, and `on_cpu` those of them that the CPU provider had. `casts` counts how often a
    Cast ran, the runtime's own as well as the model's, and `copies` how often a value went from one device
    to another; in a loop each turn counts. `cpu_operators` counts the nodes on the CPU by operator.
    """

    nodes: int
    on_cpu: int
    casts: int
    copies: int
    cpu_operators: tuple[tuple[str, int], ...]


CPU = "CPUExecutionProvider"
_RAN = "_kernel_time"
"""What the events of nodes that ran end in; older versions write of fences before and after as well."""
_COPIES = frozenset(("MemcpyFromHost", "MemcpyToHost"))


def read(path: Path) -> Profile:
    """The profile of a session that ran once."""
    text = path.read_text(errors="replace")
    try:
        return parse(json.loads(text))
    except ValueError:
        return parse(_readable(text))


def _readable(text: str) -> Iterator[Mapping[str, Any]]:
    """The events that can be read: onnxruntime 1.30 writes one a line, and names as they are, with quotes."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line.rstrip(","))
            if isinstance(event, dict):
                yield event


def parse(events: Iterable[Mapping[str, Any]]) -> Profile:
    """The same from the events of the file: a list of Chrome's trace events."""
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
