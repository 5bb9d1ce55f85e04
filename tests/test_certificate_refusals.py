"""The certificate: what is no model, or is read by runtimes in two ways, and bytes that lie elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from amp_rewrite import certify
from amp_rewrite.errors import ModelError
from tests.certificate_rows import changed, check, edited, model, move_to_file, rows

INVALID = """
(float[2] x) => (float[2] y) { y = Exp (x) }
    nodes that read each other  | y = Exp (x) -> a = Exp (y) y = Add (a, x) |  | error: cyclic
    a value that nobody makes   | Exp (x) -> Exp (nobody) |  | error: 'nobody', which is not defined
    a value that two nodes make | y = Exp (x) -> a = Exp (x) a = Neg (a) |  | error: twice
    a Cast of nothing
        | y = -> z = Cast <to = 1> () y = | | error: Cast without all of its inputs
    a norm of nothing
        | y = -> z = BatchNormalization () y = | | error: without all of its inputs
    a CastLike of nothing       | Exp (x) -> CastLike () |  | error: CastLike without all of its inputs
    a CastLike nothing          | Exp (x) -> CastLike (x) |  | error: CastLike without all of its inputs
    two attributes of one name
        | Exp (x) -> Softmax <axis = 0, axis = 1> (x) | , axis = 1 -> | error: two attributes 'axis'
    a constant with two attributes
        | Exp (x) -> Constant <other = 7.0, value_float = 5.0> () | | error: without a value, or with several
    a function that calls itself
        | y = Exp (x) } -> y = d.f (x) }
          <domain: "d", opset_import: ["": 17, "d": 1]> f (a) => (b) { b = d.g (a) }
          <domain: "d", opset_import: ["": 17, "d": 1]> g (a) => (b) { b = d.f (a) }
        | | error: calls itself
    a function named like an operator
        | y = Exp (x) } -> y = Relu (x) } <domain: "", opset_import: ["": 17]> Relu (a) => (o) { o = Neg (a) }
        | | error: like the operator Relu
    a function named like one of onnxruntime
        | y = Exp (x) } -> y = com.microsoft.Gelu (x) }
          <domain: "com.microsoft", opset_import: ["": 17]> Gelu (a) => (o) { o = Neg (a) }
        | | error: like the operator com\\.microsoft\\.Gelu
    two functions of one name
        | y = Exp (x) } -> y = d.f (x) } <domain: "d", opset_import: ["": 17]> f (a) => (o) { o = Exp (a) }
          <domain: "d", opset_import: ["": 17]> f (a) => (o) { o = Neg (a) }
        | | error: two functions 'f'

(float[2] x) => (float[2] y) <float[2] w = {1.1, 2}> {
        c = Constant <value = float[2] {1, 2}> () a = Mul (x, w) b = Add (a, c) y = Exp (b) }
    a Cast that makes a stored value | a = Mul -> w = Cast <to = 10> (x) a = Mul | error: defines 'w' twice
    a Cast that makes an input       | a = Mul -> x = Cast <to = 10> (x) a = Mul | error: defines 'x' twice
    a Cast that makes a constant     | a = Mul -> c = Cast <to = 10> (x) a = Mul | error: defines 'c' twice
    a Cast that makes another value  | a = Mul -> b = Cast <to = 10> (x) a = Mul | error: defines 'b' twice

