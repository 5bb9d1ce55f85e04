"""Sensitivity of the outputs to rounding at each node of a half model, measured by switches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from amp_rewrite.errors import FeedError, ModelError
from amp_rewrite.model.graph_edits import graph_of
from amp_rewrite.model.traversal import graphs
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy import node_patterns
from amp_rewrite.running import emulation
from amp_rewrite.running.blame import Blame, NodeError, pins
from amp_rewrite.running.sessions import Feeds, Libraries, Runnable
from amp_rewrite.tuning import search
from amp_rewrite.tuning.search import Group
from amp_rewrite.tuning.switches import SwitchedSession, opened

MOST_RUNS = 64
"""The most runs; afterwards values that are not measured separately share the error of their group."""

_FITS = 0.01
"""The share of the squared error that may belong to values not measured separately."""


LARGEST = 1 << 30
"""The bytes of a model above which effects are not measured: a session takes a copy of it."""


def effects(
    original: Runnable, rewritten: Runnable, feeds: Feeds, libraries: Libraries = ()
) -> Mapping[str, float] | None:
    """Return the output error (Metrics.error) that rounding at each node of the rewritten model adds, by
    name; rounding in bodies counts for their node. Infinite if an output becomes non-finite. Rounding of
    initializers is not included. Runs on the CPU with emulated half; None for a model that is too large or
    does not run that way.
    """
    model = emulation.switched_emulation(rewritten)
    if model.loaded.size > LARGEST:
        return None
    try:
        with opened(original, model, (feeds,), 1.0, libraries=libraries) as session:
            errors = _by_value(session, len(model.values))
    except (ModelError, FeedError):
        return None
    squared: defaultdict[str, float] = defaultdict(float)
    owners = _owners(model.loaded.model.graph)
    for value, error in zip(model.values, errors, strict=True):
        if node := owners.get(graph_of(value), value.producer()):
            squared[node_patterns.pinned_as(node)] += error
    return {name: math.sqrt(error) for name, error in squared.items()}


def _by_value(session: SwitchedSession, count: int) -> list[float]:
    """Return the squared error that rounding each value adds."""
    noise = session.squared(())

    def above_noise(sites: Sequence[int]) -> float:
        return max(session.squared(sites) - noise, 0.0)

    def may_go_on() -> bool:
        return session.runs < MOST_RUNS

    whole = above_noise(range(count)) if count else 0.0
    fits = whole * _FITS if math.isfinite(whole) else 0.0
    groups = [Group(tuple(range(count)), whole)] if count else []
    errors = [0.0] * count
    for group in search.split(groups, above_noise, fits, may_go_on):
        for site in group.sites:
            errors[site] = group.of_each
    return errors


def _owners(root: ir.Graph) -> dict[ir.Graph, ir.Node]:
    """Map all nested graphs to the node of the main graph that has them."""
    return {inner: node for node in root for body in control_flow.bodies(node) for inner in graphs(body)}


def ranked(blame: Blame, by_node: Mapping[str, float] | None, original: Runnable) -> Blame:
    """Return the blame with these effects, if any: nodes in descending order, value losses first, and pins of
    the nodes that add most, unless a node loses values.
    """
    if by_node is None:
        return blame
    nodes = sorted((replace(e, effect=by_node.get(e.node, 0.0)) for e in blame.nodes), key=_rank)
    ranking, adding = replace(blame, nodes=tuple(nodes)), _most(nodes)
    if blame.first_lost is not None or not adding:
        return ranking
    return replace(ranking, keep_full=pins(original, adding))


def _most(nodes: Sequence[NodeError]) -> list[NodeError]:
    """Return the first nodes of a ranking that together add MOST of the squared error, at most PINNED."""
    adding = list({error.node: error for error in nodes if error.effect}.values())
    squared = [(error.effect or 0.0) ** 2 for error in adding]
    remainder = sum(squared) * (1 - MOST)
    return adding[: next((n for n in range(1, PINNED) if sum(squared[n:]) <= remainder), PINNED)]


MOST, PINNED = 0.9, 3
"""The share of the squared error that pins should remove, and the most nodes they may name."""


def _rank(error: NodeError) -> tuple[float, ...]:
    return (-error.non_finite, -(error.effect or 0.0), not error.rounds, -error.added)
