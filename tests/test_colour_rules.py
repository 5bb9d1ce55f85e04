"""The rules of colour, case by case, on graphs made of words."""

import itertools
from collections.abc import Sequence

import pytest

from amp_rewrite import Options, analyze
from amp_rewrite.colouring.painting import Colour, Paint, Painting, Rule
from amp_rewrite.colouring.rules import paint, reach
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Level
from tests import graphs, text
from tests.graphs import chain, entries, entry, graph

LONG = 20_000
"""Units of a chain on which anything worse than linear would show."""


Ties = Sequence[tuple[int, ...]]


def _painted(words: str, *, follow: bool = False, ties: Ties = ()) -> Painting:
    found = entries(words)
    return paint(chain(len(found), tuple(ties)), found, follow=follow)


# ---- chains

CHAINS = {
    # allow
    "ALLOW": "HALF",
    "ALLOW ALLOW": "HALF HALF",
    # nothing allowed, nothing changed
    "INFER": "FULL",
    "CLEAR INFER CLEAR": "FULL FULL FULL",
    "DENY CLEAR INFER CLEAR FIXED": "FULL FULL FULL FULL FULL",
    # between: INFER and CLEAR with ALLOW on both sides
    "ALLOW INFER ALLOW": "HALF HALF HALF",
    "ALLOW CLEAR INFER CLEAR ALLOW": "HALF HALF HALF HALF HALF",
    "ALLOW INFER": "HALF FULL",
    "INFER ALLOW": "FULL HALF",
    "CLEAR INFER ALLOW INFER CLEAR": "FULL FULL HALF FULL FULL",
    "ALLOW INFER INFER ALLOW INFER INFER": "HALF HALF HALF HALF FULL FULL",
    # deny: up to the last INFER or DENY, through CLEAR
    "DENY ALLOW": "FULL HALF",
    "DENY INFER ALLOW": "FULL FULL HALF",
    "DENY CLEAR ALLOW": "FULL HALF HALF",
    "DENY CLEAR DENY CLEAR ALLOW": "FULL FULL FULL HALF HALF",
    "DENY INFER CLEAR INFER CLEAR ALLOW INFER": "FULL FULL FULL FULL HALF HALF FULL",
    "ALLOW INFER DENY": "HALF FULL FULL",
    "ALLOW CLEAR DENY": "HALF HALF FULL",
    "ALLOW CLEAR DENY INFER ALLOW": "HALF HALF FULL FULL HALF",
    "ALLOW DENY INFER CLEAR INFER ALLOW": "HALF FULL FULL FULL FULL HALF",
    # deny forgets past ALLOW and past FIXED
    "DENY ALLOW INFER ALLOW": "FULL HALF HALF HALF",
    "DENY INFER ALLOW INFER ALLOW": "FULL FULL HALF HALF HALF",
    "DENY FIXED INFER ALLOW": "FULL FULL FULL HALF",
    "DENY CLEAR FIXED CLEAR ALLOW": "FULL FULL FULL HALF HALF",
    # FIXED stops between and spread
    "ALLOW FIXED ALLOW": "HALF FULL HALF",
    "ALLOW INFER FIXED INFER ALLOW": "HALF FULL FULL FULL HALF",
    "ALLOW CLEAR FIXED CLEAR INFER": "HALF HALF FULL FULL FULL",
    # spread: CLEAR in both directions, up to the first that is not CLEAR
    "CLEAR CLEAR ALLOW CLEAR CLEAR": "HALF HALF HALF HALF HALF",
    "INFER CLEAR ALLOW CLEAR INFER CLEAR": "FULL HALF HALF HALF FULL FULL",
    "DENY CLEAR CLEAR": "FULL FULL FULL",
    # follow off: what is marked is INFER like any other
    "ALLOW FOLLOW CLEAR": "HALF FULL FULL",
    "ALLOW FOLLOW ALLOW": "HALF HALF HALF",
}


@pytest.mark.parametrize(("words", "expected"), CHAINS.items(), ids=CHAINS)
def test_chain(words: str, expected: str) -> None:
    """Allow, deny, between and spread along a chain, without follow."""
    assert graphs.colours(_painted(words)) == expected


