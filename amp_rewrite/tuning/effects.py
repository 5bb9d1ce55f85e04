"""What rounding at each node of a half model adds to the error of its outputs, by switches."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from amp_rewrite.errors import FeedError, ModelError
from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy import node_patterns
from amp_rewrite.running import emulation
from amp_rewrite.running.blame import Blame, NodeError, pins
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.sessions import Feeds, Runnable
from amp_rewrite.tuning.switches import SwitchedSession, opened, switched_emulation

# How much each rounding site adds to the error of the outputs, by splitting.
#
# Errors of single sites add in squares: the squared error of a group is the sum of those of its halves, so
# that one run tells both. What overflows has an infinite error, and is split until it stands alone. The
# largest group is split until those that are left fit the target.

SquaredError = Callable[[Sequence[int]], float]
"""The squared error of the outputs with these sites on, relative to the target; infinite if one is lost."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sites next to each other, and their squared error together, relative to that of the target."""

    sites: tuple[int, ...]
    error: float

    @property
    def of_each(self) -> float:
        """The squared error of each of its sites: not known apart, it counts as the same."""
        return self.error / len(self.sites)


def split(
    groups: Iterable[Group], measure: SquaredError, fits: float, may_go_on: Callable[[], bool]
) -> list[Group]:
    """These groups, split until all but the largest single sites have a squared error of at most `fits`
    together, or may not go on.
    """
    queue: list[tuple[float, int, Group]] = []
    single: list[Group] = []
    for group in groups:
        _push(queue, group)
    while queue and may_go_on() and sum(group.error for _, _, group in queue) > fits:
        _, _, largest = heapq.heappop(queue)
        if len(largest.sites) == 1:
            single.append(largest)
            continue
        for half in _halves(largest, measure):
            _push(queue, half)
    return [*single, *(group for _, _, group in queue)]


def _push(queue: list[tuple[float, int, Group]], group: Group) -> None:
    heapq.heappush(queue, (-group.error, group.sites[0], group))


def _halves(group: Group, measure: SquaredError) -> tuple[Group, Group]:
    """Both halves of a group: one run tells both, or two where the difference would tell little: something
    overflows, or the second half has no more than errors of measurement.
    """
    middle = len(group.sites) // 2
    first, second = group.sites[:middle], group.sites[middle:]
    left = measure(first)
    right = group.error - left
    if math.isfinite(group.error) and right > _TOLD * group.error:
        return Group(first, left), Group(second, right)
    return Group(first, left), Group(second, measure(second))


_TOLD = 0.1
"""The share of a group's error from which on the difference tells that of a half: sums hold to a tenth."""


MOST_RUNS = 64
"""Runs after which values that are not told apart share the error of their group."""

_FITS = 0.01
"""The share of the squared error that may be of values that are not told apart."""


LARGEST = 1 << 30
"""The bytes of a model above which effects are not measured: a session takes a copy of it."""


def effects(
    original: Runnable, rewritten: Runnable, feeds: Feeds, libraries: Libraries = ()
) -> Mapping[str, float] | None:
    """The error of the outputs (Metrics.error) that rounding adds at nodes of the rewritten model, by their
    names; what bodies round counts for the node that has them. Infinite where an output is lost. What rounds
    stored values is not in it. It runs on the CPU, with half emulated; None for a model that is too large, or
    does not run so.
    """
    emulated = emulation.emulation(rewritten)
    if emulated.size > LARGEST:
        return None
    model, values = switched_emulation(emulated)
    try:
        with opened(original, model, (feeds,), 1.0, libraries=libraries) as session:
            found = _by_value(session, len(values))
    except (ModelError, FeedError):
        return None
    squared: defaultdict[str, float] = defaultdict(float)
    owners = _owners(model.loaded.model.graph)
    for value, error in zip(values, found, strict=True):
        if node := owners.get(graph_of(value), value.producer()):
            squared[node_patterns.pinned_as(node)] += error
    return {name: math.sqrt(error) for name, error in squared.items()}


def _by_value(session: SwitchedSession, count: int) -> list[float]:
    """The squared error that each value adds."""
    noise = session.squared(())

    def added(sites: Sequence[int]) -> float:
        return max(session.squared(sites) - noise, 0.0)

    def may_go_on() -> bool:
        return session.runs < MOST_RUNS

    whole = added(range(count)) if count else 0.0
    fits = whole * _FITS if math.isfinite(whole) else 0.0
    groups = [Group(tuple(range(count)), whole)] if count else []
    found = [0.0] * count
    for group in split(groups, added, fits, may_go_on):
        for site in group.sites:
            found[site] = group.of_each
    return found


def _owners(root: ir.Graph) -> dict[ir.Graph, ir.Node]:
    """The nodes of the main graph that have bodies, by all graphs in them."""
    return {inner: node for node in root for body in control_flow.bodies(node) for inner in graphs(body)}


def ranked(blame: Blame, found: Mapping[str, float] | None, original: Runnable) -> Blame:
    """The blame with these effects, if any: the nodes in their descending order, what is lost before all, and
    pins of those that add most, unless a node loses values.
    """
    if found is None:
        return blame
    nodes = sorted((replace(e, effect=found.get(e.node, 0.0)) for e in blame.nodes), key=_rank)
    told, adding = replace(blame, nodes=tuple(nodes)), _most(nodes)
    if blame.first_lost is not None or not adding:
        return told
    return replace(told, keep_full=pins(original, adding))


def _most(nodes: Sequence[NodeError]) -> list[NodeError]:
    """The first nodes of a ranking that together add MOST of the squared error, up to PINNED of them."""
    adding = list({error.node: error for error in nodes if error.effect}.values())
    squared = [(error.effect or 0.0) ** 2 for error in adding]
    left = sum(squared) * (1 - MOST)
    return adding[: next((n for n in range(1, PINNED) if sum(squared[n:]) <= left), PINNED)]


MOST, PINNED = 0.9, 3
"""The share of the squared error that pins are to take away, and how many nodes they may name for it."""


def _rank(error: NodeError) -> tuple[float, ...]:
    return (-error.non_finite, -(error.effect or 0.0), not error.rounds, -error.added)
