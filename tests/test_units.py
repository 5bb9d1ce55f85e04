"""What can be coloured, how data flows between it, and what must have one colour."""

import onnx_ir as ir

from amp_rewrite.analysis import unit_building
from amp_rewrite.onnx_types import element_types
from amp_rewrite.policy.targets import ANY, ONNXRUNTIME_CUDA
from tests.text import model


def build(text, target=ANY):
    """The units of a text."""
    built = ir.from_proto(model(text))
    return unit_building.build(built, element_types.infer(built), target)


def names(graph):
    """Every unit as its node's first output and its variable."""
    return [f"{unit.node.outputs[0].name}.{unit.var}" for unit in graph.units]


def edges(graph):
    """The dataflow between the units."""
    called = names(graph)
    return {f"{called[u]} > {called[c]}" for u in range(len(called)) for c in graph.successors[u]}


def test_a_unit_for_each_variable_that_is_float32():
    """Ports of other types make no unit; a variable without float32 ports makes none either."""
    graph = build(
        """g (float[4,4] x, int64[2] s, double[4,4] d) => (float[2,8] y, double[4,4] e, float[4,1] v)
        <float[4] w> {
            n, m, v = LayerNormalization (x, w)
            y = Reshape (n, s)
            e = Neg (d)
        }"""
    )
    assert names(graph) == ["n.T", "n.U", "y.T"]
    assert edges(graph) == {"n.T > y.T"}
    assert [str(unit) for unit in graph.units] == [
        "LayerNormalization.T",
        "LayerNormalization.U",
        "Reshape.T",
    ]


def test_constants_are_no_units():
    """A Constant node is stored data: who reads it decides."""
    graph = build("g (float[4] x) => (float[4] y) { c = Constant <value_float = 0.5> () y = Add (x, c) }")
    assert names(graph) == ["y.T"]


def test_a_cast_has_two_units():
    """What a Cast takes and what it gives are coloured apart."""
    graph = build("g (float[4] x) => (float[4] y) { a = Neg (x) b = Cast <to = 1> (a) y = Neg (b) }")
    assert names(graph) == ["a.T", "b.T1", "b.T2", "y.T"]
    assert edges(graph) == {"a.T > b.T1", "b.T2 > y.T"}


def test_a_loop_carried_value_is_one_unit():
    """It reads the node's input and the body's output, makes the body's input and the node's output."""
    graph = build(
        """g (float[4] x, int64 n, bool c) => (float[4] y) {
            a = Neg (x)
            l = Loop (n, c, a) <body = b (int64 i, bool ci, float[4] s) => (bool co, float[4] t) {
                co = Identity (ci)
                t = Abs (s)
            }>
            y = Neg (l)
        }"""
    )
    assert names(graph) == ["a.T", "l.V[0]", "t.T", "y.T"]
    assert edges(graph) == {"a.T > l.V[0]", "l.V[0] > t.T", "t.T > l.V[0]", "l.V[0] > y.T"}


def test_what_a_branch_reads_from_outside_is_an_edge():
    """Dataflow crosses into bodies without a port."""
    graph = build(
        """g (float[4] x, bool c) => (float[4] y) {
            a = Neg (x)
            y = If (c) <
                then_branch = t () => (float[4] p) { p = Abs (a) },
                else_branch = f () => (float[4] q) { q = Exp (a) }
            >
        }"""
    )
    assert edges(graph) == {"a.T > p.T", "a.T > q.T", "p.T > y.V[0]", "q.T > y.V[0]"}
    assert graph.ties == ()


def test_a_sequence_ties_its_makers_and_readers():
    """No Cast can stand on a sequence, so that all around it have one colour; tensors tie nobody."""
    graph = build(
        """g (float[4] x, int64 n) => (float[4] y, float[8] z) {
            a = Neg (x)
            s = SequenceConstruct (a, a)
            b = SequenceAt (s, n)
            y = Neg (b)
            z = ConcatFromSequence <axis = 0> (s)
        }"""
    )
    called = names(graph)
    ties = {frozenset(called[unit] for unit in tie) for tie in graph.ties}
    assert frozenset({"s.S", "b.S", "z.S"}) in ties
    assert {"s.T", "s.S"} in ties
    assert {"b.S", "b.T"} in ties
    assert not any("a.T" in tie or "y.T" in tie for tie in ties)
    assert [unit.dense for unit in graph.units if unit.var.name == "S"] == [False] * 3


def test_an_unknown_operator_is_one_unit_that_may_be_nothing_else():
    """All float32 ports of an operator without a schema are one unit, and no type but theirs is allowed."""
    graph = build(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4] x, int64[4] n) => (float[4] y) <float[4] a> {
            a = my.Thing (x, n)
            y = Neg (a)
        }"""
    )
    assert names(graph) == ["a.?", "y.T"]
    assert graph.units[0].allowed == frozenset()
    assert [site.port for site in graph.units[0].uses] == [0]


def test_the_body_of_an_unknown_operator_is_sealed():
    """What enters and leaves such a body belongs to a unit that may be nothing but float32."""
    graph = build(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4] x) => (float[4] y) {
            y = my.Thing (x) <body = b (float[4] s) => (float[4] t) { t = Neg (s) }>
        }"""
    )
    assert names(graph) == ["y.?", "y.?", "t.T"]
    assert [value.name for value in graph.units[1].defs] == ["s"]
    assert edges(graph) == {"y.? > t.T", "t.T > y.?"}
    assert graph.units[1].allowed == frozenset()


def test_an_input_without_a_type_binds_its_variable():
    """A unit with an operand that nothing types may be nothing but float32."""
    graph = build(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4,4] x) => (float[4,4] y) {
            a = my.Thing (x)
            b = my.Thing (x)
            m = MatMul (a, b)
            y = Add (m, x)
        }"""
    )
    allowed = {unit.node.outputs[0].name: unit.allowed for unit in graph.units}
    assert allowed["m"] == frozenset()
    assert "tensor(float16)" in allowed["y"]


def test_a_target_joins_variables():
    """Variables that a runtime's kernels want as one type are one unit for that target."""
    text = """g (float[1,4,2] x) => (float[1,4,2] y) <float[4] s, float[4] b, float[4] m, float[4] v> {
        y = BatchNormalization (x, s, b, m, v)
    }"""
    assert names(build(text)) == ["y.T", "y.T1", "y.T2"]
    assert names(build(text, ONNXRUNTIME_CUDA)) == ["y.T"]


def test_readers_and_makers():
    """A value knows its maker and every place that reads it, ports included."""
    graph = build("g (float[4] x) => (float[4] y) { a = Neg (x) y = Add (a, a) }")
    value = graph.units[0].defs[0]
    assert graph.producer[value] == 0
    assert [(unit, site.port) for unit, site in graph.uses[value]] == [(1, 0), (1, 1)]
    assert graph.predecessors[1] == [0]