FOLLOWING = {
    "ALLOW FOLLOW": "HALF HALF",
    "ALLOW INFER": "HALF FULL",
    "FOLLOW ALLOW": "FULL HALF",
    "ALLOW FOLLOW FOLLOW CLEAR": "HALF HALF HALF HALF",
    "ALLOW FOLLOW INFER FOLLOW": "HALF HALF FULL FULL",
    # spread and follow take turns until neither paints
    "ALLOW CLEAR FOLLOW": "HALF HALF HALF",
    "ALLOW CLEAR FOLLOW CLEAR CLEAR FOLLOW INFER": "HALF HALF HALF HALF HALF HALF FULL",
    # what is denied neither follows nor leads
    "DENY FOLLOW": "FULL FULL",
    "DENY FOLLOW ALLOW FOLLOW": "FULL FULL HALF HALF",
    "ALLOW DENY FOLLOW": "HALF FULL FULL",
    "DENY CLEAR FOLLOW CLEAR": "FULL FULL FULL FULL",
    # a CLEAR that is only behind the denied takes its colour from elsewhere, and leads
    "DENY ALLOW CLEAR FOLLOW": "FULL HALF HALF HALF",
    "ALLOW FIXED FOLLOW": "HALF FULL FULL",
    "ALLOW FOLLOW FIXED CLEAR FOLLOW": "HALF HALF FULL FULL FULL",
}


@pytest.mark.parametrize(("words", "expected"), FOLLOWING.items(), ids=FOLLOWING)
def test_chain_with_follow(words: str, expected: str) -> None:
    """What the lists mark `follow` goes on in half behind a half unit, and through CLEAR units."""
    assert graphs.colours(_painted(words, follow=True)) == expected


# ---- graphs with more than one way


def test_a_second_input_does_not_matter_to_between() -> None:
    """One way from ALLOW to ALLOW is enough, whatever undenied unit feeds one besides."""
    words = entries("ALLOW INFER INFER ALLOW")
    diamond = graph(4, [(0, 2), (1, 2), (2, 3)])
    assert graphs.colours(paint(diamond, words, follow=False)) == "HALF FULL HALF HALF"


def test_deny_beats_between() -> None:
    """Between two ALLOW units, an INFER unit that a denied one feeds as well stays float32."""
    join = graph(4, [(0, 2), (1, 2), (2, 3)])
    assert graphs.colours(paint(join, entries("ALLOW DENY INFER ALLOW"))) == "HALF FULL FULL HALF"


def test_deny_does_not_reach_past_the_last_suspect() -> None:
    """Of two branches behind a denied unit, the one without INFER or DENY may be half."""
    fork = graph(5, [(0, 1), (1, 2), (0, 3), (3, 4)])
    words = entries("DENY CLEAR INFER CLEAR ALLOW")
    assert graphs.colours(paint(fork, words)) == "FULL FULL FULL HALF HALF"


def test_a_denied_unit_makes_the_way_to_the_next_suspect() -> None:
    """A CLEAR unit between two DENY units is denied, and does not spread from an ALLOW reader."""
    fork = graph(4, [(0, 1), (1, 2), (1, 3)])
    assert graphs.colours(paint(fork, entries("DENY CLEAR DENY ALLOW"))) == "FULL FULL FULL HALF"


HELD = {
    # the last suspect is held: what leads to it is denied as before
    "DENY CLEAR infer ALLOW": ([(0, 1), (1, 2), (1, 3)], "FULL FULL FULL HALF"),
    "DENY CLEAR deny ALLOW": ([(0, 1), (1, 2), (1, 3)], "FULL FULL FULL HALF"),
    "DENY CLEAR allow ALLOW": ([(0, 1), (1, 2), (1, 3)], "FULL HALF FULL HALF"),
    "DENY CLEAR FIXED ALLOW": ([(0, 1), (1, 2), (1, 3)], "FULL HALF FULL HALF"),
    # what is held passes on what is dangerous, where it did
    "DENY infer INFER ALLOW ALLOW": ([(0, 1), (1, 2), (3, 2), (2, 4)], "FULL FULL FULL HALF HALF"),
    "DENY clear INFER ALLOW ALLOW": ([(0, 1), (1, 2), (3, 2), (2, 4)], "FULL FULL FULL HALF HALF"),
    "DENY allow INFER ALLOW ALLOW": ([(0, 1), (1, 2), (3, 2), (2, 4)], "FULL FULL HALF HALF HALF"),
    "DENY FIXED INFER ALLOW ALLOW": ([(0, 1), (1, 2), (3, 2), (2, 4)], "FULL FULL HALF HALF HALF"),
}


