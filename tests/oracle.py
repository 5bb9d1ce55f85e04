"""A slow colouring, straight from the definitions: every rule as a set of ways through the graph.

Nothing here is shared with `amp_rewrite.colours`, and nothing is clever: no work lists, no visited
marks, no order. Units count from 0; a kind is a word of `graphs`, where FOLLOW is an INFER unit
that the lists mark so, and small letters are for a unit that is held in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

Pair = tuple[int, int]
Ways = frozenset[Pair]

INFER = ("INFER", "FOLLOW")
SUSPECT = ("INFER", "FOLLOW", "DENY")
GOES_ALONG = ("INFER", "FOLLOW", "CLEAR")


def colours(
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
