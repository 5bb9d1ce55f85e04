"""The certificate: pairs that compute something else, of kinds that were proved once, beside right ones."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from amp_rewrite import certify
from amp_rewrite.certificate.certificate import Licence
from tests.certificate_rows import check, edited, model, rows

TREE = """<ir_version: 10, opset_import: ["": 22, "ai.onnx.ml": 5]> g"""
ATTRIBUTES = """
(float[2] x) => (float[2] y) { y = d.Op <w = float[2] {1, 3}> (x) }
    itself                        |                              | proved
    a tensor times a power of two | {1, 3} -> {8, 24}            | not proved: their attribute 'w' differs
    a tensor by a power of two    | {1, 3} -> {0.25, 0.75}       | not proved: their attribute 'w' differs
    a tensor in half              | float[2] {1, 3} -> float16[2] {15360, 16896} | not proved: attribute 'w'

TREE (int64[4] x) => (float[4] y) { y = ai.onnx.ml.LabelEncoder
        <keys_int64s = [1, 2], values_tensor = float[2] {1, 3}, default_tensor = float[1] {5}> (x) }
    the values of labels | {1, 3} -> {2, 6} | not proved: their attribute 'values_tensor' differs
    the default of labels | {5} -> {20}     | not proved: their attribute 'default_tensor' differs

TREE (float[8,2] x) => (float[8,1] y) { y = ai.onnx.ml.TreeEnsemble <leaf_targetids = [0, 0, 0],
        leaf_weights = float[3] {1, 2, 3}, n_targets = 1, nodes_falseleafs = [0, 1],
        nodes_falsenodeids = [1, 2], nodes_featureids = [0, 1], nodes_modes = uint8[2] {0, 0},
        nodes_splits = float[2] {0.5, 1},
        nodes_trueleafs = [1, 1], nodes_truenodeids = [0, 1], tree_roots = [0]> (x) }
    the leaves of a tree | {1, 2, 3} -> {1024, 2048, 3072} | not proved: attribute 'leaf_weights' differs
    the splits of a tree | {0.5, 1} -> {0.125, 0.25}       | not proved: attribute 'nodes_splits' differs
"""


@rows(ATTRIBUTES.replace("TREE", TREE))
def test_attributes_have_no_exponent(row):
    """What an operator makes of a tensor attribute need not scale with it."""
    check(row)


@pytest.mark.parametrize("factor", [2, 0.25])
def test_tensors_in_a_list_or_sparse_have_no_exponent(factor):
    """Like single ones."""
    original = model("(float[2] x) => (float[2] y) { y = d.Op (x) }")
    places = numpy_helper.from_array(np.array([0, 2]), "places")

    def with_attribute(scale, *, sparse):
        values = numpy_helper.from_array(
            numpy_helper.np.float32([1, 3]) * numpy_helper.np.float32(scale), "v"
        )
        value = helper.make_sparse_tensor(values, places, [4]) if sparse else [values, places]
        changed = type(original).FromString(original.SerializeToString())
        changed.graph.node[0].attribute.append(helper.make_attribute("w", value))
        return changed

    for sparse in (False, True):
        assert certify(with_attribute(1, sparse=sparse), with_attribute(1, sparse=sparse)).proved
        found = certify(with_attribute(1, sparse=sparse), with_attribute(factor, sparse=sparse))
        assert found.problem == "their attribute 'w' differs"


# ---- powers of two


FAR = "and may leave float32"
POWERS = """
(float[4] x) => (float[4] y) <float b = {BIG}, float s = {SMALL}> { y = Neg (x) }
    a factor and its reciprocal  | y = Neg (x) -> t = Mul (x, b) u = Neg (t) y = Mul (u, s) | VERDICT
    a reciprocal and its factor  | y = Neg (x) -> t = Mul (x, s) u = Neg (t) y = Mul (u, b) | VERDICT

(float[4] x) => (float[4] y) <float b = {BIG}> { y = Div (x, x) }
    a factor of both             | y = Div (x, x) -> t = Mul (x, b) y = Div (t, t) | VERDICT

(float[4] x) => (float[4] y) <float b = {BIG}, float z = {0}> { c = Greater (x, z) y = Cast <to = 1> (c) }
    what is compared             | c = Greater (x, z) -> t = Mul (x, b) c = Greater (t, z) | VERDICT

(float[4] x) => (float[4] y) <float w = {3}, float s = {SMALL}> { y = Mul (x, w) }
    a weight                     | y = Mul (x, w) -> t = Mul (x, w) y = Mul (t, s); {3} -> {THRICE} | VERDICT

