"""The rules of colour, case by case, on graphs made of words."""

import itertools
from collections.abc import Sequence

import pytest

from amp_rewrite import analyze
from amp_rewrite.colouring.painting import Colour, Paint, Painting, Rule
from amp_rewrite.colouring.rules import paint, reach
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.options import Level
from tests import commands, graphs, text
from tests.graphs import chain, entries, entry, graph

LONG = 5_000
"""Units of a chain on which anything worse than linear would show."""


Ties = Sequence[tuple[int, ...]]


def _painted(words: str, *, follow: bool = False, ties: Ties = ()) -> Painting:
    found = entries(words)
    return paint(chain(len(found), tuple(ties)), found, follow=follow)


CHAINS = """
ALLOW                                    | HALF
DENY FIXED                               | FULL FULL
CLEAR INFER CLEAR                        | FULL FULL FULL
DENY CLEAR INFER CLEAR FIXED             | FULL FULL FULL FULL FULL
# between: INFER and CLEAR with ALLOW on both sides
ALLOW INFER ALLOW                        | HALF HALF HALF
ALLOW CLEAR INFER CLEAR ALLOW            | HALF HALF HALF HALF HALF
CLEAR INFER ALLOW INFER CLEAR            | FULL FULL HALF FULL FULL
ALLOW INFER INFER ALLOW INFER INFER      | HALF HALF HALF HALF FULL FULL
# deny: up to the last INFER or DENY, through CLEAR
DENY INFER ALLOW                         | FULL FULL HALF
DENY CLEAR ALLOW                         | FULL HALF HALF
DENY CLEAR DENY CLEAR ALLOW              | FULL FULL FULL HALF HALF
DENY INFER CLEAR INFER CLEAR ALLOW INFER | FULL FULL FULL FULL HALF HALF FULL
ALLOW INFER DENY                         | HALF FULL FULL
ALLOW CLEAR DENY                         | HALF HALF FULL
ALLOW CLEAR DENY INFER ALLOW             | HALF HALF FULL FULL HALF
ALLOW DENY INFER CLEAR INFER ALLOW       | HALF FULL FULL FULL FULL HALF
# deny forgets past ALLOW and past FIXED
DENY INFER ALLOW INFER ALLOW             | FULL FULL HALF HALF HALF
DENY FIXED INFER ALLOW                   | FULL FULL FULL HALF
DENY CLEAR FIXED CLEAR ALLOW             | FULL FULL FULL HALF HALF
# FIXED stops between and spread
ALLOW INFER FIXED INFER ALLOW            | HALF FULL FULL FULL HALF
ALLOW CLEAR FIXED CLEAR INFER            | HALF HALF FULL FULL FULL
# spread: CLEAR in both directions, up to the first that is not CLEAR
CLEAR CLEAR ALLOW CLEAR CLEAR            | HALF HALF HALF HALF HALF
INFER CLEAR ALLOW CLEAR INFER CLEAR      | FULL HALF HALF HALF FULL FULL
# follow off: what is marked is INFER like any other
ALLOW FOLLOW CLEAR                       | HALF FULL FULL
ALLOW FOLLOW ALLOW                       | HALF HALF HALF
"""


FOLLOWING = """
ALLOW INFER                                  | HALF FULL
FOLLOW ALLOW                                 | FULL HALF
ALLOW FOLLOW FOLLOW CLEAR                    | HALF HALF HALF HALF
ALLOW FOLLOW INFER FOLLOW                    | HALF HALF FULL FULL
# spread and follow take turns until neither paints
ALLOW CLEAR FOLLOW CLEAR CLEAR FOLLOW INFER  | HALF HALF HALF HALF HALF HALF FULL
# what is denied neither follows nor leads
DENY FOLLOW ALLOW FOLLOW                     | FULL FULL HALF HALF
ALLOW DENY FOLLOW                            | HALF FULL FULL
DENY CLEAR FOLLOW CLEAR                      | FULL FULL FULL FULL
# a CLEAR that is only behind the denied takes its colour from elsewhere, and leads
DENY ALLOW CLEAR FOLLOW                      | FULL HALF HALF HALF
ALLOW FOLLOW FIXED CLEAR FOLLOW              | HALF HALF FULL FULL FULL
"""


def _rows(table: str) -> list[list[str]]:
    return [row for row in commands.rows(table) if len(row) > 1]


@pytest.mark.parametrize("row", [*_rows(CHAINS), *_rows(FOLLOWING)], ids=lambda row: row[0])
def test_chain(row: list[str]) -> None:
    """Allow, deny, between and spread along a chain; with follow, what the lists mark so goes on in half
    behind a half unit, and through CLEAR units.
    """
    words, expected = row
    assert graphs.colours(_painted(words, follow=row in _rows(FOLLOWING))) == expected


