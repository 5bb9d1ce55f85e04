"""onnxruntime's verbose log -> which provider each node is placed on, and why some are on the CPU."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NodeKey = tuple[str, str]
"""A node as the log names it: operator without domain, and name, which may be empty."""


class CpuReason(enum.Enum):
    """Why a node is on the CPU although another provider was asked for."""

    NO_KERNEL = "no kernel"
    REFUSED = "refused by attribute"
    PREFERRED = "preferred"
    INSERTED = "inserted"
    UNSAID = "not said"


@dataclass(frozen=True, slots=True)
class PlacementLog:
    """What a log says: how many nodes each provider has, and which, where there is more than one provider.

    `why` has the reason that the log gives for nodes that did not go to the provider that was asked for.
    """

    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    nodes: Mapping[str, Counter[NodeKey]] = field(default_factory=dict[str, Counter[NodeKey]])
    why: Mapping[NodeKey, CpuReason] = field(default_factory=dict[NodeKey, CpuReason])


def read(path: Path) -> PlacementLog:
    """The log of one session."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return parse(lines)


def parse(lines: Iterable[str]) -> PlacementLog:
    """The same from its lines; the last word on a node counts."""
    counts: dict[str, int] = {}
    nodes: dict[str, Counter[NodeKey]] = {}
    why: dict[NodeKey, CpuReason] = {}
    preferred: set[str] = set()
    provider = ""
    for line in map(_plain, lines):
        if heading := _HEADING.search(line):
            provider = heading["provider"]
            counts[provider] = int(heading["count"])
            nodes[provider] = Counter()
        elif provider and (node := _PLACED.search(line)):
            nodes[provider][node["operator"], node["name"]] += 1
        elif forced := _PREFERRED.search(line):
            preferred.add(forced["name"])
        else:
            why.update(_reason(line))
    # a node without a kernel may be named by both; what is preferred has one
    keys = (key for placed in nodes.values() for key in placed)
    return PlacementLog(
        counts, nodes, {key: CpuReason.PREFERRED for key in keys if key[1] in preferred} | why
    )


def _reason(line: str) -> Iterator[tuple[NodeKey, CpuReason]]:
    for pattern, why in _REASONS:
        if found := pattern.search(line):
            yield (found["operator"], found["name"]), why


def _plain(line: str) -> str:
    """A line without its end and its colours."""
    return _COLOUR.sub("", line.rstrip("\n"))


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_VERIFY = r"VerifyEachNodeIsAssignedToAnEp\]\s+"
_HEADING = re.compile(
    _VERIFY + r"(?:All nodes|Node\(s\)) placed on \[(?P<provider>\w+)\]. Number of nodes: (?P<count>\d+)"
)
_PLACED = re.compile(_VERIFY + r"(?P<operator>\S+) \((?P<name>.*)\)\s*$")
_PREFERRED = re.compile(r"Force fallback to CPU execution for node: (?P<name>.*?) because ")
_NODE = r"Op type: (?P<operator>\S+) node name: ?(?P<name>.*?)\s*$"
_REASONS = (
    (re.compile(r"kernel not found in registries for " + _NODE), CpuReason.NO_KERNEL),
    (re.compile(r"Fallback to CPU execution provider for " + _NODE), CpuReason.REFUSED),
)