@pytest.mark.parametrize("words", HELD)
def test_deny_counts_a_held_unit_as_what_it_was(words: str) -> None:
    """What a pin or a finding holds in float32 makes nothing that is denied half."""
    edges, expected = HELD[words]
    found = entries(words)
    assert graphs.colours(paint(graph(len(found), edges), found)) == expected


@pytest.mark.parametrize(
    ("operator", "follow", "is_half"),
    [
        *((name, True, True) for name in ("Sin", "Sigmoid", "Softmax")),
        ("Neg", True, False),
        ("Sin", False, False),
    ],
)
def test_what_is_bounded_makes_nothing_suspect(operator: str, follow: bool, is_half: bool) -> None:
    """What is multiplied by the sine of what is denied is half, except by Grappler's own rules."""
    proto = text.model(
        f"""g (float[4, 8] x, float[1, 8] p) => (float[4, 8] y) <float[8, 8] w, float[8, 8] v> {{
        h = MatMul (x, w) f = Exp (p) [angle] a = {operator} (f)
        [rotated] r = Mul (h, a) y = MatMul (r, v) }}"""
    )
    found = analyze(proto, Options(follow=follow))
    halves = {unit.node.name for unit in found.graph.units if found.painting.is_half(unit.index)}
    assert halves & {"angle", "rotated"} == ({"rotated"} if is_half else set())


def test_follow_needs_that_no_maker_is_denied() -> None:
    """A unit that a half and a denied unit feed does not follow; with an unpainted one it does."""
    join = graph(3, [(0, 2), (1, 2)])
    assert graphs.colours(paint(join, entries("ALLOW DENY FOLLOW"))) == "HALF FULL FULL"
    assert graphs.colours(paint(join, entries("ALLOW FIXED FOLLOW"))) == "HALF FULL HALF"
    assert graphs.colours(paint(join, entries("ALLOW INFER FOLLOW"))) == "HALF FULL HALF"


def test_spread_goes_up_and_down_again() -> None:
    """Half reaches the sisters of a CLEAR unit through their common maker and common reader."""
    words = entries("CLEAR CLEAR CLEAR CLEAR ALLOW")
    sisters = graph(5, [(0, 1), (0, 2), (2, 3), (1, 4)])
    assert graphs.colours(paint(sisters, words)) == "HALF HALF HALF HALF HALF"


def test_a_circle_comes_to_an_end() -> None:
    """Units in a circle are painted like any others: a loop's border reads what its body makes."""
    circle = graph(3, [(0, 1), (1, 2), (2, 0)])
    assert graphs.colours(paint(circle, entries("ALLOW INFER CLEAR"))) == "HALF HALF HALF"
    assert graphs.colours(paint(circle, entries("DENY CLEAR INFER"))) == "FULL FULL FULL"
    assert graphs.colours(paint(circle, entries("ALLOW INFER DENY"))) == "HALF FULL FULL"


# ---- ties


def test_one_full_makes_all_full() -> None:
    """Tied units have one colour, and float32 wins, even over ALLOW; their neighbours stay half."""
    painting = _painted("ALLOW CLEAR FIXED ALLOW CLEAR", ties=[(2, 3)])
    assert graphs.colours(painting) == "HALF HALF FULL FULL HALF"
    assert painting.paints[3] == Paint(Colour.FULL, Rule.SETTLE, 2)


def test_ties_hold_across_groups() -> None:
    """A unit that stands in two groups ties all of both."""
    painting = _painted("ALLOW ALLOW ALLOW FIXED", ties=[(0, 1), (1, 2), (2, 3)])
    assert graphs.colours(painting) == "FULL FULL FULL FULL"
    assert painting.why(0) == (0, 1, 2, 3)


def test_each_tie_settles_by_itself() -> None:
    """Of three ties, the two that hold a FULL unit become FULL."""
    words = "ALLOW FIXED ALLOW ALLOW FIXED ALLOW"
    painting = _painted(words, ties=[(0, 1), (2, 3), (4, 5)])
    assert graphs.colours(painting) == "FULL FULL HALF HALF FULL FULL"


def test_half_spreads_along_ties() -> None:
    """A CLEAR unit that is tied to a half one becomes half, and goes on to its own neighbours."""
    words = entries("ALLOW CLEAR CLEAR FOLLOW")
    apart = graph(4, [(1, 2), (2, 3)], ties=[(0, 1)])
    assert graphs.colours(paint(apart, words)) == "HALF HALF HALF HALF"