GRAPHS = """
# one way from ALLOW to ALLOW is enough, whatever undenied unit feeds one besides
02 12 23    |          | ALLOW INFER INFER ALLOW       | HALF FULL HALF HALF
02 12 23    |          | ALLOW DENY INFER ALLOW        | HALF FULL FULL HALF
# of two branches behind a denied unit, the one without INFER or DENY may be half
01 12 03 34 |          | DENY CLEAR INFER CLEAR ALLOW  | FULL FULL FULL HALF HALF
# a CLEAR unit between two DENY units is denied, and does not spread from an ALLOW reader
01 12 13    |          | DENY CLEAR DENY ALLOW         | FULL FULL FULL HALF
# a unit that a half and a denied unit feed does not follow; with an unpainted one it does
02 12       |          | ALLOW DENY FOLLOW             | HALF FULL FULL
02 12       |          | ALLOW FIXED FOLLOW            | HALF FULL HALF
02 12       |          | ALLOW INFER FOLLOW            | HALF FULL HALF
# half reaches the sisters of a CLEAR unit through their common maker and common reader
01 02 23 14 |          | CLEAR CLEAR CLEAR CLEAR ALLOW | HALF HALF HALF HALF HALF
# units in a circle are painted like any others: a loop's border reads what its body makes
01 12 20    |          | ALLOW INFER CLEAR             | HALF HALF HALF
01 12 20    |          | DENY CLEAR INFER              | FULL FULL FULL
01 12 20    |          | ALLOW INFER DENY              | HALF FULL FULL
# a unit that stands in two groups ties all of both, and float32 wins, even over ALLOW
01 12 23    | 01 12 23 | ALLOW ALLOW ALLOW FIXED       | FULL FULL FULL FULL
01 12 23 34 | 23       | ALLOW CLEAR FIXED ALLOW CLEAR | HALF HALF FULL FULL HALF
01 12 23 34 45 | 01 23 45 | ALLOW FIXED ALLOW ALLOW FIXED ALLOW | FULL FULL HALF HALF FULL FULL
# a CLEAR unit that is tied to a half one becomes half, and goes on to its own neighbours
12 23       | 01       | ALLOW CLEAR CLEAR FOLLOW      | HALF HALF HALF HALF
01 12       | 012      | ALLOW INFER ALLOW             | HALF HALF HALF
01 12       | 012      | DENY INFER FIXED              | FULL FULL FULL
# what a pin or a finding holds in float32 makes nothing that is denied half: the last suspect is held,
# and what leads to it is denied as before
01 12 13    |          | DENY CLEAR infer ALLOW        | FULL FULL FULL HALF
01 12 13    |          | DENY CLEAR deny ALLOW         | FULL FULL FULL HALF
01 12 13    |          | DENY CLEAR allow ALLOW        | FULL HALF FULL HALF
01 12 13    |          | DENY CLEAR FIXED ALLOW        | FULL HALF FULL HALF
# what is held passes on what is dangerous, where it did
01 12 32 24 |          | DENY infer INFER ALLOW ALLOW  | FULL FULL FULL HALF HALF
01 12 32 24 |          | DENY clear INFER ALLOW ALLOW  | FULL FULL FULL HALF HALF
01 12 32 24 |          | DENY allow INFER ALLOW ALLOW  | FULL FULL HALF HALF HALF
01 12 32 24 |          | DENY FIXED INFER ALLOW ALLOW  | FULL FULL HALF HALF HALF
"""
"""Who feeds whom, who is tied to whom, the words, and the colours."""


@pytest.mark.parametrize(("edges", "ties", "words", "expected"), _rows(GRAPHS))
def test_a_graph_of_several_ways(edges: str, ties: str, words: str, expected: str) -> None:
    """Each rule where units have several makers, several readers, or units that they are tied to."""
    pairs, groups = ([tuple(map(int, each)) for each in row.split()] for row in (edges, ties))
    found = entries(words)
    made = graph(len(found), [(maker, reader) for maker, reader in pairs], groups)
    assert graphs.colours(paint(made, found)) == expected


@pytest.mark.parametrize("level", Level)
def test_nothing_is_denied_when_all_is_forced(level: Level) -> None:
    """`unsafe-force-all` leaves the rule `deny` out; at every other level it counts."""
    painting = paint(chain(5), entries("DENY INFER ALLOW INFER ALLOW"), follow=False, level=level)
    is_forced = level is Level.UNSAFE_FORCE_ALL
    assert (Rule.DENY in {each.rule for each in painting.paints}) is not is_forced


# ---- rules and causes


def test_why_leads_to_where_it_began() -> None:
    """A paint names the rule that gave it, and `why` follows the poison back to the DENY unit, half back to
    the ALLOW unit, and ties; causes that were edited to go in a circle are followed once around.

    The chain of a unit between two ALLOW units ends in the second of them.
    """
    painting = _painted("CLEAR ALLOW INFER ALLOW FOLLOW DENY INFER FIXED", follow=True)
    assert graphs.rules(painting) == "spread allow between allow follow deny deny left"
    painting = _painted("DENY INFER CLEAR INFER ALLOW FOLLOW CLEAR", follow=True)
    found = [graphs.why(painting, unit) for unit in (0, 3, 4, 6)]
    assert found == [(0,), (3, 2, 1, 0), (4,), (6, 5, 4)]
    assert graphs.why(_painted("ALLOW INFER CLEAR ALLOW"), 1) == (1, 2, 3)
    tied = _painted("ALLOW ALLOW ALLOW FIXED", ties=[(0, 1), (1, 2), (2, 3)])
    assert graphs.why(tied, 0) == (0, 1, 2, 3)
    assert tied.paints[2] == Paint(Colour.FULL, Rule.SETTLE, 3)
    circle = tuple(Paint(Colour.FULL, Rule.DENY, cause) for cause in (1, 2, 1))
    assert graphs.why(Painting(circle, entries("DENY INFER INFER")), 0) == (0, 1, 2)


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
        assert painting.paints[graphs.why(painting, unit)[-1]].cause is None


