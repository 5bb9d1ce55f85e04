"""The drawn graph of a model: boxes in node order, and wires between them."""

import itertools

import onnx_ir as ir
import pytest

from amp_rewrite.costs import flop_count
from amp_rewrite.demo import network as demo_network
from amp_rewrite.onnx_types import shape_inference
from amp_rewrite.pipeline import analyze, rewrite
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.reporting import drawn_graph
from amp_rewrite.reporting.drawn_graph import PlannedChanges, Shade
from amp_rewrite.rewriting import annotations
from tests.text import model

MIXED = """
g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y, float[4, 4] s) {
  [product] a = MatMul (x, w)
  [exponential] e = Exp (a)
  [root] s = Sqrt (e)
  [second] y = MatMul (e, w)
}
"""


def drawn(text, weights=None):
    """The drawn graph of a model in text, or of a ModelProto."""
    return of_analysis(analyze(model(text, weights) if isinstance(text, str) else text))


def of_analysis(analysis):
    """The drawn graph of an analysis."""
    graph, decisions = analysis.graph, analysis.decisions()
    planned = drawn_graph.changes(graph, decisions, analysis.plan)
    flops = flop_count.count(analysis.loaded.model, graph.types).flops
    return drawn_graph.build(graph.root, graph.types, decisions, planned, flops)


def titles(found):
    """Every box as graph, shade and name."""
    return [f"{box.graph} {box.shade.value} {box.name}" for box in found.boxes]


def wires(found):
    """Every wire as the names of its ends."""
    boxes = found.boxes
    return {f"{boxes[w.source].name} > {boxes[w.target].name}" for w in found.wires}


def test_boxes_come_in_the_order_of_the_nodes():
    """Inputs come before their first use, Casts and outputs after their producers."""
    assert titles(drawn(MIXED)) == [
        "0 border x",
        "0 border w",
        "0 cast x to float16",
        "0 cast w to float16",
        "0 half product",
        "0 cast a to float32",
        "0 full exponential",
        "0 cast e to float16",
        "0 full root",
        "0 border s",
        "0 half second",
        "0 cast y to float32",
        "0 border y",
    ]


def test_a_cast_stands_between_maker_and_readers():
    """Consumers in the other precision are wired to the Cast, the others to the producer."""
    found = wires(drawn(MIXED))
    assert {"a to float32 > exponential", "product > a to float32", "exponential > root"} <= found
    assert {"exponential > e to float16", "e to float16 > second", "y to float32 > y"} <= found
    assert not {"product > exponential", "exponential > second", "second > y"} & found


def test_ports_say_what_is_half_afterwards():
    """Inputs and outputs of a half node are half, cast or not; a Cast has one of each type."""
    boxes = {box.name: box for box in drawn(MIXED).boxes}
    assert [value.half for value in (*boxes["product"].inputs, *boxes["product"].outputs)] == [True] * 3
    assert [value.half for value in (*boxes["exponential"].inputs, *boxes["exponential"].outputs)] == [
        False
    ] * 2
    cast = boxes["a to float32"]
    assert (cast.inputs[0].half, cast.outputs[0].half) == (True, False)
    assert boxes["y"].inputs[0].half is False
    assert boxes["product"].inputs[0].type == "float32[4, 4]"
    assert boxes["product"].flops == 2 * 4 * 4 * 4


def test_what_is_stored_is_named_and_not_drawn():
    """Weights and Constants have no boxes; their consumers list them as constants."""
    found = drawn("""
    g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] weight> {
      scale = Constant <value = float {2.0}> ()
      [product] a = MatMul (x, weight)
      [scaled] y = Mul (a, scale)
    }
    """)
    assert found.constants == 1
    assert "weight" not in " ".join(titles(found))
    boxes = {box.name: box for box in found.boxes}
    assert [value.stored for value in boxes["product"].inputs] == [False, True]
    assert [value.stored for value in boxes["scaled"].inputs] == [False, True]
    assert [value.half for value in boxes["scaled"].inputs] == [True, True]


