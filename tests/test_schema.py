"""Schemas: which ports of a node share a type variable, types of values, and bodies."""

import json
from importlib import resources

import onnx
import onnx_ir as ir
import pytest

from amp_rewrite.onnx_types import control_flow, element_types, schema
from tests import commands
from tests.text import model, unchecked
from tools import contrib_schemas


def layout(operator, inputs, outputs, version=17, domain=""):
    """The groups as `variable: inputs -> outputs`."""
    groups = schema.layout(domain, operator, version, inputs, outputs)
    assert groups is not None
    return [f"{g.var}: {list(g.inputs)} -> {list(g.outputs)}" for g in groups]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (("MatMul", 2, 1), ["T: [0, 1] -> [0]"]),
        (("LayerNormalization", 3, 3), ["T: [0, 1, 2] -> [0]", "U: [] -> [1, 2]"]),
        (("LayerNormalization", 2, 1), ["T: [0, 1] -> [0]"]),
        (
            ("Resize", 4, 1),
            ["T1: [0] -> [0]", "T2: [1] -> []", "tensor(float): [2] -> []", "tensor(int64): [3] -> []"],
        ),
        (("Pow", 2, 1), ["T: [0] -> [0]", "T1: [1] -> []"]),
        (("BatchNormalization", 5, 1), ["T: [0] -> [0]", "T1: [1, 2] -> []", "T2: [3, 4] -> []"]),
        (("Dropout", 3, 2), ["T: [0] -> [0]", "T1: [1] -> []", "T2: [2] -> [1]"]),
        (("Sum", 3, 1), ["T: [0, 1, 2] -> [0]"]),
        (("Split", 1, 3), ["T: [0] -> [0, 1, 2]"]),
        (("Loop", 4, 2), ["I: [0] -> []", "B: [1] -> []", "V[0]: [2] -> [0]", "V[1]: [3] -> [1]"]),
        (("If", 1, 2), ["B: [0] -> []", "V[0]: [] -> [0]", "V[1]: [] -> [1]"]),
        (("Dropout", 1, 2, 11), ["T: [0] -> [0]", "T1: [] -> [1]"]),
        (("SkipLayerNormalization", 4, 1, 1, "com.microsoft"), ["T: [0, 1, 2, 3] -> [0]"]),
        (("SkipLayerNormalization", 4, 1, 99, "com.microsoft"), ["T: [0, 1, 2, 3] -> [0]"]),
    ],
)
def test_ports_by_variable(node, expected):
    """A group for each type variable, in order of appearance; one for each position of a mixed variadic.
    onnxruntime's own operators have schemas too, at any version that a model imports.
    """
    assert layout(*node) == expected


def test_the_version_that_a_model_imports():
    """The schema is that of the imported version."""
    assert "tensor(bfloat16)" not in schema.find("", "MatMul", 9).allowed["T"]
    assert "tensor(bfloat16)" in schema.find("", "MatMul", 13).allowed["T"]
    assert schema.find("", "LayerNormalization", 16) is None
    assert schema.find("", "SimplifiedLayerNormalization", 17) is not None


@pytest.mark.parametrize("node", [("MatMul", 3, 1), ("MatMul", 2, 2), ("Nothing", 1, 1), ("Constant", 1, 1)])
def test_what_no_schema_fits(node):
    """An unknown operator, or one with more ports than its schema, has no layout."""
    assert schema.layout("", node[0], 17, node[1], node[2]) is None


def test_fixed_types_allow_themselves_only():
    """A port with a fixed type may have that type and no other."""
    groups = {str(g.var): g.allowed for g in schema.layout("", "Resize", 17, 4, 1)}
    assert groups["tensor(float)"] == {"tensor(float)"}
    assert "tensor(float16)" in groups["T1"]


def test_known_operators():
    """Every name of a domain, of any version; none for an unknown domain."""
    assert {"MatMul", "Scatter", "Upsample"} <= schema.known_operators("")
    assert "FusedMatMul" in schema.known_operators("com.microsoft")
    assert schema.known_operators("my.domain") == frozenset()


@pytest.mark.parametrize(("version", "since"), [(2**40, 14), (2**31, 14), (-(2**40), None), (-1, None)])
def test_a_version_that_no_operator_set_has(version, since):
    """For any imported number, the schema is the newest up to that version, or none."""
    signature = schema.find("", "Relu", version)
    assert (signature.since if signature else None) == since


# ---- schemas of onnxruntime's own operators: from a table that onnxruntime wrote

MADE_WITH = "1.32.0"
"""The onnxruntime that contrib_schemas.json was written with."""


def test_the_table_matches_onnxruntime():
    """With the onnxruntime that it was written with, the table is up to date, byte for byte."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if onnxruntime.__version__ != MADE_WITH:
        pytest.skip(f"the table is of onnxruntime {MADE_WITH}")
    assert contrib_schemas.table() == contrib_schemas.TABLE.read_text(encoding="utf-8")


def test_schemas_of_com_microsoft_are_known():
    """An optional input is one of its type variable."""
    groups = schema.layout("com.microsoft", "SkipLayerNormalization", 1, 4, 1)
    assert [(str(g.var), g.inputs, g.outputs) for g in groups] == [("T", (0, 1, 2, 3), (0,))]
    assert len(schema.known_operators("com.microsoft")) > 100


def test_the_table_holds_versions_oldest_first():
    """Every operator has at least one version, the oldest first, with types that ONNX can name."""
    text = (resources.files("amp_rewrite.onnx_types") / "contrib_schemas.json").read_text("utf-8")
    table = json.loads(text)
    assert set(table) == {"", schema.CONTRIB, schema.BLOCKED}
    for versions in (versions for operators in table.values() for versions in operators.values()):
        since = [version["since"] for version in versions]
        assert since == sorted(set(since))
        assert since
    assert "tensor(float16)" in text


# ---- which nodes have bodies, and which are followed


@pytest.mark.parametrize("scanned", [-(2**63), -1, 3, 2**31, 2**63 - 1])
def test_a_scan_that_does_not_fit_its_body_has_no_bindings(scanned):
    """A Scan with an impossible number of inputs is rejected without delay."""
    proto = unchecked(
        f"""g (float[4] s, float[3,4] x) => (float[4] y) {{ y = Scan (s, x) <num_scan_inputs = {scanned},
        body = b (float[4] t, float[4] e) => (float[4] u) {{ u = Add (t, e) }}> }}"""
    )
    assert control_flow.bindings(ir.from_proto(proto).graph[0]) is None


def test_other_nodes_have_no_bindings():
    """A node of another domain, or without control flow, has none, even if it has a body."""
    proto = model(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[4] x) => (float[4] y) {
        a = Relu (x) y = my.Loop (a) <body = b (float[4] s) => (float[4] t) { t = Neg (s) }> }"""
    )
    graph = ir.from_proto(proto).graph
    assert [control_flow.bindings(node) for node in graph] == [None, None]
    assert [len(list(control_flow.bodies(node))) for node in graph] == [0, 1]


def test_no_other_operator_of_the_default_domain_has_bodies():
    """`bodies` looks at no other operator of the default domain: none has a graph attribute."""
    kinds = (onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS)
    holding = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and any(a.type in kinds for a in schema.attributes.values())
    }
    assert holding == {"If", "Loop", "Scan", "SequenceMap"}


# ---- types of values, inferred from schemas without shape inference

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