(float[2,4] x, float[4] g) => (float[2,4] y) <float s = {SMALL}> {
        y = LayerNormalization <epsilon = 0.01> (x, g) }
    an epsilon                   | y = -> t = Mul (x, s) y =; 0.01> (x -> EPSILON> (t | VERDICT

(float[4] x, bool c) => (float[4] y) <float b = {BIG}, float s = {SMALL}> {
        y = If (c) <then_branch = t () => (float[4] u) { u = Neg (x) },
        else_branch = e () => (float[4] v) { v = Abs (x) }> }
    in a branch                  | u = Neg (x) -> a = Mul (x, b) n = Neg (a) u = Mul (n, s) | VERDICT

(float[4] x, int64 n, bool c) => (float[4] y) <float b = {BIG}, float s = {SMALL}> { y = Loop (n, c, x) <
        body = l (int64 i, bool d, float[4] h) => (bool e, float[4] t) { e = Identity (d) t = Neg (h) }> }
    in a loop                    | t = Neg (h) -> a = Mul (h, b) m = Neg (a) t = Mul (m, s) | VERDICT
    what a loop carries          | t = Neg (h) -> m = Neg (h) t = Mul (m, b) | not proved

(float[3,4] x, float[4] z) => (float[4] y, float[3,4] w) <float b = {BIG}, float s = {SMALL}> {
        y, w = Scan <num_scan_inputs = 1, body = l (float[4] h, float[4] v) => (float[4] t, float[4] o) {
        t = Add (h, v) o = Identity (t) }> (z, x) }
    in a scan     | t = Add (h, v) -> a = Mul (h, b) c = Mul (v, b) p = Add (a, c) t = Mul (p, s) | VERDICT

(float[4] x) => (float[4] y) <float b = {BIG}, float s = {SMALL}, int64 i = {0}> {
        q = SequenceConstruct (x, x) y = SequenceAt (q, i) }
    in a sequence
        | q = -> t = Mul (x, b) q =; (x, x) y -> (t, t) u; (q, i) -> (q, i) y = Mul (u, s) | not proved
"""


def powers(exponent, verdict):
    """The rows for one power of two."""
    numbers = {"BIG": 2.0**exponent, "SMALL": 2.0**-exponent, "THRICE": 3 * 2.0**exponent}
    table = POWERS.replace("VERDICT", verdict).replace("EPSILON", repr(0.01 * 2.0 ** (-2 * exponent)))
    for name, number in numbers.items():
        table = table.replace(f"{{{name}}}", f"{{{number!r}}}")
    return table


@rows(powers(41, f"not proved: {FAR}"))
def test_powers_of_two_have_a_limit(row):
    """Beyond 2^40, numbers of ordinary size leave float32."""
    check(row)


@rows(powers(40, "proved"))
def test_powers_of_two_up_to_the_limit_cancel(row):
    """In exact arithmetic, and in float32 where nothing over- or underflows."""
    check(row)


@pytest.mark.parametrize(
    ("original", "result"),
    [
        ("y = Mul (x, x)", "t = Mul (x, b) u = Mul (t, t) y = Mul (u, q)"),
        ("y = Sqrt (x)", "t = Mul (x, r) u = Sqrt (t) y = Mul (u, s)"),
        ("y = Reciprocal (x)", "t = Mul (x, r) u = Reciprocal (t) y = Mul (u, r)"),
        ("y = Neg (x)", "t = Mul (x, b) u = Mul (t, b) v = Neg (u) w = Mul (v, s) y = Mul (w, s)"),
    ],
)
def test_the_limit_holds_for_each_value(original, result):
    """Not for each factor: what is squared or multiplied again leaves it too."""
    numbers = {"b": 30, "s": -30, "q": -60, "r": 60}
    stored = ", ".join(f"float {name} = {{{2.0**power!r}}}" for name, power in numbers.items())
    text = f"(float[4] x) => (float[4] y) <{stored}> {{ NODES }}"
    found = certify(model(edited(text, f"NODES -> {original}")), model(edited(text, f"NODES -> {result}")))
    assert FAR in found.problem


# ---- declared types


OUTPUTS = "(float[4] x) => (float[4] y) { k, l = d.Op (x) a = Cast <to = 1> (k) b = Cast <to = 1> (l) MORE }"


@pytest.mark.parametrize(
    ("original", "result"),
    [
        ("c = Div (a, b) y = Cast <to = 1> (c)", "c = Div (k, l) y = Cast <to = 1> (c)"),
        ("c = Cast <to = 7> (a) y = Cast <to = 1> (c)", "c = Cast <to = 7> (k) y = Cast <to = 1> (c)"),
        ("y = Exp (a)", "y = Exp (k)"),
        ("y = d.Q (a)", "y = d.Q (k)"),
    ],
)
@pytest.mark.parametrize("declared", ["float16", "float32", "half,OUT0:float32,OUT1:float32"])
def test_a_result_declares_nothing(original, result, declared):
    """Only where the user declares it, or the original records it, is an output a float, which is counted."""
    before, after = (model(edited(OUTPUTS, f"MORE -> {nodes}")) for nodes in (original, result))
    record = {"key": "amp_rewrite.op_types", "value": f'{{"d:Op": "{declared}"}}'}
    after.metadata_props.add(**record)
    assert not certify(before, after).proved
    assert certify(before, after, op_types={"d:Op": declared}).licences[Licence.DECLARED] == 1
    before.metadata_props.add(**record)
    assert certify(before, after).licences[Licence.DECLARED] == 1


def test_an_output_that_is_read_as_integers_is_none():
    """Whatever type is declared for the floats of its operator."""
    text = (
        "(float[4] x) => (float[N] y) { k = d.Op (x) g = Gather (x, k) a = Cast <to = 1> (k) y = Div (g, a) }"
    )
    wrong = edited(text, "Div (g, a) -> Div (g, k)")
    assert not certify(model(text), model(wrong), op_types={"d:Op": "float16"}).proved


# ---- bodies of custom operators


BODIES = """
(float[4] x, float[4] w) => (float[4] y) { y = d.Fold (x) <body = b () => (float[4] u) { u = Neg (w) }> }
    itself                      | | proved
    a body that reads half
        | { y -> { h = Cast <to = 10> (w) y; Neg (w) -> Neg (h) | not proved: another type
    one that makes float of it
        | { y -> { h = Cast <to = 10> (w) y; u = Neg (w) -> n = Neg (h) u = Cast <to = 1> (n)
        | not proved: it reads float16 at input 0
    one that computes in half   | u = Neg (w) -> h = Cast <to = 10> (w) u = Neg (h) | not proved: another type
    one that makes half         | u = Neg (w) -> n = Neg (w) u = Cast <to = 10> (n) | not proved: another type

(float[4] x) => (float[4] y) { y = d.Fold (x) <body = b (float[4] v) => (float[4] u) { u = Neg (v) }> }
    a body itself               | | proved
    a body that is passed half  | (float[4] v) -> (float16[4] v) | not proved: another type

(float[4] x, float[4] w, bool c) => (float[4] y) { y = d.Fold (x) <body = b () => (float[4] u) {
        u = If (c) <then_branch = t () => (float[4] p) { p = Neg (w) },
        else_branch = e () => (float[4] q) { q = Abs (w) }> }> }
    a branch in a body
        | { y -> { h = Cast <to = 10> (w) y; Neg (w) -> Neg (h); Abs (w) -> Abs (h) | not proved: another type
"""


@rows(BODIES)
def test_a_body_of_a_custom_operator_has_its_types(row):
    """What the operator does with it is not known."""
    check(row)


# ---- lifted numbers


def lifted(original, result, numbers=(1e-12,), bits=(1,)):
    """The certificate of a constant `e` in float16 with these bits, and of nodes that read it."""
    dims = "" if len(numbers) == 1 else f"[{len(numbers)}]"
    text = "(float[4,1] x) => (float[4,N] y) <KIND e = {NUMBERS}, float b = {1e12}> { NODES }"
    stored = (("float", numbers, original), ("float16", bits, result))
    texts = (
        edited(text, f"KIND -> {kind}{dims}; NUMBERS -> {', '.join(map(repr, each))}; NODES -> {nodes}")
        for kind, each, nodes in stored
    )
    return certify(*map(model, texts))


HALF = "h = Cast <to = 10> (x)"


@pytest.mark.parametrize(
    ("original", "result"),
    [
        ("t = Mul (x, e) y = Mul (t, b)", f"{HALF} s = Mul (h, e) t = Cast <to = 1> (s) y = Mul (t, b)"),
        ("y = Mul (x, e)", "f = Cast <to = 1> (e) y = Mul (x, f)"),
        ("y = Div (e, x)", f"{HALF} t = Div (e, h) y = Cast <to = 1> (t)"),
        ("y = Pow (e, x)", f"{HALF} t = Pow (e, h) y = Cast <to = 1> (t)"),
        ("y = Max (x, e)", "f = Cast <to = 1> (e) y = Max (x, f)"),
        ("y = Clip (x, e)", "f = Cast <to = 1> (e) y = Clip (x, f)"),
        ("c = Greater (x, e) y = Cast <to = 1> (c)", f"{HALF} c = Greater (h, e) y = Cast <to = 1> (c)"),
        ("m = Max (x, e) y = Mul (m, e)", f"{HALF} m = Max (h, e) t = Mul (m, e) y = Cast <to = 1> (t)"),
    ],
)
def test_a_number_is_not_lifted_where_that_is_no_rounding(original, result):
    """As a factor, a divisor, a threshold, or in float32."""
    assert "it is lifted, and more" in lifted(original, result).problem


@pytest.mark.parametrize("node", ["Max (V, e)", "Max (e, V)", "Clip (V, e)", "Add (V, e)", "Sub (V, e)"])
def test_an_addend_or_a_bound_in_half_is_lifted(node):
    """The result is rounded up in place of down."""
    half = f"{HALF} t = {node.replace('V', 'h')} y = Cast <to = 1> (t)"
    original = f"y = {node.replace('V', 'x')}"
    assert lifted(original, half).licences == {Licence.LIFTED: 1}
    text = f"(float[4,1] x) => (float[4,N] y) <float e = {{1e-12}}> {{ {original} }}"
    restored = certify(model(text), model(text.replace("1e-12", repr(2.0**-24))))
    assert restored.licences == {Licence.LIFTED: 1, Licence.RESTORED: 1}


def test_factors_beside_larger_ones_are_lifted():
    """In sums of products with all of them; not where each has a result of its own."""
    numbers, bits = (1e-12, 1.0), (1, 15360)
    shape = "s = Constant <value = int64[2] {1, 2}> () w = Reshape (e, s)"
    product = f"{HALF} {shape} t = MatMul (h, w) y = Cast <to = 1> (t)"
    found = lifted(f"{shape} y = MatMul (x, w)", product, numbers, bits)
    assert found.licences == {Licence.LIFTED: 1}
    assert not lifted(f"{shape} y = MatMul (x, w)", product, (1e-12, 1e-12), (1, 1)).proved
    scaled = f"{HALF} t = Mul (h, e) y = Cast <to = 1> (t)"
    assert not lifted("y = Mul (x, e)", scaled, numbers, bits).proved


# ---- names of open sizes


NAMES = """
(float[N,M] x, float[M,K] w) => (float[N,K] y) <float[N,K] h> { h = MatMul (x, w) y = Neg (h) }
    itself                 |                       | proved
    one size for another   | <float[N,K] -> <float[N,N] | not proved: 'N', is that of another
    sizes that change places | <float[N,K] -> <float[K,N] | not proved: is that of another
    one new name for two   | <float[N,K] -> <float[Q,Q] | not proved: 'Q', is that of another
    a new name             | <float[N,K] -> <float[N,Q] | proved

(float[N] x, float[M] z) => (float[P] y) { h = Concat <axis = 0> (x, z) y = Neg (h) }
    a name that the original does not declare | => (float[P] y) -> => (float[P] y) <float[N] h>
        | not proved: 'N', is that of another

(float[N] x) => (y) { k = NonZero (x) y = Cast <to = 1> (k) }
    a size that depends on values | => (y) -> => (y) <int64[1,N] k> | not proved: 'N', is that of another

(float[N] x, float[M] z) => (y, v) {
        k = NonZero (x) l = NonZero (z) y = Cast <to = 1> (k) v = Cast <to = 1> (l) }
    two that do    | => (y, v) -> => (y, v) <int64[1,T] k, int64[1,T] l> | not proved: 'T', is that of another
    each of its own | => (y, v) -> => (y, v) <int64[1,T] k, int64[1,S] l> | proved

(float[N,3] x) => (float[N,3] y) <float[N,3] h> { h = Neg (x) y = Abs (h) }
    a name for a size that is known | <float[N,3] h -> <float[N,N] h | not proved: 'N', is that of another

(float[N] x, int64 n, bool c, float[M] z) => (float[N] y) { y = Loop (n, c, x) <
        body = b (int64 i, bool d, float[N] s) => (bool e, float[N] t) { e = Identity (d) t = Neg (s) }> }
    in a body | float[N] s -> float[M] s; float[N] t -> float[M] t | not proved: 'M', is that of another
"""


@rows(NAMES)
def test_a_name_stands_for_one_open_size(row):
    """Runtimes may use one buffer for values of the same declared shape."""
    check(row)