(float[2] x, bool c) => (float[2] y) { a = Exp (x) y = If (c) <
        then_branch = t () => (float[2] u) { u = Add (a, x) },
        else_branch = e () => (float[2] v) { v = Neg (a) }> }
    a name stored in a body and around it
        | => (float[2] u) { -> => (float[2] u) <float[2] a = {5, 5}> { |
        | error: defines 'a' in a body, and around it
    a name made in a body and around it
        | u = Add -> a = Neg (x) u = Add | | error: defines 'a' in a body, and around it
    one that no other body reads
        | => (float[2] u) { -> => (float[2] u) <float[2] a = {5, 5}> {; Neg (a) -> Neg (x) | | proved
"""


def double(depth):
    """Functions each of which calls the next twice."""
    functions = "".join(
        f'<domain: "d", opset_import: ["": 17, "d": 1]> f{i} (a) => (b) '
        f"{{ c = {called} (a) b = {called} (c) }}"
        for i in range(depth)
        for called in [f"d.f{i + 1}" if i + 1 < depth else "Exp"]
    )
    return "(float[1] x) => (float[1] y) { y = d.f0 (x) }" + functions


def without_type(result):
    """The branches of an If are attributes without a type."""
    for attribute in result.graph.node[0].attribute:
        attribute.type = AttributeProto.UNDEFINED


def of_another_type(result):
    """The attribute of a Constant is named like a float, and its type says that it is two."""
    attribute = result.graph.node[0].attribute[0]
    attribute.type = AttributeProto.FLOATS
    attribute.floats.extend([3, 4])


def of_no_memory(name, node):
    """A model that stores a value of sizes that no memory has, one of which is 0."""
    result = model(f"(float[2] x) => (y) {{ {node} y = other.A (n) }}")
    result.graph.initializer.add(name=name, dims=[0, 1 << 62, 1 << 62], data_type=1, raw_data=b"")
    return result


IF = """(float[2] x, bool c) => (float[2] y) {
    y = If (c) <then_branch = t () => (u) { u = Exp (x) }, else_branch = e () => (u) { u = Neg (x) }> }"""
CONSTANT = "(float[2] x) => (float[2] y) { k = Constant <value_float = 5.0> () y = Mul (x, k) }"
STORED = "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }"


BEYOND_TEXT = {
    "functions that double": (double(60), "", "error: nodes with its functions taken apart"),
    "a body without a type": (IF, without_type, "error: a body 'then_branch' without a type"),
    "a value of another type": (CONSTANT, of_another_type, "error: 'value_float' of another type"),
    "sizes that no memory has": (
        of_no_memory("w", "n = Neg (w)"),
        of_no_memory("n", ""),
        "error: sizes that are too large",
    ),
    "data in a file of no known folder": (
        STORED,
        lambda result: move_to_file(result.graph.initializer[0], location="w.bin"),
        "error: in which folder",
    ),
    "a fill in a file of no known folder": (
        "(int64[1] n) => (float[N] y) { a = ConstantOfShape<value = float[1] {1.5}>(n) y = Exp(a) }",
        lambda result: move_to_file(result.graph.node[0].attribute[0].t, location="fill.bin"),
        "error: in which folder",
    ),
}


@rows(INVALID, BEYOND_TEXT)
def test_what_is_no_model_is_an_error(row):
    """In one line, which says what is wrong; runtimes go by type, place or name, where several say it."""
    check(row)


RESULTS = """
<ir_version: 3, opset_import: ["": 8]> g (float[2] x, float[2] k) => (float[2] y) <float[2] k = {3, 4}> {
        h = Cast <to = 10> (x) i = Cast <to = 1> (h)
        c = Constant <value = float[2] {1, 2}> () j = Add (i, c) y = Mul (j, k) }
    a Cast with a second input              | (h) c -> (h, x) c          | not proved or an error
    a Constant with an input                | () j -> (x) j              | not proved or an error
    a Constant with a second output         | c = -> c, d =              | not proved or an error
    a stored value declared as integers     | float[2] k) -> int64[2] k) | not proved or an error
    a stored value declared to be longer    | float[2] k) -> float[3] k) | not proved or an error
    a stored value declared to have no axis | float[2] k) -> float k)    | not proved or an error
