"""The placement of one model, as data: the nodes that onnxruntime executes, and their providers."""

from __future__ import annotations

import contextlib
import enum
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from amp_rewrite.model import proto_traversal
from amp_rewrite.onnx_types import schema
from amp_rewrite.placement.saved_graph import COPIES, FULL, HALVES, UNKNOWN, Executed
from amp_rewrite.rewriting import records

CPU = "CPUExecutionProvider"

# onnxruntime's verbose log -> the provider of each node, and the reasons for nodes on the CPU.

NodeKey = tuple[str, str]
"""A node as the log names it: operator without domain, and name, which may be empty."""


class CpuReason(enum.Enum):
    """The reason why a node is on the CPU although another provider was requested."""

    NO_KERNEL = "no kernel"
    REFUSED = "refused by attribute"
    PREFERRED = "preferred"
    INSERTED = "inserted"
    UNSAID = "not said"


@dataclass(frozen=True, slots=True)
class PlacementLog:
    """The content of a log: the number of nodes of each provider, and the nodes where there are several.

    `why` has the logged reason for nodes that are not on the requested provider.
    """

    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    nodes: Mapping[str, Counter[NodeKey]] = field(default_factory=dict[str, Counter[NodeKey]])
    why: Mapping[NodeKey, CpuReason] = field(default_factory=dict[NodeKey, CpuReason])


def read_log(path: Path) -> PlacementLog:
    """Return the log of one session."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return parse_log(lines)


def parse_log(lines: Iterable[str]) -> PlacementLog:
    """Return the same from its lines; the last word on a node counts."""
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
    # the log may name a node without a kernel in both messages; preferred nodes have one
    keys = (key for provider_nodes in nodes.values() for key in provider_nodes)
    return PlacementLog(
        counts, nodes, {key: CpuReason.PREFERRED for key in keys if key[1] in preferred} | why
    )


def _reason(line: str) -> Iterator[tuple[NodeKey, CpuReason]]:
    for pattern, why in _REASONS:
        if match := pattern.search(line):
            yield (match["operator"], match["name"]), why


def _plain(line: str) -> str:
    """Return a line without its end and its colours."""
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


# The profile of a run -> the nodes that it executed.


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


def read_profile(path: Path) -> Profile:
    """Return the profile of a session after one run."""
    events: list[Mapping[str, Any]] = []
    for line in path.read_text(errors="replace").splitlines():  # one event each; names are not escaped
        with contextlib.suppress(ValueError):
            event = json.loads(line.rstrip(","))
            entries: list[Any] = event if isinstance(event, list) else [event]
            events += [each for each in entries if isinstance(each, dict)]
    return parse_profile(events)


def parse_profile(events: Iterable[Mapping[str, Any]]) -> Profile:
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


_RAN = "_kernel_time"
"""Suffix of the events of executed nodes; older versions also write events of fences before and after."""


# Both, and the graph that onnxruntime saved -> the placement.

Counts = Mapping[str, int]
"""Counts by operator, or by the key that the field documents."""


@dataclass(frozen=True, slots=True)
class OnCpu:
    """Nodes on the CPU provider, of one operator, precision and reason."""

    operator: str
    precision: str
    why: CpuReason
    count: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that onnxruntime executes of a model on a provider, after its own optimisation and with
    subgraphs.

    `operators` counts all nodes; `half`, `full` and `untyped` those of them that are neither Casts nor copies
    and that consume or produce half, else float32, or whose types are unknown. `casts` counts all Casts by
    types (`float32>float16`), `inserted_casts` those that onnxruntime inserted. `copies` are nodes that copy
    between devices (Memcpy), `on_cpu` the nodes on the CPU where another provider was requested. `fused`
    counts operators that replace the model's: fusions, and kernels of another layout.

    `refused` says why the model does not load: then all else is empty. `failed` says why it did not run,
    `profile` the nodes that a run executed; both are empty without a run. `engine_bytes` is the size of the
    engine that TensorRT compiles, whose layers then stand for nodes.

    Examples:
        >>> from amp_rewrite import Placement
        >>> placement = Placement(operators={"Conv": 2, "MatMul": 3}, half={"MatMul": 3})
        >>> placement.nodes, placement.half
        (5, {'MatMul': 3})
    """

    refused: str = ""
    operators: Counts = field(default_factory=dict[str, int])
    fused: Counts = field(default_factory=dict[str, int])
    half: Counts = field(default_factory=dict[str, int])
    full: Counts = field(default_factory=dict[str, int])
    untyped: Counts = field(default_factory=dict[str, int])
    casts: Counts = field(default_factory=dict[str, int])
    inserted_casts: int = 0
    on_cpu: tuple[OnCpu, ...] = ()
    failed: str = ""
    profile: Profile | None = None
    engine_bytes: int | None = None

    @property
    def nodes(self) -> int:
        """All nodes that are executed."""
        return sum(self.operators.values())

    @property
    def float_casts(self) -> int:
        """Casts between float32 and half."""
        return sum(count for cast, count in self.casts.items() if set(cast.split(">")) in _MIXED)

    @property
    def copies(self) -> int:
        """Nodes that copy between devices."""
        return sum(self.operators.get(name, 0) for name in COPIES)

    @property
    def cpu_nodes(self) -> int:
        """Nodes on the CPU where another provider was requested."""
        return sum(group.count for group in self.on_cpu)

    def to_json(self) -> dict[str, object]:
        """Return the same as plain data.

        Examples:
            >>> from amp_rewrite import Placement
            >>> Placement(refused="no kernel").to_json()["refused"]
            'no kernel'
        """
        counts = {"nodes": self.nodes, "float_casts": self.float_casts, "copies": self.copies}
        totals = {"cpu_nodes": self.cpu_nodes, "loads": not self.refused}
        return {**totals, **counts, **records.plain(self)}