def test_ties_of_one_colour_change_nothing() -> None:
    """Where all agree, a tie is without effect."""
    for words in ("ALLOW INFER ALLOW", "DENY INFER FIXED"):
        assert _painted(words, ties=[(0, 1, 2)]) == _painted(words)


# ---- levels


def test_nothing_is_denied_when_all_is_forced() -> None:
    """`unsafe-force-all` leaves the rule `deny` out; at every other level it counts."""
    words = entries("DENY INFER ALLOW INFER ALLOW")
    for level in Level:
        forced = level is Level.UNSAFE_FORCE_ALL
        painting = paint(chain(5), words, follow=False, level=level)
        assert (Rule.DENY in {p.rule for p in painting.paints}) is not forced


# ---- rules and causes


def test_each_rule_says_so() -> None:
    """A paint names the rule that gave it."""
    painting = _painted("CLEAR ALLOW INFER ALLOW FOLLOW DENY INFER FIXED", follow=True)
    assert graphs.rules(painting) == "spread allow between allow follow deny deny left"


def test_why_leads_to_where_it_began() -> None:
    """`why` follows the poison back to the DENY unit, and half back to the ALLOW unit."""
    painting = _painted("DENY INFER CLEAR INFER ALLOW FOLLOW CLEAR", follow=True)
    assert painting.why(3) == (3, 2, 1, 0)
    assert painting.why(6) == (6, 5, 4)
    assert painting.why(0) == (0,)
    assert painting.why(4) == (4,)


def test_why_of_a_circle_ends() -> None:
    """Causes that were edited to go in a circle are followed once around."""
    circle = tuple(Paint(Colour.FULL, Rule.DENY, cause) for cause in (1, 2, 1))
    assert Painting(circle, entries("DENY INFER INFER")).why(0) == (0, 1, 2)


def test_between_is_caused_by_the_allow_unit_that_it_leads_to() -> None:
    """The chain of a unit between two ALLOW units ends in the second of them."""
    assert _painted("ALLOW INFER CLEAR ALLOW").why(1) == (1, 2, 3)


CAUSED = [
    ("DENY INFER CLEAR INFER ALLOW FOLLOW CLEAR FOLLOW", []),
    ("ALLOW CLEAR INFER CLEAR ALLOW CLEAR FIXED CLEAR", [(1, 6)]),
    ("CLEAR CLEAR ALLOW FOLLOW FOLLOW CLEAR CLEAR DENY", [(0, 5), (5, 7)]),
    ("ALLOW FOLLOW CLEAR FOLLOW CLEAR FOLLOW CLEAR FIXED", [(0, 7), (2, 4)]),
    ("DENY CLEAR CLEAR INFER DENY CLEAR INFER CLEAR", [(1, 2)]),
]


@pytest.mark.parametrize(("words", "ties"), CAUSED)
def test_a_cause_is_a_neighbour(words: str, ties: list[tuple[int, int]]) -> None:
    """A cause is beside its unit or tied to it, and following causes ends in a unit without one."""
    painting = _painted(words, follow=True, ties=ties)
    beside = {(i, i + 1) for i in range(len(painting.paints) - 1)} | {*ties}
    for unit, found in enumerate(painting.paints):
        assert found.cause is None or beside & {(unit, found.cause), (found.cause, unit)}
        assert painting.paints[painting.why(unit)[-1]].cause is None


# ---- Casts that the model has: unit 0 is what a Cast to float32 gives, or what feeds one


def _cast_colour(words: str, *, leaving: Sequence[int] = (), authority: Authority = Authority.LIST) -> str:
    """The colour of a Cast's output side, unit 0, that all the others read."""
    first, *others = words.split()
    edges = [(0, i + 1) for i in range(len(others))]
    readers = graph(len(others) + 1, edges, casts=[0], leaving=leaving)
    found = (entry(first, authority), *map(entry, others))
    return paint(readers, found, follow=False).paints[0].colour.name


def test_a_cast_that_only_half_reads_gives_half() -> None:
    """An existing Cast to float32 is retargeted when all its readers are half."""
    assert _cast_colour("FIXED ALLOW") == "HALF"
    assert _cast_colour("FIXED ALLOW ALLOW") == "HALF"
    assert _cast_colour("FIXED ALLOW INFER") == "FULL"
    assert _cast_colour("FIXED INFER") == "FULL"


def test_a_cast_that_nobody_reads_stays() -> None:
    """Without readers there is no colour to take."""
    assert _cast_colour("FIXED") == "FULL"