"""
DECLARED_LONGER = edited(RESULTS.partition("    a Cast with")[0].strip(), "float[2] k) -> float[3] k)")


@pytest.mark.parametrize("version", [3, 8], ids=["before inputs could be constant", "since then"])
@rows(RESULTS)
def test_what_no_runtime_takes_is_not_proved(row, version):
    """Though its values would be equal, while what was not changed is proved."""
    original, change, verdict = row
    check((original.replace("ir_version: 3", f"ir_version: {version}"), change, verdict))


def test_a_declaration_that_was_wrong_before_proves_as_much_as_it_did():
    """What the original declares of what it stores is its own fault."""
    check((DECLARED_LONGER, "", "proved"))


def stored(tensor):
    """A model that gives a stored tensor."""
    info = helper.make_tensor_value_info("y", tensor.data_type, list(tensor.dims))
    node = helper.make_node("Identity", [tensor.name], ["y"])
    return helper.make_model(helper.make_graph([node], "g", [], [info], [tensor]))


def test_texts_are_compared_whatever_bytes_stand_beside_them():
    """A tensor of texts has no bytes of its own."""
    tensors = (
        TensorProto(name="t", dims=[1], data_type=TensorProto.STRING, string_data=[text], raw_data=b"")
        for text in (b"a", b"b")
    )
    check((*map(stored, tensors), "not proved: the texts differ"))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_tensor_in_a_file_is_read_from_there(tmp_path, kind):
    """Whatever bytes the model holds as well: runtimes read the file."""
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, numbers in zip(paths, (np.float32([1, 2]), np.array([7, 9], kind)), strict=True):
        result = stored(numpy_helper.from_array(np.array([1, 2], numbers.dtype), "t"))
        result.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
        move_to_file(result.graph.initializer[0], location=f"{path.stem}.bin")
        numbers.tofile(path.with_suffix(".bin"))
        path.write_bytes(result.SerializeToString())
    assert certify(paths[0], paths[0]).proved
    assert "element 0 was 1.0, and is 7.0" in certify(*paths).problem


ENTRIES = {
    **{length: ({"length": length}, "does not fit its shape") for length in ("4", "12", "-8", "x")},
    **{
        offset[:30]: ({"offset": offset}, "cannot be read from")
        for offset in ("1_0", "\N{ARABIC-INDIC DIGIT ONE}", " 1", "-1", "1" * 29, "1" * 5000)
    },
}


@pytest.mark.parametrize("case", ENTRIES)
def test_lengths_and_offsets_in_a_file_are_checked(tmp_path, case):
    """onnxruntime takes a length that fits, or is 0; Python reads numbers where a runtime does not."""
    (tmp_path / "w.bin").write_bytes(bytes(64))

    def path(**entries):
        result = stored(TensorProto(name="t", dims=[2], data_type=1))
        move_to_file(result.graph.initializer[0], location="w.bin", **entries)
        file = tmp_path / "m.onnx" if entries else tmp_path / "plain.onnx"
        file.write_bytes(result.SerializeToString())
        return file

    entries, reason = ENTRIES[case]
    assert all(certify(path(), path(length=right)).proved for right in ("8", "0"))
    with pytest.raises(ModelError, match=reason):
        certify(path(), path(**entries))


SUM = "(float[2] x, float[2] s) => (float[2] y) { y = Add (x, s) }"


@pytest.mark.parametrize(
    ("read", "default", "number", "verdict"),
    [
        ("s", "s", 3, "proved"),
        ("t", "t", 3, "not proved"),
        ("s", "s", 4, "not proved: the default value of the input 's' differs"),
    ],
)
def test_a_sparse_default_of_an_input_is_not_its_value(read, default, number, verdict):
    """A caller may give another."""

    def with_sparse(text, name, number):
        result, indices = model(text), numpy_helper.from_array(np.array([1], np.int64), "i")
        values = numpy_helper.from_array(np.float32([number]), name)
        result.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
        return result

    original = with_sparse(SUM, "s", 3)
    check((original, with_sparse(SUM.replace("(x, s)", f"(x, {read})"), default, number), verdict))


@pytest.mark.parametrize("node", ["= Constant <value = float[2] {0, 0}> ()", "= Cast <to = 1> (x)"])
def test_a_node_without_outputs_makes_no_value(node):
    """Not that of the node behind it."""
    text = f"(float[2] x) => (float[2] y) <float[2] k = {{0, 0}}> {{ z = Abs (x) n {node} y = Neg (x) }}"
    original = text.replace(f"n {node} y = Neg (x)", "y = Identity (k)")
    result = model(text)
    del result.graph.node[1].output[:]
    check((original, result, "not proved"))


ODD_TEXT = {
    "an operator": (b"Softmax", b"Softm\x80x"),
    "an attribute": (b"axis", b"ax\x80s"),
    "a domain": (b"other", b"\x80ther"),
    "a body": (b"then_branch", b"then_bran\x80h"),
    "an operator that is folded": (b"Sqrt", b"\x80qrt"),
}


@pytest.mark.parametrize("case", ODD_TEXT)
def test_a_text_that_is_no_utf_8_is_no_traceback(case):
    """A file may hold any bytes where a name stands."""
    text = """(float[2] x, bool c) => (float[2] y) <float[2] k = {4, 9}> {
        q = Sqrt (k) s = Softmax <axis = 0> (x) z = other.A (x)
        b = If (c) <then_branch = t () => (u) { u = Exp (s) }, else_branch = e () => (u) { u = Neg (s) }>
        d = Add (z, b) y = Add (d, q) }"""
    folded = changed(text, "q = Sqrt (k) ->; k = {4, 9} -> q = {2, 3}")
    check((text, folded, "proved: folded 1"))
    assert not certify(model(text).SerializeToString().replace(*ODD_TEXT[case]), folded).proved


def test_a_cast_like_whose_name_is_no_utf_8_is_no_traceback():
    """A file may hold any bytes where a name stands."""
    original = model("(float[2] x, int64[1] k) => (y) { named = CastLike (x, k) y = Neg (named) }")
    odd = original.SerializeToString().replace(b"named", b"n\xe5med")
    assert certify(original, odd).proved


def test_a_body_of_an_operator_that_has_none_proves_nothing():
    """What it reads is not followed."""
    text = "(float[2] x) => (float[2] y) { y = Unknown <body = b () => () { u = Exp (x) }> (x) }"
    assert certify(model(text), changed(text, "Exp -> Neg")).problem == "their attribute 'body' differs"


def test_what_a_sequence_holds_has_the_same_shape():
    """As every input and output has."""
    text = "(float[2] x) => (seq(float[2]) y) { y = SequenceConstruct (x) }"
    check(
        (text, "seq(float[2]) -> seq(float[3])", "not proved: 'y' of the outputs has another type or shape")
    )
