"""`rules.paint` against a slow colouring, on small graphs and random ones.

Nothing of that colouring is shared with `amp_rewrite.colouring`, and nothing is clever: every rule is a set
of ways. A kind is a word of `graphs`, where FOLLOW is an INFER unit that the lists mark so, and small letters
are for a unit that is held in float32.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import pytest

from amp_rewrite.colouring.rules import paint
from tests import graphs
from tests.graphs import Edge

Pair = tuple[int, int]
Ways = frozenset[Pair]

INFER = ("INFER", "FOLLOW")
SUSPECT = ("INFER", "FOLLOW", "DENY")
GOES_ALONG = ("INFER", "FOLLOW", "CLEAR")


def expected_colours(
    kinds: Sequence[str],
    edges: Collection[Pair],
    ties: Iterable[Collection[int]] = (),
    *,
    follow: bool,
) -> str:
    """HALF or FULL for every unit, as a line of words."""
    tied = frozenset((a, b) for group in ties for a in group for b in group if a != b)
    denied = _denied([kind.upper() for kind in kinds], edges)
    half = {u for u, kind in enumerate(kinds) if kind == "ALLOW"}
    half |= _between(kinds, edges, denied)
    while more := _more(kinds, edges, tied, denied, half, follow=follow):
        half |= more
    half -= _settled(len(kinds), tied, half)
    return " ".join("HALF" if u in half else "FULL" for u in range(len(kinds)))


def _denied(kinds: Sequence[str], edges: Collection[Pair]) -> set[int]:
    """DENY units, and what lies on a way through CLEAR and INFER from one to INFER or DENY."""
    ways = _ways(edges, lambda u: kinds[u] in GOES_ALONG)
    starts = [u for u, kind in enumerate(kinds) if kind == "DENY"]
    ends = [u for u, kind in enumerate(kinds) if kind in SUSPECT]
    on_the_way = {
        unit
        for unit, kind in enumerate(kinds)
        for start in starts
        for end in ends
        if kind in GOES_ALONG and (start, unit) in ways and (unit == end or (unit, end) in ways)
    }
    return {*starts, *on_the_way}


def _between(kinds: Sequence[str], edges: Collection[Pair], denied: set[int]) -> set[int]:
    """Undenied INFER and CLEAR units on a way from an ALLOW unit to one, through their like."""
    open_ = {u for u, kind in enumerate(kinds) if kind in GOES_ALONG} - denied
    ways = _ways(edges, open_.__contains__)
    allowed = [u for u, kind in enumerate(kinds) if kind == "ALLOW"]
    return {
        unit
        for unit in open_
        for first in allowed
        for last in allowed
        if (first, unit) in ways and (unit, last) in ways
    }


def _more(
    kinds: Sequence[str],
    edges: Collection[Pair],
    tied: Ways,
    denied: set[int],
    half: set[int],
    *,
    follow: bool,
) -> set[int]:
    """What spread, and follow if it is on, add to the HALF units; nothing when all is done."""
    spread = _spread(kinds, edges, tied, denied, half)
    return spread | (_follow(kinds, edges, denied, half) if follow else set())


def _spread(
    kinds: Sequence[str], edges: Collection[Pair], tied: Ways, denied: set[int], half: set[int]
) -> set[int]:
    """Unpainted CLEAR units with a way from a HALF unit through their like, ties and both ways."""
    clear = {u for u, kind in enumerate(kinds) if kind == "CLEAR"} - denied - half
    both = {(a, b) for a, b in edges} | {(b, a) for a, b in edges} | tied
    ways = _ways(both, clear.__contains__)
    return {unit for unit in clear for source in half if (source, unit) in ways}


def _follow(kinds: Sequence[str], edges: Collection[Pair], denied: set[int], half: set[int]) -> set[int]:
    """Unpainted units that are marked so, that a HALF unit feeds and no denied one."""
    return {
        unit
        for unit, kind in enumerate(kinds)
        if kind == "FOLLOW" and unit not in denied | half
        if any((maker, unit) in edges for maker in half)
        if not any((maker, unit) in edges for maker in denied)
    }


def _settled(size: int, tied: Ways, half: set[int]) -> set[int]:
    """HALF units that are tied to a FULL one, directly or through others."""
    ways = _ways(tied, lambda _: True)
    full = set(range(size)) - half
    return {unit for unit in half for other in full if (unit, other) in ways}


def _ways(edges: Collection[Pair], through: Callable[[int], bool]) -> Ways:
    """Every (a, b) with a way from a to b, of one edge or more, by units that `through` admits."""
    steps = frozenset(edges)
    ways = steps
    while True:
        longer = ways | {(a, d) for a, b in ways if through(b) for c, d in steps if b == c}
        if longer == ways:
            return ways
        ways = longer


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
            expected = expected_colours(words, known, ties, follow=follow)
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
    expected = expected_colours(words, frozenset(edges), ties, follow=follow)
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
    assert expected_colours(words, edges, follow=False) == expected


@pytest.mark.parametrize("edges", [(), ((0, 1),), ((0, 1), (1, 2)), ((0, 2), (1, 2))])
def test_a_mark_says_nothing_without_follow(edges: tuple[Edge, ...]) -> None:
    """With follow off, what is marked is painted as any other INFER unit."""
    graph = graphs.graph(3, edges)
    for words in itertools.product(KINDS, repeat=3):
        plain = ["INFER" if word == graphs.FOLLOW else word for word in words]
        assert _colours(graph, words, False) == _colours(graph, plain, False)
