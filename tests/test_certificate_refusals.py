"""The certificate: what no text says of models that are none, odd bytes, and bytes that lie elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate import numbering
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.numbered import Numbered
from amp_rewrite.certificate.shapes import Ranks
from amp_rewrite.errors import ModelError
from tests.certificate_pairs import changed, check, model, move_to_file, outputs


def double(depth):
    """Functions each of which calls the next twice."""
    functions = "".join(
        f'<domain: "d", opset_import: ["": 17, "d": 1]> f{i} (a) => (b) '
        f"{{ c = {called} (a) b = {called} (c) }}"
        for i in range(depth)
        for called in [f"d.f{i + 1}" if i + 1 < depth else "Exp"]
    )
    return model("g (float[1] x) => (float[1] y) { y = d.f0 (x) }" + functions)


def without_type(result):
    """The branches of an If are attributes without a type."""
    for attribute in result.graph.node[0].attribute:
        attribute.type = AttributeProto.UNDEFINED


def of_another_type(result):
    """The attribute of a Constant is named like a float, and its type says that it is two."""
    attribute = result.graph.node[0].attribute[0]
    attribute.type = AttributeProto.FLOATS
    attribute.floats.extend([3, 4])


def of_no_memory(name):
    """A change: a stored value has sizes that no memory has, one of which is 0."""
    sizes = [0, 1 << 62, 1 << 62]
    return lambda result: result.graph.initializer.add(name=name, dims=sizes, data_type=1, raw_data=b"")


def in_a_file(tensor_of):
    """A change: a tensor is in a file of no known folder."""
    return lambda result: move_to_file(tensor_of(result.graph), location="w.bin")


IF = """g (float[2] x, bool c) => (float[2] y) {
    y = If (c) <then_branch = t () => (u) { u = Exp (x) }, else_branch = e () => (u) { u = Neg (x) }> }"""
CONSTANT = "g (float[2] x) => (float[2] y) { k = Constant <value_float = 5.0> () y = Mul (x, k) }"
STORED = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }"
FILL = "g (int64[1] n) => (float[N] y) { a = ConstantOfShape<value = float[1] {1.5}>(n) y = Exp(a) }"


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (double(60), "nodes with its functions taken apart"),
        (changed(IF, without_type), "a body 'then_branch' without a type"),
        (changed(CONSTANT, of_another_type), "'value_float' of another type"),
        (changed(STORED, in_a_file(lambda graph: graph.initializer[0])), "in which folder"),
        (changed(FILL, in_a_file(lambda graph: graph.node[0].attribute[0].t)), "in which folder"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_is_no_model_is_an_error(result, problem):
    """In one line, which says what is wrong."""
    check(result, result, f"error: {problem}")


def test_sizes_that_no_memory_has_are_an_error():
    """Where the value would be computed anew."""
    original = changed("g () => (y) { n = Neg (w) y = other.A (n) }", of_no_memory("w"))
    check(
        original,
        changed("g () => (y) { y = other.A (n) }", of_no_memory("n")),
        "error: sizes that are too large",
    )


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
    check(*map(stored, tensors), "not proved: the texts differ")


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


ENTRIES = [("length", length) for length in ("4", "12", "-8", "x")]
ENTRIES += [("offset", offset) for offset in ("1_0", "\N{ARABIC-INDIC DIGIT ONE}", " 1", "-1", "1" * 5000)]


@pytest.mark.parametrize(("entry", "value"), ENTRIES, ids=lambda text: text[:30])
def test_lengths_and_offsets_in_a_file_are_checked(tmp_path, entry, value):
    """onnxruntime takes a length that fits, or is 0; Python reads numbers where a runtime does not."""
    (tmp_path / "w.bin").write_bytes(bytes(64))

    def path(**entries):
        result = stored(TensorProto(name="t", dims=[2], data_type=1))
        move_to_file(result.graph.initializer[0], location="w.bin", **entries)
        file = tmp_path / "m.onnx" if entries else tmp_path / "plain.onnx"
        file.write_bytes(result.SerializeToString())
        return file

    assert all(certify(path(), path(length=right)).proved for right in ("8", "0"))
    reason = "does not fit its shape" if entry == "length" else "cannot be read from"
    with pytest.raises(ModelError, match=reason):
        certify(path(), path(**{entry: value}))


SUM = "g (float[2] x, float[2] s) => (float[2] y) { y = Add (x, s) }"


@pytest.mark.parametrize(
    ("read", "default", "number", "verdict"),
    [
        ("s", "s", 3, "proved"),
        ("t", "t", 3, "not proved: the input 's' has a default value in one of them"),
        ("s", "s", 4, "not proved: the default value of the input 's' differs"),
    ],
)
def test_a_sparse_default_of_an_input_is_not_its_value(read, default, number, verdict):
    """A caller may give another."""

    def with_sparse(text, name, number):
        values = numpy_helper.from_array(np.float32([number]), name)
        sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1]), "i"), [2])
        return changed(text, lambda result: result.graph.sparse_initializer.append(sparse))

    check(
        with_sparse(SUM, "s", 3), with_sparse(SUM.replace("(x, s)", f"(x, {read})"), default, number), verdict
    )


@pytest.mark.parametrize("node", ["= Constant <value = float[2] {0, 0}> ()", "= Cast <to = 1> (x)"])
def test_a_node_without_outputs_makes_no_value(node):
    """Not that of the node behind it."""
    text = f"g (float[2] x) => (float[2] y) <float[2] k = {{0, 0}}> {{ z = Abs (x) n {node} y = Neg (x) }}"
    original = model(text.replace(f"n {node} y = Neg (x)", "y = Identity (k)"))
    result = changed(text, lambda result: result.graph.node[1].ClearField("output"))
    assert not certify(original, result).proved


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
    text = """g (float[2] x, bool c) => (float[2] y) <float[2] k = {4, 9}> {
        q = Sqrt (k) s = Softmax <axis = 0> (x) z = other.A (x)
        b = If (c) <then_branch = t () => (u) { u = Exp (s) }, else_branch = e () => (u) { u = Neg (s) }>
        d = Add (z, b) y = Add (d, q) }"""
    folded = model(text.replace("q = Sqrt (k)", "").replace("k = {4, 9}", "q = {2, 3}"))
    check(text, folded, "proved: folded 1")
    assert not certify(model(text).SerializeToString().replace(*ODD_TEXT[case]), folded).proved


def test_a_cast_like_whose_name_is_no_utf_8_is_no_traceback():
    """A file may hold any bytes where a name stands."""
    original = model("g (float[2] x, int64[1] k) => (y) { named = CastLike (x, k) y = Neg (named) }")
    odd = original.SerializeToString().replace(b"named", b"n\xe5med")
    assert certify(original, odd).proved


# ---- how many sizes a Reshape is given tells the rank of what it makes

NETWORK = """<ir_version: 7, opset_import: ["" : {opset}]> g (float[n, c, h, w] x, int64[k] any) => (y)
    <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] last = {{-1}}, int64[2] both = {{0, 1}},
    int64 at = {{0}}> {{ s = Shape (x) {sizes} r = Reshape (x, t) y = Softmax <axis = 1> (r) }}"""
TWO = {
    "a part of a shape": "p = Slice (s, zero, two, zero) t = Identity (p)",
    "from the end": "p = Slice (s, last, two, zero, last) t = Concat <axis = 0> (p, last)",
    "sizes": "p = Gather <axis = 0> (s, both) t = Concat <axis = 0> (p)",
    "through types": "p = Slice (s, zero, last) q = Cast <to = 6> (p) t = Slice (q, zero, two)",
}
OTHERS = {
    "a size": (
        "i = Gather <axis = 0> (s, at) p = Unsqueeze <axes = [0]> (i) t = Concat <axis = 0> (last, p)",
        2,
    ),
    "by attributes": ("p = Slice <starts = [1], ends = [9]> (s) t = Identity (p)", 3),
    "all of it": ("t = Identity (s)", 4),
    "unknown sizes": ("t = Concat <axis = 0> (last, any)", None),
    "an unknown part": ("t = Slice (s, zero, any)", None),
}


def rank(sizes):
    """What is known of the axes of the value that the network reshapes."""
    opset = 9 if "starts" in sizes else 11  # where a Slice still says it in attributes
    proto = parser.parse_model(NETWORK.format(opset=opset, sizes=sizes))
    made = numbering.number(Numbered(proto, None), {})
    return Ranks(made).of(made.names.index("r"))


@pytest.mark.parametrize("sizes", TWO.values(), ids=TWO)
def test_computed_sizes_tell_a_rank(sizes):
    """A Softmax over the second axis means the same at opset 13 where there are two."""
    both = (parser.parse_model(NETWORK.format(opset=opset, sizes=sizes)) for opset in (11, 13))
    assert certify(*both).proved


@pytest.mark.parametrize(("sizes", "axes"), OTHERS.values(), ids=OTHERS)
def test_as_many_sizes_as_axes(sizes, axes):
    """Whatever makes them; of an unknown number of them nothing is known."""
    assert rank(sizes) == axes


def test_other_ranks_are_not_proved():
    """With three sizes a Softmax over the second axis is another at opset 13."""
    sizes = "p = Slice (s, zero, last) t = Identity (p)"
    both = (parser.parse_model(NETWORK.format(opset=opset, sizes=sizes)) for opset in (11, 13))
    assert rank(sizes) == 3
    assert not certify(*both).proved


@pytest.mark.parametrize(("parts", "axes"), [(60, 60), (2000, None)])
def test_a_length_of_very_many_parts_is_not_known(parts, axes):
    """No runtime has values of so many axes."""
    assert rank(f"t = Concat <axis = 0> ({', '.join(['last'] * parts)})") == axes


# ---- larger models, rescaled by hand, and faults in them


def test_weights_that_a_norm_went_into_are_rescaled():
    """The numbers that are computed anew have an exponent as well."""
    original = model(
        """g (float[2,4] x) => (float[2,4] y) <float[2,2,1,1] w = {3, 5, 7, 9}, float[2] s = {1, 2},
        float[2] v = {3, 4}, int64[4] image = {1, 2, 2, 2}, int64[2] shape = {2, 4}> {
        i = Reshape (x, image) c = Conv (i, w) n = BatchNormalization (c, s, v, v, v)
        l = ReduceL1 (n) q = Div (n, l) y = Reshape (q, shape) }"""
    )
    result = rewrite(original, Options(level="unsafe-force-all", check=False)).model
    for tensor in result.graph.initializer:
        numbers = numpy_helper.to_array(tensor)
        if numbers.dtype == np.float16:
            tensor.CopyFrom(numpy_helper.from_array(numbers / np.float16(4), tensor.name))
    found = certify(original, result)
    assert found.licences == {Licence.MERGED: 1, Licence.RESCALED: 2}, found


LARGER = {
    # the shapes of weights, those that are divided by 4, other stored values, and the nodes
    "a residual stream": (
        {"w": (4, 4), "a": (4,), "v": (4, 4), "g": (4,), "o": (4, 4), "b": (4,)},
        "wao",
        "float e = {0.01}, float two = {2}, float k = {1}",
        """m = MatMul (x, w) n = Add (m, a) r = Relu (n) f = MatMul (r, v) h = Add (f, n) p = Pow (h, two)
        s = ReduceMean <axes = [-1]> (p) d = Add (s, e) q = Sqrt (d) c = Div (h, q) l = Mul (c, g)
        i = MatMul (l, o) j = Add (i, h) t = LayerNormalization <epsilon = 0.02> (j, g, b)
        u = Mul (i, k) z = Tanh (u) y = Add (t, z)""",
    ),
    "convolutions": (
        {"w": (4, 2, 1, 1), "b": (4,), "v": (4, 4, 1, 1), "g": (4,), "o": (2, 4, 1, 1)},
        "wb",
        "int64[4] image = {1, 2, 2, 2}, int64[2] shape = {2, 4}, float k = {1}",
        """i = Reshape (x, image) a = Conv (i, w, b) r = Relu (a) c = Conv (r, v) d = Add (c, a)
        n = InstanceNormalization <epsilon = 0.02> (d, g, g) s = Sigmoid (n) p = Mul (d, s)
        u = Conv (p, o) q = Mul (u, k) y = Reshape (q, shape)""",
    ),
}


def larger(name):
    """The original and the result."""
    weights, smaller, stored, nodes = LARGER[name]
    text = f"g (float[2,4] x) => (float[2,4] y) <{stored}> {{ {nodes} }}"
    changes = {"{0.01}": "{0.000625}", "= 0.02": "= 0.00125", "k = {1}": "k = {4}"}
    original = model(text)
    for old, new in changes.items():
        text = text.replace(old, new)
    result = model(text)
    for weight, shape in weights.items():
        numbers = np.random.default_rng(5).standard_normal(shape, np.float32)
        original.graph.initializer.append(numpy_helper.from_array(numbers, weight))
        numbers = numbers / np.float32(4 if weight in smaller else 1)
        result.graph.initializer.append(numpy_helper.from_array(numbers, weight))
    return original, result


def faults(result):
    """Changes of a result that are a fault each, by what they are."""
    for at, tensor in enumerate(result.graph.initializer):
        numbers = numpy_helper.to_array(tensor)
        if numbers.dtype.kind == "f":
            bits = numbers.copy()
            bits.reshape(-1).view(f"u{numbers.itemsize}")[0] ^= 1
            for what, other in (("twice", numbers * 2), ("half of", numbers / 2), ("a bit of", bits)):
                wrong = numpy_helper.from_array(np.asarray(other, numbers.dtype), tensor.name)
                yield (
                    f"{what} {tensor.name}",
                    lambda it, at=at, wrong=wrong: it.graph.initializer[at].CopyFrom(wrong),
                )
    for at, node in enumerate(result.graph.node):
        for factor in (0.25, 2, 4, 16) if [each.name for each in node.attribute] == ["epsilon"] else ():
            epsilon = helper.make_attribute("epsilon", node.attribute[0].f * factor)
            yield (
                f"epsilon times {factor}",
                lambda it, at=at, epsilon=epsilon: it.graph.node[at].attribute[0].CopyFrom(epsilon),
            )
        if node.op_type == "Mul" and "k" in node.input[1]:
            plain = helper.make_node("Identity", node.input[:1], node.output)
            yield f"no {node.output[0]}", lambda it, at=at, plain=plain: it.graph.node[at].CopyFrom(plain)
            again = helper.make_node("Mul", ["once", node.input[1]], node.output)
            yield f"{node.output[0]} twice", lambda it, at=at, again=again: multiply(it.graph, at, again)


def multiply(graph, at, again):
    """Put a second Mul behind one."""
    graph.node[at].output[0] = "once"
    graph.node.insert(at + 1, again)


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("name", LARGER)
def test_faults_in_rescaled_models_are_refused(name, kind):
    """Unless the output has the same bits."""
    original, result = larger(name)
    if kind != "float32":
        options = Options(half=kind, level="unsafe-force-all", check=False, certify=False)
        result = rewrite(result, options).model
    expected = outputs(result)
    assert certify(original, result).proved
    wrong = {what: changed(result, change) for what, change in faults(result)}
    assert len(wrong) > 15
    for what, mutant in wrong.items():
        assert not certify(original, mutant).proved or outputs(mutant) == expected, what