def test_a_cast_that_is_an_output_stays() -> None:
    """A model's output keeps its type, whoever else reads it."""
    assert _cast_colour("FIXED ALLOW", leaving=[0]) == "FULL"


@pytest.mark.parametrize(
    "authority",
    [Authority.RANGE, Authority.OBSERVATION, Authority.SCHEMA, Authority.PIN, Authority.OVERRIDE],
)
def test_a_cast_that_must_stay_stays(authority: Authority) -> None:
    """A range, the schema, a pin or an override holds a Cast in float32 among half readers."""
    assert _cast_colour("FIXED ALLOW", authority=authority) == "FULL"


def test_a_denied_cast_stays() -> None:
    """Who denies Cast is heard."""
    assert _cast_colour("DENY ALLOW") == "FULL"


def test_the_input_side_of_a_cast_takes_the_colour_of_its_maker() -> None:
    """A Cast from float32 reads half where half is made: no Cast stands before a Cast."""
    into_cast = graph(2, [(0, 1)], casts=[1], leaving=[1])
    assert graphs.colours(paint(into_cast, entries("ALLOW FIXED"))) == "HALF HALF"
    assert graphs.colours(paint(into_cast, entries("INFER FIXED"))) == "FULL FULL"


def test_casts_settle_after_the_ties() -> None:
    """A Cast goes by the colours that ties leave."""
    words = entries("FIXED ALLOW FIXED")
    tied = graph(3, [(0, 1)], ties=[(1, 2)], casts=[0])
    assert graphs.colours(paint(tied, words)) == "FULL FULL FULL"


# ---- linear time, by counting


class _Counted(Sequence[Sequence[int]]):
    """Neighbours by unit; counts how often any were asked for."""

    def __init__(self, neighbours: Sequence[Sequence[int]]) -> None:
        self._neighbours = neighbours
        self.asked = 0

    def __getitem__(self, unit: int) -> Sequence[int]:  # type: ignore[override]
        self.asked += 1
        return self._neighbours[unit]

    def __len__(self) -> int:
        return len(self._neighbours)


def test_reach_asks_every_unit_once() -> None:
    """Each unit is asked for its neighbours once, and a root perhaps once more."""
    line = chain(LONG)
    edges = _Counted(line.successors)
    found = reach([0, LONG // 2], edges.__getitem__, lambda _: True)
    assert len(found) == LONG - 1
    assert edges.asked <= LONG + 1


RULES = 7
"""How many rules walk along edges, in either direction."""


@pytest.mark.parametrize(
    "words",
    [
        "ALLOW CLEAR INFER CLEAR ALLOW",
        "ALLOW FOLLOW CLEAR FOLLOW CLEAR CLEAR",
        "DENY INFER CLEAR CLEAR",
        "DENY CLEAR INFER ALLOW CLEAR FIXED CLEAR ALLOW",
    ],
)
def test_painting_is_linear(words: str) -> None:
    """Every unit is asked a few times: the turns of spread and follow do not add up."""
    found = tuple(itertools.islice(itertools.cycle(entries(words)), LONG))
    line = chain(LONG)
    makers, readers = _Counted(line.predecessors), _Counted(line.successors)
    counted = graphs.with_edges(line, producers=makers, consumers=readers)
    paint(counted, found)
    assert max(makers.asked, readers.asked) <= RULES * LONG


def test_a_long_chain_of_followers_is_painted_to_its_end() -> None:
    """Spread and follow take turns ten thousand times on one chain, without recursion."""
    words = ["ALLOW", "CLEAR", *["FOLLOW", "CLEAR"] * (LONG // 2 - 1)]
    painting = _painted(" ".join(words), follow=True)
    assert set(graphs.colours(painting).split()) == {"HALF"}
    assert painting.why(LONG - 1) == tuple(reversed(range(LONG)))


def test_a_large_tie_is_linear() -> None:
    """Twenty thousand readers of one sequence are tied without a pair for every two of them."""
    words = tuple(map(entry, ["FIXED", *["ALLOW"] * (LONG - 1)]))
    assert set(graphs.colours(paint(graph(LONG, [], [range(LONG)]), words)).split()) == {"FULL"}


def test_entries_are_kept() -> None:
    """A painting carries what it went by."""
    assert [e.kind for e in _painted("DENY FIXED").entries] == [Kind.DENY, Kind.FIXED]
