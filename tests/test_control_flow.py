"""If, Loop, Scan and SequenceMap are coloured through: one value, one type, inside and outside."""

from functools import partial

import onnx
import onnx_ir as ir
import pytest

from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.onnx_types import control_flow
from amp_rewrite.policy.options import Options, Pins
from tests.text import agree, becomes, in_half, model, nodes, rewritten, stays, unchecked

LOOP = """g (float[4,4] x, int64 n, bool c) => (float[4,4] y, float[k,4,4] ys) <float[4,4] w> {
    y, ys = Loop (n, c, x) <body = b (int64 i, bool ci, float[4,4] s)
        => (bool co, float[4,4] t, float[4,4] u) {
        co = Identity (ci)
        [next] t = MatMul (s, w)
        u = Relu (t)
    }>
}"""


CONTROL_FLOW = {
    # A carried value is half before, in and after the body; a scan output has its type in the body.
    "a loop carries half": partial(
        becomes,
        LOOP,
        """g (float[4,4] x, int64 n, bool c) => (float[4,4] y, float[k,4,4] ys) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16, ys__float16 = Loop (n, c, x__float16) <body = b (int64 i, bool ci, float16[4,4] s)
                => (bool co, float16[4,4] t, float16[4,4] u) {
                co = Identity (ci)
                [next] t = MatMul (s, w)
                u = Relu (t)
            }>
            [ys__float32] ys = Cast <to = 1> (ys__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=3e-2,
    ),
    # A Loop without a gain in its body is not changed, and neither are its inputs and outputs.
    "a loop without half inside stays": partial(stays, LOOP.replace("MatMul (s, w)", "Sub (s, w)")),
    # If one branch result is half and the other float32, the second branch ends with a Cast.
    "branches agree on a type": partial(
        becomes,
        """g (float[4,4] x, bool c) => (float[4,4] y) <float[4,4] w> {
            m = MatMul (x, w)
            z = If (c) <
                then_branch = t () => (float[4,4] p) { p = MatMul (m, w) },
                else_branch = f () => (float[4,4] q) { q = Exp (x) }
            >
            y = MatMul (z, w)
        }""",
        """g (float[4,4] x, bool c) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            z = If (c) <
                then_branch = t () => (float16[4,4] p) { p = MatMul (m, w) },
                else_branch = f () => (float16[4,4] q__float16) {
                    q = Exp (x)
                    [q__float16] q__float16 = Cast <to = 10> (q)
                }
            >
            y__float16 = MatMul (z, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=3e-2,
    ),
    # The result of a branch nested in a branch is half at every level.
    "control flow within control flow": partial(
        becomes,
        """g (float[4,4] x, bool c) => (float[4,4] y) <float[4,4] w> {
            m = MatMul (x, w)
            y = If (c) <
                then_branch = t () => (float[4,4] p) {
                    p = If (c) <
                        then_branch = tt () => (float[4,4] a) { a = MatMul (m, w) },
                        else_branch = tf () => (float[4,4] b) { b = Relu (m) }
                    >
                },
                else_branch = f () => (float[4,4] q) { q = Neg (m) }
            >
        }""",
        """g (float[4,4] x, bool c) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            y__float16 = If (c) <
                then_branch = t () => (float16[4,4] p) {
                    p = If (c) <
                        then_branch = tt () => (float16[4,4] a) { a = MatMul (m, w) },
                        else_branch = tf () => (float16[4,4] b) { b = Relu (m) }
                    >
                },
                else_branch = f () => (float16[4,4] q) { q = Neg (m) }
            >
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=3e-2,
    ),
    # The state, scan inputs and scan outputs of a Scan are bound like the values of a Loop.
    "a scan": partial(
        becomes,
        """g (float[4] x, float[3,4] xs) => (float[4] y, float[3,4] ys) <float[4,4] w> {
            y, ys = Scan (x, xs) <num_scan_inputs = 1, body = b (float[4] s, float[4] e)
                => (float[4] t, float[4] u) {
                q = MatMul (e, w)
                t = Mul (s, q)
                u = MatMul (t, w)
            }>
        }""",
        """g (float[4] x, float[3,4] xs) => (float[4] y, float[3,4] ys) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [xs__float16] xs__float16 = Cast <to = 10> (xs)
            y__float16, ys__float16 = Scan (x__float16, xs__float16) <num_scan_inputs = 1, body = b
                (float16[4] s, float16[4] e) => (float16[4] t, float16[4] u) {
                q = MatMul (e, w)
                t = Mul (s, q)
                u = MatMul (t, w)
            }>
            [ys__float32] ys = Cast <to = 1> (ys__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=3e-2,
    ),
    # Scan 8 has sequence lengths as its first input, and a batch dimension.
    "a scan of opset 8": partial(
        becomes,
        """<ir_version: 8, opset_import: ["" : 8]>
        g (float[1,4] x, float[1,3,4] xs) => (float[1,4] y, float[1,3,4] ys) <float[4,4] w> {
            y, ys = Scan ( , x, xs) <num_scan_inputs = 1, body = b (float[4] s, float[4] e)
                => (float[4] t, float[4] u) {
                q = MatMul (e, w)
                t = Mul (s, q)
                u = MatMul (t, w)
            }>
        }""",
        """g (float[1,4] x, float[1,3,4] xs) => (float[1,4] y, float[1,3,4] ys) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            [xs__float16] xs__float16 = Cast <to = 10> (xs)
            y__float16, ys__float16 = Scan ("", x__float16, xs__float16) <num_scan_inputs = 1, body = b
                (float16[4] s, float16[4] e) => (float16[4] t, float16[4] u) {
                q = MatMul (e, w)
                t = Mul (s, q)
                u = MatMul (t, w)
            }>
            [ys__float32] ys = Cast <to = 1> (ys__float16)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=3e-2,
    ),
    # The body of an unknown operator is float32, as the operator may read any of its values; its inputs and
    # outputs keep their names, by which it may know them.
    "a foreign body keeps its types": partial(
        becomes,
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4,4] x) => (float[4,4] y) <float[4,4] w> {
            h = MatMul (x, w)
            y = my.Repeat (x) <body = b (float[4,4] s) => (float[4,4] t) { t = MatMul (s, h) }>
        }""",
        """g (float[4,4] x) => (float[4,4] y) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            h = MatMul (x__float16, w)
            [h__float32] h__float32 = Cast <to = 1> (h)
            y = my.Repeat (x) <body = b (float[4,4] s) => (float[4,4] t) { t = MatMul (s, h__float32) }>
        }""",
        runs=False,
    ),
}


@pytest.mark.parametrize("holds", CONTROL_FLOW.values(), ids=CONTROL_FLOW)
def test_one_value_has_one_type_inside_and_outside(holds):
    """Each value that enters or leaves a body has the same type on both sides."""
    holds()


def test_a_pinned_body():
    """The Casts of a pinned node are inside the body."""
    found = nodes(rewritten(model(LOOP), Options(pins=Pins(keep_full=("next",)))).model)
    assert "t = MatMul(s, w)" in found


def test_values_of_a_loop_change_one_by_one():
    """Each carried value has its own colour: only the one used by a product is half."""
    text = """g (float[4,4] x, float[4,4] z, int64 n, bool c) => (float[4,4] y, float[4,4] v) <float[4,4] w> {
        y, v = Loop (n, c, x, z) <body = b (int64 i, bool ci, float[4,4] s, float[4,4] r)
            => (bool co, float[4,4] t, float[4,4] u) {
            co = Identity (ci)
            t = MatMul (s, w)
            u = Exp (r)
        }>
    }"""
    becomes(
        text,
        """g (float[4,4] x, float[4,4] z, int64 n, bool c) => (float[4,4] y, float[4,4] v)
        <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            y__float16, v = Loop (n, c, x__float16, z) <body = b
                (int64 i, bool ci, float16[4,4] s, float[4,4] r)
                => (bool co, float16[4,4] t, float[4,4] u) {
                co = Identity (ci)
                t = MatMul (s, w)
                u = Exp (r)
            }>
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=3e-2,
    )


# ---- sequences


SEQUENCES = {
    # Producers and consumers of a sequence change together, since a sequence cannot be cast.
    "a sequence moves as one": partial(
        becomes,
        """g (float[4,4] x, int64 n) => (float[4,4] y, float[12,4] z) <float[4,4] w> {
            m = MatMul (x, w)
            s = SequenceConstruct (m, m)
            t = SequenceInsert (s, x)
            a = SequenceAt (t, n)
            z = ConcatFromSequence <axis = 0> (t)
            y = MatMul (a, w)
        }""",
        """g (float[4,4] x, int64 n) => (float[4,4] y, float[12,4] z) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            s = SequenceConstruct (m, m)
            t = SequenceInsert (s, x__float16)
            a = SequenceAt (t, n)
            z__float16 = ConcatFromSequence <axis = 0> (t)
            [z__float32] z = Cast <to = 1> (z__float16)
            y__float16 = MatMul (a, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        close=3e-2,
    ),
    # A sequence that is an output of the model keeps its type, and so do its producers.
    "a sequence at the binding stays as one": partial(
        becomes,
        """g (float[4,4] x) => (float[8,4] y, seq(float[4,4]) s) <float[4,4] w> {
            m = MatMul (x, w)
            s = SequenceConstruct (m, m)
            b = ConcatFromSequence <axis = 0> (s)
            y = MatMul (b, w)
        }""",
        """g (float[4,4] x) => (float[8,4] y, seq(float[4,4]) s) <float16[4,4] w> {
            [x__float16] x__float16 = Cast <to = 10> (x)
            m = MatMul (x__float16, w)
            [m__float32] m__float32 = Cast <to = 1> (m)
            s = SequenceConstruct (m__float32, m__float32)
            b = ConcatFromSequence <axis = 0> (s)
            [b__float16] b__float16 = Cast <to = 10> (b)
            y__float16 = MatMul (b__float16, w)
            [y__float32] y = Cast <to = 1> (y__float16)
        }""",
        runs=False,  # sequences are not compared
    ),
}


@pytest.mark.parametrize("holds", SEQUENCES.values(), ids=SEQUENCES)
def test_a_sequence_has_one_type(holds):
    """Producers and consumers of a sequence change together, or not at all."""
    holds()


def test_an_empty_sequence_takes_the_type_of_what_is_put_in():
    """SequenceEmpty gets the new type; a loop that fills it carries a half sequence."""
    text = """g (float[4,4] x, int64 n, bool c) => (float[k,4] y) <float[4,4] w> {
        e = SequenceEmpty ()
        s = Loop (n, c, e) <body = b (int64 i, bool ci, seq(float[4,4]) r)
            => (bool co, seq(float[4,4]) t) {
            co = Identity (ci)
            m = MatMul (x, w)
            t = SequenceInsert (r, m)
        }>
        f = ConcatFromSequence <axis = 0> (s)
        y = MatMul (f, w)
    }"""
    assert in_half(text) == {"e", "s", "m", "t", "f", "y"}
    proto = model(text)
    result = rewritten(proto)
    empty = next(node for node in result.model.graph.node if node.op_type == "SequenceEmpty")
    assert [(a.name, a.i) for a in empty.attribute] == [("dtype", 10)]
    agree(proto, result.model)


def test_a_sequence_in_bfloat16_stays():
    """ONNX has no bfloat16 sequences: they stay float32."""
    text = """g (float[4,4] x) => (float[8,4] y) <float[4,4] w> {
        m = MatMul (x, w)
        s = SequenceConstruct (m, m)
        b = ConcatFromSequence <axis = 0> (s)
        y = MatMul (b, w)
    }"""
    assert in_half(text, Options(half=BFLOAT16)) == {"m", "y"}


# ---- what a binding is


def bindings(text):
    """The bindings of the first control-flow node of a graph, as their ports."""
    graph = _graph(text)
    node = next(node for node in graph if node.op_type in ("If", "Loop", "Scan", "SequenceMap"))
    found = control_flow.bindings(node)
    assert found is not None
    return [
        (str(b.var), b.inputs, b.outputs, [i for _, i in b.enters], [i for _, i in b.leaves]) for b in found
    ]


def _graph(text):
    return ir.from_proto(model(text)).graph


def test_the_borders_of_a_loop():
    """Trip count and condition are not bound; a scan output has no input."""
    assert bindings(LOOP) == [("V[0]", (2,), (0,), [2], [1]), ("V[1]", (), (1,), [], [2])]


def test_the_borders_of_a_branch():
    """A branch result is the same output of both branches."""
    text = """g (bool c, float[1] x) => (float[1] y) {
        y = If (c) < then_branch = t () => (float[1] p) { p = Neg (x) },
                     else_branch = f () => (float[1] q) { q = Abs (x) } >
    }"""
    assert bindings(text) == [("V[0]", (), (0,), [], [0, 0])]


@pytest.mark.parametrize("scanned", [-(2**63), -1, 3, 2**31, 2**63 - 1])
def test_a_scan_that_does_not_fit_its_body_has_no_bindings(scanned):
    """A Scan with an impossible number of inputs is rejected without delay."""
    proto = unchecked(
        f"""g (float[4] s, float[3,4] x) => (float[4] y) {{
            y = Scan (s, x) <num_scan_inputs = {scanned}, body = b (float[4] t, float[4] e)
                => (float[4] u) {{ u = Add (t, e) }}>
        }}"""
    )
    assert control_flow.bindings(ir.from_proto(proto).graph[0]) is None


def test_other_nodes_have_no_bindings():
    """A node of another domain, or without control flow, has none, even if it has a body."""
    graph = _graph(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4] x) => (float[4] y) {
            a = Relu (x)
            y = my.Loop (a) <body = b (float[4] s) => (float[4] t) { t = Neg (s) }>
        }"""
    )
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