LOOP = """
g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) <int64 trips = {2}> {
  [refine] y = Loop (trips, , x) <body = step (int64 i, bool go, float[4, 4] before) =>
    (bool on, float[4, 4] after) {
      [keep] on = Identity (go)
      [inner] after = MatMul (before, w)
    }>
}
"""


def test_a_body_is_a_frame_of_its_own():
    """The title of a frame names its attribute and node; wires lead into it from outside."""
    found = drawn(LOOP)
    assert [frame.title for frame in found.frames] == ["", "body of Loop refine"]
    owner = found.boxes[found.frames[1].owner]
    assert (owner.name, owner.bodies) == ("refine", (1,))
    inside = [box.name for box in found.boxes if box.graph == 1]
    assert {"i", "go", "before", "keep", "inner", "on", "after"} <= set(inside)
    assert any(wire.endswith("> inner") and wire.startswith("w") for wire in wires(found))


def test_an_input_that_leaves_at_once_is_wired_to_its_output():
    """A graph without nodes is drawn too."""
    found = drawn("g (float[4] x) => (float[4] y) { [same] y = Identity (x) }")
    assert wires(found) == {"x > same", "same > y"}


def test_a_node_without_a_name_goes_by_what_it_makes():
    """The name is that of its first output, as in pins and explain."""
    found = drawn("g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y) { y = MatMul (x, w) }")
    assert [box.name for box in found.boxes if box.operator == "MatMul"] == ["y"]


@pytest.mark.parametrize("text", [MIXED, LOOP, demo_network()], ids=["mixed", "loop", "demo"])
def test_shades_agree_with_the_report(text):
    """The report counts as many nodes as there are boxes of each shade; Constants have no boxes."""
    analysis = analyze(model(text) if isinstance(text, str) else text)
    found = of_analysis(analysis)
    report = analysis.report()
    shades = [box.shade for box in found.boxes]
    assert shades.count(Shade.HALF) == report.nodes.half
    assert shades.count(Shade.MIXED) == report.nodes.mixed
    assert shades.count(Shade.FULL) == report.nodes.full
    assert shades.count(Shade.OTHER) + found.constants == report.nodes.other
    assert shades.count(Shade.CAST) == report.casts_added


@pytest.mark.parametrize("text", [MIXED, LOOP, demo_network()], ids=["mixed", "loop", "demo"])
def test_what_the_page_counts_on(text):
    """The boxes of a graph are contiguous, every unit has one box, and wires point forward."""
    analysis = analyze(model(text) if isinstance(text, str) else text)
    found = of_analysis(analysis)
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
    found = drawn(f"g (float[4] v0) => (float[4] v{len(lines)}) {{ {' '.join(lines)} }}")
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
    body = " ".join(f"a{i} = MatMul (e{i}, w) s{i} = Sin (a{i}) e{i + 1} = Tanh (s{i})" for i in range(8))
    proto = model(f"g (float[4, 4] e0, float[4, 4] w) => (float[4, 4] e8) {{ {body} }}")
    for node in proto.graph.node:
        node.name = node.output[0]
    found = of_analysis(analyze(proto, Options(pins=Pins(keep_full=("s2",)))))
    (row,) = found.layers
    assert len(row) == 9
    sizes = [end - start for start, end in itertools.pairwise(row)]
    assert (min(sizes), max(sizes)) == (3, 5)


def test_a_rewritten_model_is_drawn_as_it_was_planned():
    """The decisions in its metadata give the same boxes, with its Casts as added nodes."""
    planned = drawn(MIXED)
    result = ir.from_proto(rewrite(model(MIXED)).model)
    types = shape_inference.types(result)
    found = drawn_graph.build(result.graph, types, annotations.read(result), PlannedChanges(), {})
    assert [box.shade for box in found.boxes].count(Shade.CAST) == 5
    shades = {box.name: box.shade for box in planned.boxes if box.units}
    assert {box.name: box.shade for box in found.boxes if box.units} == shades
    assert "float16[4, 4]" in {value.type for box in found.boxes for value in box.outputs}
