"""Types of values, inferred from schemas without shape inference."""

import onnx_ir as ir
import pytest

from amp_rewrite.onnx_types import element_types
from tests.text import model

MINE = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]>'


def infer(text):
    """The type of every value by name, without the declarations inside the graph."""
    built = ir.from_proto(model(text))
    for node in built.graph.all_nodes():
        for value in node.outputs:
            value.type = None
    return {value.name: repr(kind) for value, kind in element_types.infer(built).items()}


def of(node, inputs="float[4,4] x"):
    """The type of y, the output of the node."""
    text = f"{MINE} g ({inputs}) => (float u) {{ {node} u = Constant <value_float = 1.0> () }}"
    return infer(text).get("y")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("y = Neg (x)", "FLOAT"),
        ("y = Shape (x)", "INT64"),
        ("y = Greater (x, x)", "BOOL"),
        ("y = Cast <to = 7> (x)", "INT64"),
        ("y = Cast <to = 10> (x)", "FLOAT16"),
        ("y = CastLike (x, x)", "FLOAT"),
        ("s = Shape (x) y = ConstantOfShape (s)", "FLOAT"),
        ("s = Shape (x) y = ConstantOfShape <value = int64[1] {1}> (s)", "INT64"),
        ("y = EyeLike (x)", "FLOAT"),
        ("y = EyeLike <dtype = 11> (x)", "DOUBLE"),
        ("y = RandomNormal <shape = [2]> ()", "FLOAT"),
        ("y = RandomNormal <shape = [2], dtype = 10> ()", "FLOAT16"),
        ("y = RandomUniformLike (x)", "FLOAT"),
        ("y = Bernoulli <dtype = 9> (x)", "BOOL"),
        ("y = Multinomial (x)", "INT32"),
        ("y = Constant <value_ints = [1]> ()", "INT64"),
        ("y = Constant <value_floats = [1.0]> ()", "FLOAT"),
        ('y = Constant <value_string = "a"> ()', "STRING"),
        ("y = Constant <value = double {1.0}> ()", "DOUBLE"),
        ("s = Size (x) y = HannWindow (s)", "FLOAT"),
        ("s = Size (x) y = HannWindow <output_datatype = 11> (s)", "DOUBLE"),
    ],
)
def test_what_operators_make(node, expected):
    """The type follows from the inputs, from an attribute, or from the schema alone."""
    assert expected in str(of(node))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("y = SequenceConstruct (x, x)", "Sequence(Tensor(FLOAT))"),
        ("y = SequenceEmpty <dtype = 7> ()", "Sequence(Tensor(INT64))"),
        ("y = SequenceEmpty ()", "Sequence(Tensor(FLOAT))"),
        ("y = SplitToSequence (x)", "Sequence(Tensor(FLOAT))"),
        ("s = SequenceConstruct (x) y = SequenceInsert (s, x)", "Sequence(Tensor(FLOAT))"),
        ("s = SequenceConstruct (x) y = ConcatFromSequence <axis = 0> (s)", "Tensor(FLOAT)"),
        ("y = Optional (x)", "Optional(Tensor(FLOAT))"),
        ("o = Optional (x) y = OptionalGetElement (o)", "Tensor(FLOAT)"),
    ],
)
def test_sequences_and_optionals(node, expected):
    """The output types of operators on sequences and optionals."""
    assert of(node) == expected


def test_types_reach_into_bodies_and_out_again():
    """A body's inputs have the types of the node's, and the node's outputs those of the body's."""
    found = infer(
        """g (float16[4] x, float[4] z, int64 n, bool c) => (float[4] u) {
            y, ys = Loop (n, c, x) <body = b (int64 i, bool ci, float16[4] s)
                => (bool co, float16[4] t, float[4] r) {
                co = Identity (ci)
                t = Neg (s)
                r = Abs (z)
            }>
            u = Neg (z)
        }"""
    )
    assert [found[name] for name in ("s", "t", "y")] == ["Tensor(FLOAT16)"] * 3
    assert [found[name] for name in ("r", "ys")] == ["Tensor(FLOAT)"] * 2


def test_what_a_stranger_makes_is_learned_from_its_readers():
    """An operand of unknown type has the type of the ports that share its type variable."""
    assert of("a = my.Thing (x) y = Add (a, x)") == "Tensor(FLOAT)"
    assert of("y = my.Thing (x) b = Add (x, y)") == "Tensor(FLOAT)"
    assert of("y = my.Thing (x)") is None


def test_a_second_source_fills_gaps_only():
    """Types from another source are used only where schemas give none."""
    built = ir.from_proto(
        model(
            f"""{MINE} g (float[4] x) => (float[4] z) {{
                a = my.Thing (x)
                b = Neg (x)
                z = Relu (b)
            }}"""
        )
    )
    assert not element_types.complete(built, element_types.infer(built))
    double = element_types.tensor(ir.DataType.DOUBLE)
    found = element_types.infer(built, {"a": double, "b": double})
    assert {v.name: k.dtype.name for v, k in found.items()} == {
        "x": "FLOAT",
        "a": "DOUBLE",
        "b": "FLOAT",
        "z": "FLOAT",
    }
    assert element_types.complete(built, found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensor(float)", "Tensor(FLOAT)"),
        ("tensor(bfloat16)", "Tensor(BFLOAT16)"),
        ("seq(tensor(float16))", "Sequence(Tensor(FLOAT16))"),
        ("optional(seq(tensor(double)))", "Optional(Sequence(Tensor(DOUBLE)))"),
        ("map(int64, tensor(float))", "None"),
        ("T", "None"),
        ("tensor(nothing)", "None"),
    ],
)
def test_types_as_schemas_write_them(text, expected):
    """Tensors, sequences and optionals are parsed; maps and type variables are not."""
    assert repr(element_types.parse(text)) == expected


def test_versions():
    """The default domain may be called ai.onnx; a domain that is not imported has version 1."""
    version = element_types.versions({"ai.onnx": 12, "com.microsoft": 3})
    assert [version(domain) for domain in ("", "com.microsoft", "my")] == [12, 3, 1]
