"""Types of values, inferred from schemas without shape inference."""

import onnx_ir as ir
import pytest

from amp_rewrite.onnx_types import element_types
from tests import commands
from tests.text import model

MINE = '<ir_version: 8, opset_import: ["" : 17, "my" : 1]>'


def infer(text):
    """The type of every value by name, without the declarations inside the graph."""
    built = ir.from_proto(model(text))
    for node in built.graph.all_nodes():
        for value in node.outputs:
            value.type = None
    return {value.name: repr(kind) for value, kind in element_types.infer(built).items()}


MADE = """
y = Neg (x)                                       | Tensor(FLOAT)
y = Shape (x)                                     | Tensor(INT64)
y = Greater (x, x)                                | Tensor(BOOL)
y = Cast <to = 10> (x)                            | Tensor(FLOAT16)
y = CastLike (x, x)                               | Tensor(FLOAT)
s = Shape (x) y = ConstantOfShape (s)             | Tensor(FLOAT)
s = Shape (x) y = ConstantOfShape <value = int64[1] {1}> (s) | Tensor(INT64)
y = EyeLike (x)                                   | Tensor(FLOAT)
y = EyeLike <dtype = 11> (x)                      | Tensor(DOUBLE)
y = RandomNormal <shape = [2]> ()                 | Tensor(FLOAT)
y = RandomNormal <shape = [2], dtype = 10> ()     | Tensor(FLOAT16)
y = RandomUniformLike (x)                         | Tensor(FLOAT)
y = Bernoulli <dtype = 9> (x)                     | Tensor(BOOL)
y = Multinomial (x)                               | Tensor(INT32)
y = Constant <value_ints = [1]> ()                | Tensor(INT64)
y = Constant <value_floats = [1.0]> ()            | Tensor(FLOAT)
y = Constant <value_string = "a"> ()              | Tensor(STRING)
y = Constant <value = double {1.0}> ()            | Tensor(DOUBLE)
s = Size (x) y = HannWindow (s)                   | Tensor(FLOAT)
s = Size (x) y = HannWindow <output_datatype = 11> (s) | Tensor(DOUBLE)
# sequences and optionals
y = SequenceConstruct (x, x)                      | Sequence(Tensor(FLOAT))
y = SequenceEmpty <dtype = 7> ()                  | Sequence(Tensor(INT64))
y = SequenceEmpty ()                              | Sequence(Tensor(FLOAT))
y = SplitToSequence (x)                           | Sequence(Tensor(FLOAT))
s = SequenceConstruct (x) y = SequenceInsert (s, x) | Sequence(Tensor(FLOAT))
s = SequenceConstruct (x) y = ConcatFromSequence <axis = 0> (s) | Tensor(FLOAT)
y = Optional (x)                                  | Optional(Tensor(FLOAT))
o = Optional (x) y = OptionalGetElement (o)       | Tensor(FLOAT)
# an operand of unknown type has the type of the ports that share its type variable
a = my.Thing (x) y = Add (a, x)                   | Tensor(FLOAT)
y = my.Thing (x) b = Add (x, y)                   | Tensor(FLOAT)
y = my.Thing (x)                                  | None
"""


@pytest.mark.parametrize(
    ("node", "expected"), [row for row in commands.rows(MADE) if len(row) > 1], ids=lambda each: each
)
def test_what_operators_make(node, expected):
    """The type of y follows from the inputs, an attribute, the schema alone, or from who reads it."""
    text = f"{MINE} g (float[4,4] x) => (float u) {{ {node} u = Constant <value_float = 1.0> () }}"
    assert str(infer(text).get("y")) == expected


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
