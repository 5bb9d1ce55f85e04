"""The drawn graph of a model: what holds for each, and layers that repeat; boxes are in pages.transcript."""

import itertools

import pytest

from amp_rewrite.costs import flop_count
from amp_rewrite.demo import network as demo_network
from amp_rewrite.pipeline import analyze
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.reporting import drawn_graph
from amp_rewrite.reporting.drawn_graph import Shade
from tests.text import model

LOOP = """
g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) <int64 trips = {2}> {
  [refine] y = Loop (trips, , x) <body = step (int64 i, bool go, float[4, 4] before) =>
    (bool on, float[4, 4] after) {
      [keep] on = Identity (go)
      [inner] after = MatMul (before, w)
    }>
}
"""


def drawn(analysis):
    """The drawn graph of an analysis."""
    graph, decisions = analysis.graph, analysis.decisions()
    planned = drawn_graph.changes(graph, decisions, analysis.plan)
    flops = flop_count.count(analysis.loaded.model, graph.types).flops
    return drawn_graph.build(graph.root, graph.types, decisions, planned, flops)


@pytest.mark.parametrize("proto", [model(LOOP), demo_network()], ids=["loop", "demo"])
def test_what_the_page_counts_on(proto):
    """The report counts as many nodes as there are boxes of each shade; Constants have no boxes. The boxes of
    a graph are contiguous, every unit has one box, and wires point forward.
    """
    analysis = analyze(proto)
    found, report = drawn(analysis), analysis.report()
    shades = [box.shade for box in found.boxes]
    nodes = [shades.count(shade) for shade in (Shade.HALF, Shade.MIXED, Shade.FULL)]
    assert nodes == [report.nodes.half, report.nodes.mixed, report.nodes.full]
    assert shades.count(Shade.OTHER) + found.constants == report.nodes.other
    assert shades.count(Shade.CAST) == report.casts_added
    graphs = [box.graph for box in found.boxes]
    assert graphs == sorted(graphs)
    assert sorted(u for box in found.boxes for u in box.units) == list(range(len(analysis.graph.units)))
    inside = [w for w in found.wires if graphs[w.source] == graphs[w.target]]
    assert all(wire.source < wire.target for wire in inside)


@pytest.mark.parametrize(
    ("operators", "layers"),
    [
        (["Relu"] * 13, [(0, 1, 13)]),
        (["Relu"] * 12, []),  # too few
        ([*"ab", *("Exp Sqrt Relu Neg".split() * 4), "Abs"], [(2, 4, 4)]),
        ("Exp Sqrt Relu Neg".split() * 4 + ["Abs"] * 13, [(0, 4, 4), (16, 1, 13)]),
        ((["Exp"] * 3 + ["Sqrt"]) * 6, [(0, 4, 6)]),  # the shortest period, not twice that
    ],
    ids=["one operator", "too few", "between others", "two sequences", "shortest"],
)
def test_layers_that_repeat(operators, layers):
    """As the first node, the size and the number of layers; inputs and outputs are outside."""
    names = {"a": "Sin", "b": "Cos"}
    lines = [f"v{i + 1} = {names.get(operator, operator)} (v{i})" for i, operator in enumerate(operators)]
    source = f"g (float[4] v0) => (float[4] v{len(lines)}) {{ {' '.join(lines)} }}"
    found = drawn(analyze(model(source)))
    nodes = [i for i, box in enumerate(found.boxes) if box.shade not in (Shade.BORDER, Shade.CAST)]
    place = {box: i for i, box in enumerate(nodes)} | {nodes[-1] + 1: len(nodes)}
    assert [(place[row[0]], place[row[1]] - place[row[0]], len(row) - 1) for row in found.layers] == layers
    assert all(
        place[end] - place[start] == layer[1]
        for row, layer in zip(found.layers, layers, strict=True)
        for start, end in itertools.pairwise(row)
    )


def test_a_layer_of_another_precision_is_a_layer():
    """Casts around a node do not keep its layer from being equal to the others."""
    body = " ".join(
        f"a{i} = MatMul (e{i}, w) [s{i}] s{i} = Sin (a{i}) e{i + 1} = Tanh (s{i})" for i in range(8)
    )
    proto = model(f"g (float[4, 4] e0, float[4, 4] w) => (float[4, 4] e8) {{ {body} }}")
    (row,) = drawn(analyze(proto, Options(pins=Pins(keep_full=("s2",))))).layers
    assert len(row) == 9
    sizes = [end - start for start, end in itertools.pairwise(row)]
    assert (min(sizes), max(sizes)) == (3, 5)
