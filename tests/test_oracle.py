"""`rules.paint` against the slow colouring of `oracle.py`, on small graphs and random ones."""

import functools
import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from amp_rewrite.colouring.rules import paint
from tests import graphs, oracle
from tests.graphs import Edge

KINDS: tuple[str, ...] = ("ALLOW", "INFER", graphs.FOLLOW, "CLEAR", "DENY", "FIXED")
"""Every kind of unit when follow is on."""

HELD: tuple[str, ...] = ("allow", "infer", "follow", "clear", "deny")
"""What a pin or a finding holds in float32, by the kind that it had."""

UNMARKED = ("ALLOW", "INFER", "CLEAR", "DENY", "FIXED")
"""Without follow, a mark says nothing: `test_a_mark_says_nothing_without_follow` holds us to it."""

LARGEST = 7

Ties = tuple[tuple[int, ...], ...]


def _subsets(items: Sequence[Edge]) -> Iterator[tuple[Edge, ...]]:
    for count in range(len(items) + 1):
        yield from itertools.combinations(items, count)


def _directed(size: int) -> Iterator[tuple[Edge, ...]]:
    """Every directed graph without an edge from a unit to itself."""
    return _subsets(list(itertools.permutations(range(size), 2)))


def _acyclic(size: int) -> Iterator[tuple[Edge, ...]]:
    """Every acyclic graph whose units stand in order; all others are one of these, renumbered."""
    return _subsets(list(itertools.combinations(range(size), 2)))


def _compare(size: int, edges: Sequence[Edge], ties: Ties = ()) -> int:
    """Compares every assignment of kinds, with follow and without; returns how many there were."""
    graph = graphs.graph(size, edges, ties)
    known = frozenset(edges)
    count = 0
    for follow, kinds in ((True, KINDS), (False, UNMARKED)):
        for words in itertools.product(kinds, repeat=size):
            expected = oracle.colours(words, known, ties, follow=follow)
            assert _colours(graph, words, follow) == expected, _case(words, edges, ties, follow)
            count += 1
    return count


def _colours(graph: graphs.UnitGraph, words: Sequence[str], follow: bool) -> str:
    found = tuple(map(_entry, words))
    return graphs.colours(paint(graph, found, follow=follow))


_entry = functools.cache(graphs.entry)


def _case(words: Sequence[str], edges: Sequence[Edge], ties: Ties, follow: bool) -> str:
    return f"{' '.join(words)}, edges {edges}, ties {ties}, follow {follow}"


# ---- every small graph


def _cases(size: int) -> int:
    return len(KINDS) ** size + len(UNMARKED) ** size


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_graph_of_up_to_three_units(size: int) -> None:
    """All directed graphs, circles included, with every assignment of kinds."""
    counts = [_compare(size, edges) for edges in _directed(size)]
    assert sum(counts) == 2 ** (size * (size - 1)) * _cases(size)


@pytest.mark.parametrize("ties", [((0, 1),), ((1, 2),), ((0, 2),), ((0, 1, 2),), ((0, 1), (1, 2))])
def test_every_tied_graph_of_three_units(ties: Ties) -> None:
    """All acyclic graphs with every assignment of kinds, for each way to tie three units."""
    for edges in _acyclic(3):
        _compare(3, edges, ties)


@pytest.mark.slow
def test_every_graph_of_four_units() -> None:
    """All acyclic graphs of four units, with every assignment of kinds."""
    counts = [_compare(4, edges) for edges in _acyclic(4)]
    assert sum(counts) == 2**6 * _cases(4)


# ---- random larger ones


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 25))]
)
def test_many_random_graphs(seed: int) -> None:
    """Up to seven units with circles and ties, few of them DENY or FIXED, and edges mostly forward."""
    source = random.Random(seed)
    for _ in range(220):
        _compare_random(source)


def _compare_random(source: random.Random) -> None:
    words, edges, ties, follow = _random(source)
    graph = graphs.graph(len(words), edges, ties)
    expected = oracle.colours(words, frozenset(edges), ties, follow=follow)
    assert _colours(graph, words, follow) == expected, _case(words, edges, ties, follow)


def _random(source: random.Random) -> tuple[list[str], list[Edge], Ties, bool]:
    size = source.randint(4, LARGEST)
    words: list[str] = source.choices((*KINDS, *HELD), weights=(8, 6, 6, 10, 4, 2, 1, 1, 1, 1, 1), k=size)
    density, backward = source.uniform(0.2, 0.6), source.choice((0, 0, 0.1))
    edges = [
        (a, b)
        for a, b in itertools.permutations(range(size), 2)
        if source.random() < (density if a < b else backward)
    ]
    groups = source.choice((0, 0, 1, 2))
    ties = tuple(tuple(source.sample(range(size), source.randint(2, 3))) for _ in range(groups))
    return words, edges, ties, source.random() < 0.5


# ---- more in float32


@pytest.mark.parametrize("seed", range(3))
def test_more_in_float32_makes_nothing_half(seed: int) -> None:
    """Neither a unit that is held nor one that is denied makes another half."""
    source = random.Random(seed)
    for _ in range(100):
        words, edges, ties, follow = _random(source)
        graph = graphs.graph(len(words), edges, ties)
        before = _halves(graph, words, follow)
        for unit, word in enumerate(words):
            for more in {word.lower(), "DENY", "deny"} if word != "FIXED" else ():
                changed = [*words[:unit], more, *words[unit + 1 :]]
                assert _halves(graph, changed, follow) <= before, _case(changed, edges, ties, follow)


def _halves(graph: graphs.UnitGraph, words: Sequence[str], follow: bool) -> set[int]:
    return {unit for unit, word in enumerate(_colours(graph, words, follow).split()) if word == "HALF"}


# ---- the oracle itself


def test_the_oracle_knows_the_example_of_the_design() -> None:
    """The slow colouring gives what DESIGN gives for its chain."""
    words = ["DENY", "INFER", "CLEAR", "INFER", "CLEAR", "ALLOW", "INFER"]
    edges = frozenset(itertools.pairwise(range(len(words))))
    expected = "FULL FULL FULL FULL HALF HALF FULL"
    assert oracle.colours(words, edges, follow=False) == expected


@pytest.mark.parametrize("edges", [(), ((0, 1),), ((0, 1), (1, 2)), ((0, 2), (1, 2))])
def test_a_mark_says_nothing_without_follow(edges: tuple[Edge, ...]) -> None:
    """With follow off, what is marked is painted as any other INFER unit."""
    graph = graphs.graph(3, edges)
    for words in itertools.product(KINDS, repeat=3):
        plain = ["INFER" if word == graphs.FOLLOW else word for word in words]
        assert _colours(graph, words, False) == _colours(graph, plain, False)
