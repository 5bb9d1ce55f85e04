"""Where Casts are inserted, and what they are called."""

from functools import partial

import pytest

from amp_rewrite import rewrite
from tests.text import agree, becomes, complaints, model, nodes, rewritten

PLACES = {
    # A Cast directly follows its value's producer, and all consumers of that type share it.
    "one cast serves all readers of a value": partial(
        becomes,
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            [a] e = Exp (x)
            [b] f = Neg (e)
            [c] p = MatMul (e, w)
            [d] q = MatMul (e, p)
            [e] y = Exp (q)
            [f] r = Exp (f)
            [g] z = Add (y, r)
        }""",
        """g (float[4,4] x) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [a] e = Exp (x)
            [e__float16] e__float16 = Cast <to = 10> (e)
            [b] f = Neg (e)
            [c] p = MatMul (e__float16, w)
            [d] q = MatMul (e__float16, p)
            [q__float32] q__float32 = Cast <to = 1> (q)
            [e] y = Exp (q__float32)
            [f] r = Exp (f)
            [g] z = Add (y, r)
        }""",
        runs=False,  # exponentials of exponentials: every rounding shows
    ),
    # Casts of inputs come first, in the order of the inputs, whatever the order of the consumers.
    "inputs are cast at the front in their order": partial(
        becomes,
        """g (float[4,4] a, float[4,4] b, float[4,4] c) => (float[4,4] y) {
            s = Shape (a)
            p = MatMul (c, b)
            y = MatMul (p, a)
        }""",
        """g (float[4,4] a, float[4,4] b, float[4,4] c) => (float[4,4] y) {
            [a__float16] a__float16 = Cast <to = 10> (a)
            [b__float16] b__float16 = Cast <to = 10> (b)
            [c__float16] c__float16 = Cast <to = 10> (c)
            s = Shape (a)
            p = MatMul (c__float16, b__float16)
            y__float16 = MatMul (p, a__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
    # A value of the enclosing graph that branches use is cast there, once, after its producer.
    "readers in branches share the cast outside": partial(
        becomes,
        """g (float[4,4] x, bool c) => (float[4,4] y) <float[4,4] w> {
            e = Exp (x)
            y = If (c) <
                then_branch = t () => (float[4,4] p) { p = MatMul (e, w) },
                else_branch = f () => (float[4,4] q) { r = MatMul (w, e) q = Add (r, w) }
            >
        }""",
        """g (float[4,4] x, bool c) => (float[4,4] y) <float16[4,4] w> {
            e = Exp (x)
            [e__float16] e__float16 = Cast <to = 10> (e)
            y__float16 = If (c) <
                then_branch = t () => (float16[4,4] p) { p = MatMul (e__float16, w) },
                else_branch = f () => (float16[4,4] q) { r = MatMul (w, e__float16) q = Add (r, w) }
            >
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
    # An outer value is cast once before the loop, not in each iteration; the body's own values inside it.
    "a loop body reads the cast outside": partial(
        becomes,
        """g (float[4,4] x, int64 n, bool c) => (float[k,4,4] ys) {
            e = Exp (x)
            ys = Loop (n, c) <body = b (int64 i, bool ci) => (bool co, float[4,4] u) {
                co = Identity (ci)
                f = MatMul (e, e)
                u = Exp (f)
            }>
        }""",
        """g (float[4,4] x, int64 n, bool c) => (float[k,4,4] ys) {
            e = Exp (x)
            [e__float16] e__float16 = Cast <to = 10> (e)
            ys = Loop (n, c) <body = b (int64 i, bool ci) => (bool co, float[4,4] u) {
                co = Identity (ci)
                f = MatMul (e__float16, e__float16)
                [f__float32] f__float32 = Cast <to = 1> (f)
                u = Exp (f__float32)
            }>
        }""",
        runs=False,  # exponentials of exponentials
    ),
}


@pytest.mark.parametrize("holds", PLACES.values(), ids=PLACES)
def test_where_casts_stand(holds):
    """One Cast serves all consumers of a value, and directly follows its producer."""
    holds()


def test_an_input_of_a_body_is_cast_at_the_front_of_the_body():
    """If a body's input keeps its type, its Cast is the first node of that body."""
    result = rewritten(
        model(
            """g (seq(float[4,4]) x) => (seq(float[4,4]) y) <float[4,4] w> {
                y = SequenceMap (x) <body = b (float[4,4] i) => (float[4,4] h) {
                    s = Shape (i)
                    m = MatMul (i, w)
                    h = Reshape (m, s)
                }>
            }"""
        )
    )
    assert nodes(result.model) == [
        "y = SequenceMap(x)",
        "i__float16 = Cast(i)",
        "s = Shape(i)",
        "m = MatMul(i__float16, w)",
        "h = Reshape(m, s)",
        "h__float32 = Cast(h)",
    ]


NAMES = {
    # The names of a Cast and its output are unique in all graphs, including branches.
    "names that are taken are numbered": partial(
        becomes,
        """g (float[4,4] x, bool c) => (float[4,4] y, float[4,4] z) <float[4,4] w> {
            [x__float16] x__float16 = Exp (x)
            y = MatMul (x, w)
            z = If (c) <
                then_branch = t () => (float[4,4] y__float16) {
                    [y__float32] y__float16 = Exp (x__float16)
                },
                else_branch = f () => (float[4,4] x__float16_2) { x__float16_2 = Exp (x) }
            >
        }""",
        """g (float[4,4] x, bool c) => (float[4,4] y, float[4,4] z) <float16[4,4] w> {
            [x__float16_2] x__float16_3 = Cast <to = 10> (x)
            [x__float16] x__float16 = Exp (x)
            y__float16_2 = MatMul (x__float16_3, w)
            [y__float32_2] y = Cast <to = 1> (y__float16_2)
            z = If (c) <
                then_branch = t () => (float[4,4] y__float16) {
                    [y__float32] y__float16 = Exp (x__float16)
                },
                else_branch = f () => (float[4,4] x__float16_2) { x__float16_2 = Exp (x) }
            >
        }""",
    ),
    # They are renamed, since onnx's type inference confuses the two.
    "weights of a body that are called as others outside": partial(
        becomes,
        """g (float[4,4] x, bool c) => (float[4,4] y) {
            h = Exp (x)
            w = Exp (h)
            y = If (c) <
                then_branch = t () => (float[4,4] p) <float[4,4] w> { p = MatMul (h, w) },
                else_branch = e () => (float[4,4] q) { q = Neg (h) }
            >
        }""",
        """g (float[4,4] x, bool c) => (float[4,4] y) {
            h = Exp (x)
            [h__float16] h__float16 = Cast <to = 10> (h)
            w = Exp (h)
            y__float16 = If (c) <
                then_branch = t () => (float16[4,4] p) <float16[4,4] w__inner> {
                    p = MatMul (h__float16, w__inner)
                },
                else_branch = e () => (float16[4,4] q) { q = Neg (h__float16) }
            >
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
    ),
}


@pytest.mark.parametrize("holds", NAMES.values(), ids=NAMES)
def test_what_casts_are_called(holds):
    """A Cast and its output are named after the value and its type, and each name is unique."""
    holds()


def test_a_repeated_node_name_is_told_and_numbered():
    """onnxruntime refuses two nodes of one name, so that a warning names it; nodes may have no name."""
    result = rewrite(
        model("""g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
            [same] a = MatMul (x, w)
            [same] b = Exp (a)
            c = Neg (b)
            y = Neg (c)
        }""")
    )
    (warning,) = complaints(result)
    assert "('same')" in warning
    assert "'same_2'" in warning
    names = [(node.op_type, node.name) for node in result.model.graph.node]
    assert names == [
        ("Cast", "x__float16"),
        ("MatMul", "same"),
        ("Cast", "a__float32"),
        ("Exp", "same_2"),
        ("Neg", ""),
        ("Neg", ""),
    ]


def test_names_of_stored_tensors_are_taken_too():
    """If an initializer has the name for a Cast's output, another is chosen."""
    text = """g (float[4,4] x) => (float[4,4] y) <float[4,4] x__float16> {
        y = MatMul (x, x__float16)
    }"""
    assert nodes(rewritten(model(text)).model)[0] == "x__float16_2 = Cast(x)"


@pytest.mark.parametrize("name", ["a b", "ümlaut/层:0", "x.1::y", 'quote"d', "x__float16", " "])
def test_odd_names_are_kept(name):
    """For any name of a value, its Cast has the same name with the type appended."""
    proto = model("g (float[4,4] x) => (float[4,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    for old in ("x", "y"):
        _rename(proto, old, f"{name}{old}")
    result = rewritten(proto)
    assert nodes(result.model) == [
        f"{name}x__float16 = Cast({name}x)",
        f"{name}y__float16 = MatMul({name}x__float16, w)",
        f"{name}y = Cast({name}y__float16)",
    ]
    agree(proto, result.model)


def _rename(proto, old, new):
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for info in (*proto.graph.input, *proto.graph.output):
        info.name = new if info.name == old else info.name