_MIXED = [{FULL, half} for half in HALVES]


@dataclass(frozen=True, slots=True)
class OwnNodes:
    """The nodes of a model: how many of each operator, functions included, and their names."""

    operators: Counts
    names: Collection[str]


def own_nodes(model: onnx.ModelProto) -> OwnNodes:
    """Return the nodes of a model, to distinguish them from those that onnxruntime creates."""
    own = [*proto_traversal.every_node(model)]
    operators = Counter(schema.written(schema.canonical(node.domain), node.op_type) for node in own)
    return OwnNodes(operators, frozenset(node.name for node in own))


def of(nodes: Sequence[Executed], log: PlacementLog, model: OwnNodes, *, cpu_asked: bool) -> Placement:
    """Return the placement of a model from the graph that onnxruntime saved and its log."""
    casts = [node for node in nodes if node.operator == "Cast"]
    work = [node for node in nodes if node.operator not in ("Cast", *COPIES)]
    operators = _sorted_counts(node.operator for node in nodes)
    return Placement(
        operators=operators,
        fused=_fused(operators, model),
        half=_sorted_counts(node.operator for node in work if node.precision in HALVES),
        full=_sorted_counts(node.operator for node in work if node.precision == FULL),
        untyped=_sorted_counts(node.operator for node in work if node.precision == UNKNOWN),
        casts=_sorted_counts(f"{''.join(node.inputs[:1])}>{''.join(node.outputs[:1])}" for node in casts),
        inserted_casts=sum(_is_inserted(node, model) for node in casts),
        on_cpu=() if cpu_asked else _on_cpu(nodes, log, model),
    )


def _sorted_counts(names: Iterable[str]) -> Counts:
    """Return the count of each name, the most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda entry: (-entry[1], entry[0])))


def _is_inserted(cast: Executed, model: OwnNodes) -> bool:
    """Return whether onnxruntime inserted a Cast; models that it saved earlier have Casts of equal names."""
    return cast.name.startswith("Inserted") and cast.name not in model.names


def _fused(operators: Counts, model: OwnNodes) -> Counts:
    """Return the operators of fusions: how many more nodes of each are executed than the model has."""
    more = {name: count - model.operators.get(name, 0) for name, count in operators.items()}
    return {name: count for name, count in more.items() if count > 0 and _is_fusion(name)}


def _is_fusion(operator: str) -> bool:
    if operator in COPIES or operator.endswith(_REORDERING):
        return False
    # all others that onnxruntime writes have a domain
    return ":" in operator or operator in (
        "Gemm",
        "Gelu",
        "LayerNormalization",
        "SimplifiedLayerNormalization",
    )


_REORDERING = ("ReorderInput", "ReorderOutput")


def _on_cpu(nodes: Sequence[Executed], log: PlacementLog, model: OwnNodes) -> tuple[OnCpu, ...]:
    remaining = Counter(log.nodes.get(CPU, {}))
    is_all = len(log.counts) == 1 and CPU in log.counts  # the log then lists no nodes
    totals = Counter[tuple[str, str, CpuReason]]()
    for node in nodes:
        key = _key(node)
        if remaining[key] > 0 or is_all:
            remaining[key] -= 1
            totals[node.operator, node.precision, _why(key, log, model)] += 1
    for (operator, _), count in (+remaining).items():  # nodes that the saved graph does not show
        totals[operator, UNKNOWN, CpuReason.UNSAID] += count
    groups = [OnCpu(*key, count) for key, count in totals.items()]
    return tuple(sorted(groups, key=lambda group: (-group.count, group.operator, group.precision)))


def _key(node: Executed) -> NodeKey:
    return node.operator.rpartition(":")[2], node.name


def _why(node: NodeKey, log: PlacementLog, model: OwnNodes) -> CpuReason:
    operator, name = node[0], _MOVED.sub("", node[1])
    is_own = name in model.names
    return log.why.get((operator, name), CpuReason.UNSAID if is_own else CpuReason.INSERTED)


_MOVED = re.compile(r"_token_\d+$")
"""The suffix of a name that onnxruntime appends when it moves a node past a Transpose."""
