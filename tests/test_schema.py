"""Which ports of a node share a type variable."""

import pytest

from amp_rewrite.onnx_types import schema


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