# ---- Casts that the model has: unit 0 is what a Cast to float32 gives, or what feeds one


CASTS = """
# retargeted when all its readers are half; without readers there is no colour to take
FIXED ALLOW       | LIST        |   | HALF
FIXED ALLOW ALLOW | LIST        |   | HALF
FIXED ALLOW INFER | LIST        |   | FULL
FIXED             | LIST        |   | FULL
# who denies Cast is heard
DENY ALLOW        | LIST        |   | FULL
# a range, the schema, a pin or an override holds it in float32; so does an output of the model
FIXED ALLOW       | RANGE       |   | FULL
FIXED ALLOW       | OBSERVATION |   | FULL
FIXED ALLOW       | SCHEMA      |   | FULL
FIXED ALLOW       | PIN         |   | FULL
FIXED ALLOW       | OVERRIDE    |   | FULL
FIXED ALLOW       | LIST        | 0 | FULL
"""


@pytest.mark.parametrize(("words", "authority", "leaving", "colour"), _rows(CASTS))
def test_a_cast_goes_by_its_readers(words: str, authority: str, leaving: str, colour: str) -> None:
    """An existing Cast to float32, unit 0, gives half when that is all that anybody reads of it."""
    first, *others = words.split()
    edges = [(0, i + 1) for i in range(len(others))]
    readers = graph(len(others) + 1, edges, casts=[0], leaving=[*map(int, leaving)])
    found = (entry(first, Authority[authority]), *map(entry, others))
    assert paint(readers, found, follow=False).paints[0].colour.name == colour


def test_the_other_ends_of_casts() -> None:
    """A Cast from float32 reads half where half is made, and all Casts go by the colours that ties leave."""
    into_cast = graph(2, [(0, 1)], casts=[1], leaving=[1])
    assert graphs.colours(paint(into_cast, entries("ALLOW FIXED"))) == "HALF HALF"
    assert graphs.colours(paint(into_cast, entries("INFER FIXED"))) == "FULL FULL"
    tied = graph(3, [(0, 1)], ties=[(1, 2)], casts=[0])
    assert graphs.colours(paint(tied, entries("FIXED ALLOW FIXED"))) == "FULL FULL FULL"


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
    ["ALLOW FOLLOW CLEAR FOLLOW CLEAR CLEAR", "DENY CLEAR INFER ALLOW CLEAR FIXED CLEAR ALLOW"],
)
def test_painting_is_linear(words: str) -> None:
    """Every unit is asked a few times: the turns of spread and follow do not add up."""
    found = tuple(itertools.islice(itertools.cycle(entries(words)), LONG))
    line = chain(LONG)
    makers, readers = _Counted(line.predecessors), _Counted(line.successors)
    paint(graphs.with_edges(line, producers=makers, consumers=readers), found)
    assert max(makers.asked, readers.asked) <= RULES * LONG


def test_what_is_long_or_large_is_painted_to_its_end() -> None:
    """Spread and follow take turns thousands of times on one chain, without recursion; thousands of
    readers of one sequence are tied without a pair for every two of them.
    """
    words = ["ALLOW", "CLEAR", *["FOLLOW", "CLEAR"] * (LONG // 2 - 1)]
    painting = _painted(" ".join(words), follow=True)
    assert set(graphs.colours(painting).split()) == {"HALF"}
    assert graphs.why(painting, LONG - 1) == tuple(reversed(range(LONG)))
    tied = tuple(map(entry, ["FIXED", *["ALLOW"] * (LONG - 1)]))
    assert set(graphs.colours(paint(graph(LONG, [], [range(LONG)]), tied)).split()) == {"FULL"}


def test_a_lead_says_whom_it_leads_to():
    """The chain of causes goes on to the product."""
    found = analyze(
        text.model(
            """g (int64[2] ids) => (float[2,4] y) <float[9,4] table, float[4] b, float[4] s, float[4,4] w> {
            a = Gather (table, ids) c = Add (a, b) n = LayerNormalization (c, s) y = MatMul (n, w) }"""
        )
    )
    names = [unit.node.op_type for unit in found.graph.units]
    unit = names.index("Add")
    assert found.painting.paints[unit].rule is Rule.LEAD
    assert [names[cause] for cause in found.decisions().why(unit)] == ["Add", "LayerNormalization", "MatMul"]
