"""Emulation of a half model in float32: the same numbers as true half, on any CPU."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import amp_rewrite
from amp_rewrite import demo
from amp_rewrite.errors import ModelError

pytest.importorskip("onnxruntime")
from amp_rewrite.running import sessions

HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def model(body, opset=17, ir=9):
    """A model from ONNX text, by its graph."""
    return parser.parse_model(
        f'<ir_version: {ir}, opset_import: ["": {opset}, "com.microsoft": 1, "own": 1]> {body}'
    )


def run(proto, feeds):
    """The outputs of a model on the CPU, by name."""
    return sessions.run_session(sessions.open_session(proto), feeds)


def emulated(body, feeds, **versions):
    """The outputs of a half model's emulation on the CPU, in order."""
    return list(run(amp_rewrite.emulate(model(body, **versions)), feeds).values())


def half(*numbers):
    """A float16 array."""
    return np.array(numbers, np.float16)


SQUARE = "g (float16[1] x) => (float16[1] y, float16[1] r) { y = Mul (x, x) r = Sqrt (y) }"
SUM = "g (float16[1,3] x, float16[3,1] w) => (float16[1,1] y) { y = MatMul (x, w) }"
ROUND = "g (float[1] x) => (float[1] y) {{ h = Cast <to = {0}> (x) a = Add (h, h) y = Cast <to = 1> (a) }}"
CALL = """g (float16[1] x) => (float16[1] y) { y = own.Square (x) }
    <opset_import: ["": 17], domain: "own"> Square (a) => (b) { m = Mul (a, a) b = Sqrt (m) }"""
COUNT = """g (int64[e,1] i, float16[e] u) => (float16[2] y) <float16[2] zero = {0, 0}> {
    y = ScatterND <reduction = "add"> (zero, i, u) }"""
TERMS = {"x": half([60000, 60000, -60000]), "w": half([1], [1], [1])}
CLOSE = {"x": np.float32([1 + 2**-8])}


def ones(count):
    """As many ones for the first place."""
    return {"i": np.zeros((count, 1), np.int64), "u": np.ones(count, np.float16)}


@pytest.mark.parametrize(
    ("body", "feeds", "wanted"),
    [
        *(
            (SQUARE, {"x": half(x)}, [y])
            for x, y in ((300, np.inf), (1e-5, 0), (255, 65024), (-0.0, 0), (2, 4))
        ),
        (SUM, TERMS, [60000]),  # whose partial sum exceeds the range
        (ROUND.format(16), CLOSE, [2]),
        (ROUND.format(10), CLOSE, [2 * (1 + 2**-8)]),
        (CALL, {"x": half(300)}, [np.inf]),
        *((COUNT, ones(count), [total, 0]) for count, total in ((0, 0), (2000, 2000), (5000, 2048))),
    ],
)
def test_every_value_is_rounded_and_no_sum_within_a_node(body, feeds, wanted):
    """Squares overflow and underflow, also directly before a root and in functions; a product adds in
    float32; a scatter adds one by one, as on a GPU, where 2048 + 1 is 2048.
    """
    first, *others = emulated(body, feeds, opset=18)
    assert first.ravel().tolist() == wanted
    for root in others:
        assert (first.dtype, root.item()) == (np.float16, np.sqrt(first).item())


def test_the_plain_cpu_provider_does_not_see_it():
    """The reason for the emulation: onnxruntime itself computes sqrt(300 * 300) = 300."""
    body = "g (float16[1] x) => (float16[1] r) { y = Mul (x, x) r = Sqrt (y) }"
    plain = run(model(body), {"x": half(300)})["r"]
    assert plain.item() == 300
    assert emulated(body, {"x": half(300)})[0].item() == np.inf


CASES = {
    "constants": """g (float16[2] x) => (float16[2] y) {
        c = Constant <value = float16[2] {15360, 14336}> () y = Mul (x, c) }""",
    "a fill": """g (float16[2] x) => (float16[2] y) {
        s = Shape (x) c = ConstantOfShape <value = float16[1] {14336}> (s) y = Add (x, c) }""",
    "a Cast to half": """g (float16[2] x) => (float16[2] y) {
        f = Cast <to = 1> (x) e = Exp (f) h = Cast <to = 10> (e) y = Mul (h, h) }""",
    "an attribute that names the type": """g (float16[2] x, int64[2,2] k) => (float16[2,2] y) {
        e = EyeLike <dtype = 10> (k) y = Mul (e, x) }""",
    "If": """g (float16[2] x, bool c) => (float16[2] y) {
        z = If (c) <then_branch = t () => (float16[2] a) { a = Mul (x, x) },
                    else_branch = e () => (float16[2] b) { b = Exp (x) }>
        y = Sqrt (z) }""",
    "Loop": """g (float16[2] x) => (float16[2] y, float16[n,2] z) {
        m = Constant <value = int64 {3}> () c = Constant <value = bool {1}> ()
        y, z = Loop (m, c, x) <body =
            b (int64 i, bool k, float16[2] s) => (bool l, float16[2] t, float16[2] u) {
                l = Identity (k) t = Mul (s, x) u = Exp (t) }> }""",
    "Scan": """g (float16[2] x, float16[3,2] v) => (float16[2] y, float16[3,2] z) {
        y, z = Scan <num_scan_inputs = 1, body =
            b (float16[2] s, float16[2] e) => (float16[2] t, float16[2] u) {
                t = Add (s, e) u = Mul (t, t) }> (x, v) }""",
    "a sequence": """g (float16[2] x) => (float16[2] y) {
        a = Mul (x, x) q = SequenceConstruct (a, x) i = Constant <value = int64 {0}> ()
        b = SequenceAt (q, i) y = Mul (b, b) }""",
    "an optional": """g (float16[2] x) => (float16[2] y) {
        a = Mul (x, x) o = Optional (a) b = OptionalGetElement (o) y = Mul (b, b) }""",
    "quantisation with half scales": """g (float16[2] x) => (float16[2] y)
        <float16 s = {8192}, int8 z = {1}> {
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = Mul (d, d) }""",
    "unused and empty ports": """g (float16[2] x) => (float16[2] y) {
        c = Clip (x) d, e = Dropout (c) y = Mul (d, d) }""",
    "an input that is an output": "g (float16[2] x) => (float16[2] x, float16[2] y) { y = Mul (x, x) }",
    "a value read and given away": """g (float16[2] x) => (float16[2] a, float16[2] y) {
        a = Mul (x, x) y = Mul (a, a) }""",
}
OPSETS = {"quantisation with half scales": 19}
FEEDS = {
    "x": half(1.5, -0.3),
    "k": np.zeros((2, 2), np.int64),
    "c": np.array(True),
    "v": half([1, 2], [3, 4], [0.1, 200]),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "an optional"])
def test_it_agrees_with_the_reference(name):
    """On float16 graphs the emulation agrees with onnx's reference implementation, up to rounding."""
    made = model(CASES[name], opset=OPSETS.get(name, 17))
    onnx.checker.check_model(made, full_check=True)
    feeds = {entry.name: FEEDS[entry.name] for entry in made.graph.input}
    result = amp_rewrite.emulate(made)
    onnx.checker.check_model(result, full_check=True)
    expected = ReferenceEvaluator(made).run(None, feeds)
    for wanted, got in zip(expected, run(result, feeds).values(), strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, wanted, rtol=2**-10, atol=1e-7)


def test_optionals_are_emulated():
    """Values in an optional are rounded; the reference implementation treats an optional as a list."""
    y = emulated(CASES["an optional"], {"x": half(1.5, -0.3)})[0]
    square = half(1.5, -0.3) * half(1.5, -0.3)
    np.testing.assert_array_equal(y, square * square)


@pytest.mark.parametrize("name", CASES)
def test_no_node_computes_in_half(name):
    """Except Casts, no node of an emulation uses a half value: the CPU provider has kernels for all."""
    result = amp_rewrite.emulate(model(CASES[name], opset=OPSETS.get(name, 17)))
    inferred = onnx.shape_inference.infer_shapes(result).graph
    half_values = {v.name for v in (*inferred.value_info, *inferred.input) if _element(v) in HALVES}
    stored = [t for t in inferred.initializer if t.data_type in HALVES]
    readers = {n.op_type for n in inferred.node if half_values.intersection(n.input)}
    assert not stored
    assert readers <= {"Cast"}


def _element(value):
    return value.type.tensor_type.elem_type


@pytest.mark.parametrize("name", CASES)
def test_rounding_late_gives_the_same_numbers(name):
    """Rounding before or behind nodes that commute with it gives the same bits, infinities included."""
    made = model(CASES[name], opset=OPSETS.get(name, 17))
    feeds = {entry.name: FEEDS[entry.name] for entry in made.graph.input} | {"x": half(300, -0.3)}
    at_once, late = (run(amp_rewrite.emulate(made, late=late), feeds) for late in (False, True))
    for name_, value in at_once.items():
        np.testing.assert_array_equal(late[name_], value)


def test_rounding_late_allows_fusing_a_conv_with_its_relu():
    """There is no Cast between a Conv and its Relu, but one behind the Relu."""
    body = """g (float16[1,1,4,4] x) => (float16[1,1,2,2] y) <float16[1,1,3,3] w> {
        c = Conv (x, w) r = Relu (c) s = Sqrt (r) y = Identity (s) }"""
    weights = np.ones((1, 1, 3, 3), np.float16)
    made = model(body)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    operators = [node.op_type for node in amp_rewrite.emulate(made, late=True).graph.node]
    assert operators[operators.index("Conv") + 1] == "Relu"
    assert operators[operators.index("Relu") + 1 :][:2] == ["Cast", "Cast"]


def test_contrib_operators_are_emulated():
    """A fused half operator of onnxruntime's runs in float32, and its output is rounded."""
    body = """g (float16[1,2,4] x, float16[1,2,4] s, float16[4] w) => (float16[1,2,4] y) {
        y = com.microsoft.SkipLayerNormalization (x, s, w) }"""
    x, s = half([[1, 2, 3, 4], [5, 6, 7, 9]]), half([[1, 1, 1, 1], [0, 2, 0, 2]])
    total = (x + s).astype(np.float64)
    wanted = (total - total.mean(-1, keepdims=True)) / total.std(-1, keepdims=True)
    got = emulated(body, {"x": x, "s": s, "w": half(1, 1, 1, 1)})[0]
    np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-3)


def test_models_from_other_tools_are_emulated():
    """A model from onnxruntime's converter is emulated like ours."""
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    body = "g (float[2] x) => (float[2] y) { a = Mul (x, x) b = Mul (a, x) y = Sqrt (b) }"
    theirs = float16.convert_float_to_float16(model(body), keep_io_types=True)
    got = run(amp_rewrite.emulate(theirs), {"x": np.float32([300, 4])})["y"]
    assert got.tolist() == [np.inf, 8]


def test_the_emulated_model_is_not_modified():
    """Emulation does not modify its argument."""
    rewritten = amp_rewrite.rewrite(demo.network()).model
    before = rewritten.SerializeToString(deterministic=True)
    amp_rewrite.emulate(rewritten)
    assert rewritten.SerializeToString(deterministic=True) == before


def test_a_float32_model_is_its_own_emulation():
    """Without half values, nothing is added."""
    network = demo.network()
    assert [n.op_type for n in amp_rewrite.emulate(network).graph.node] == [
        n.op_type for n in network.graph.node
    ]


def test_weights_keep_their_values():
    """Half weights become float32 weights with the same values."""
    made = model("g (float16[2] x) => (float16[2] y) <float16[2] w = {15360, 64512}> { y = Mul (x, w) }")
    weights = amp_rewrite.emulate(made).graph.initializer
    assert [numpy_helper.to_array(w).tolist() for w in weights] == [[1.0, -np.inf]]
    assert weights[0].data_type == onnx.TensorProto.FLOAT


# ---- what moves values, and what does more


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("reduction", "result"), [("add", np.inf), ("mul", np.inf), ("max", 30000)])
@pytest.mark.parametrize("scatter", ["ScatterND", "ScatterElements <axis = 0,"])
def test_a_scatter_that_adds_is_rounded(scatter, reduction, result, late):
    """60000 + 60000 is infinite, also directly before halving; the maximum of the two is finite."""
    begun = scatter if "<" in scatter else f"{scatter} <"
    index = "[1,1] i = {0}" if scatter == "ScatterND" else "[1] i = {0}"
    body = f"""g (float16[1] x, float16[1] u) => (float16[1] y) <int64{index}, float16 h = {{14336}}> {{
        r = Relu (x) s = {begun} reduction = "{reduction}"> (r, i, u)
        n = Neg (s) m = Mul (n, h) y = Neg (m) }}"""
    made = model(body, opset=18)
    onnx.checker.check_model(made, full_check=True)
    feeds = {"x": half(60000), "u": half(60000)}
    assert run(amp_rewrite.emulate(made, late=late), feeds)["y"].item() == result


ADDING = {
    "ScatterND": ("int64[e,1] i", "float16[e,4] u", ""),
    "ScatterElements": ("int64[e,2] i", "float16[e,2] u", "axis = 0,"),
    "ScatterElements along the last axis": ("int64[3,e] i", "float16[3,e] u", "axis = -1,"),
}


@pytest.mark.parametrize("reduction", ["add", "mul"])
@pytest.mark.parametrize("which", ADDING)
def test_a_scatter_rounds_after_each_element(which, reduction):
    """The numbers are those of a loop in half over the updates, for any index, also from the end."""
    indices, updates, axis = ADDING[which]
    operator = which.partition(" ")[0]
    made = model(
        f"""g (float16[3,4] x, {indices}, {updates}) => (float16[3,4] y) {{
        y = {operator} <{axis} reduction = "{reduction}"> (x, i, u) }}""",
        opset=18,
    )
    random = np.random.default_rng(0)
    shape = {"int64[e,1] i": (9, 1), "int64[e,2] i": (9, 2)}.get(indices, (3, 9))
    i = random.integers(-3, 3, shape)
    u = random.standard_normal((9, 4) if operator == "ScatterND" else shape).astype(np.float16)
    x = (30 * random.standard_normal((3, 4))).astype(np.float16)
    expected, apply = x.copy(), {"add": np.add, "mul": np.multiply}[reduction]
    for at in np.ndindex(i.shape if operator == "ScatterElements" else (9,)):
        spot = {0: (i[at], *at[1:]), 1: (at[0], i[at])}[int("last" in which)] if len(at) > 1 else i[at[0], 0]
        expected[spot] = apply(expected[spot], u[at])
    np.testing.assert_array_equal(run(amp_rewrite.emulate(made), {"x": x, "i": i, "u": u})["y"], expected)


def test_a_scatter_without_reduction_needs_no_casts():
    """Without a reduction a scatter of rounded values is rounded."""
    body = """g (float16[2] x) => (float16[2] y) <int64[1,1] i = {0}, float16[1] u = {15360}> {
        s = ScatterND (x, i, u) y = Mul (s, s) }"""
    operators = [node.op_type for node in amp_rewrite.emulate(model(body)).graph.node]
    assert operators == ["Cast", "ScatterND", "Mul", "Cast"]


# ---- the borders of the model


def borders(made):
    """The types of all inputs and outputs of a model."""
    return {entry.name: entry.type for entry in (*made.graph.input, *made.graph.output)}


BORDERS = {
    "a sequence that enters": """g (seq(float16[2]) q) => (float16[2] y) {
        i = Constant <value = int64 {0}> () a = SequenceAt (q, i) y = Mul (a, a) }""",
    "a sequence that leaves": """g (float16[2] x) => (seq(float16[2]) z) {
        a = Mul (x, x) z = SequenceConstruct (a, x) }""",
    "a sequence that leaves and is read": """g (float16[2] x) => (seq(float16[2]) z, float16[2] y) {
        a = Mul (x, x) z = SequenceConstruct (a, x)
        i = Constant <value = int64 {0}> () b = SequenceAt (z, i) y = Mul (b, b) }""",
    "a sequence that goes through": """g (seq(float16[2]) q, float16[2] x) => (seq(float16[2]) z) {
        i = Constant <value = int64 {0}> () a = SequenceAt (q, i) m = Mul (a, x)
        z = SequenceInsert (q, m) }""",
    "a weight that is an output": """g (float16[2] x) => (float16[2] w, float16[2] y)
        <float16[2] w = {15360, 14336}> { y = Mul (x, w) }""",
    "a weight that can be overridden": """g (float16[2] x, float16[2] w) => (float16[2] y)
        <float16[2] w = {15360, 14336}> { y = Mul (x, w) }""",
    "a weight that a body reads too": """g (float16[2] x, bool c) => (float16[2] w, float16[2] y)
        <float16[2] w = {15360, 14336}> {
        y = If (c) <then_branch = t () => (float16[2] a) { a = Mul (x, w) },
                    else_branch = e () => (float16[2] b) { b = Exp (w) }> }""",
}
BORDER_FEEDS = FEEDS | {"q": [half(1.5, -0.3), half(2, 300)], "w": half(0.1, 3)}


@pytest.mark.parametrize("name", BORDERS)
@pytest.mark.parametrize("opset", [13, 17, 22])
def test_inputs_and_outputs_keep_their_types_and_values(name, opset):
    """Sequences and weights that are inputs or outputs stay half, and are computed with in float32."""
    made = model(BORDERS[name], opset=opset)
    result = checked_emulation(made)
    feeds = {entry.name: BORDER_FEEDS[entry.name] for entry in made.graph.input}
    expected = ReferenceEvaluator(made).run(None, feeds)
    for wanted, got in zip(expected, run(result, feeds).values(), strict=True):
        np.testing.assert_allclose(np.stack(got), np.stack(wanted), rtol=2**-10, atol=1e-7)
        assert np.asarray(got[0]).dtype == np.float16


def checked_emulation(made):
    """The emulation of a model; asserts that it is valid, and that inputs and outputs keep their types."""
    onnx.checker.check_model(made, full_check=True)
    result = amp_rewrite.emulate(made)
    onnx.checker.check_model(result, full_check=True)
    assert borders(result) == borders(made)
    return result


MAYBE = """g (optional(float16[2]) o) => (optional(float16[2]) z, bool h) {
    h = OptionalHasElement (o) z = If (h) <
        then_branch = t () => (optional(float16[2]) p) {
            a = OptionalGetElement (o) b = Mul (a, a) p = Optional (b) },
        else_branch = e () => (optional(float16[2]) q) { q = Identity (o) }> }"""
"""Squares the element; an empty optional stays empty."""


@pytest.mark.parametrize("opset", [16, 18, 22])
@pytest.mark.parametrize(("given", "wanted"), [(half(300, 2), half(np.inf, 4)), (None, None)])
def test_an_optional_input_or_output_stays_half(opset, given, wanted):
    """The element of an optional is rounded, and an empty one stays empty."""
    got = run(checked_emulation(model(MAYBE, opset=opset)), {"o": given})
    assert got["h"] == (given is not None)
    np.testing.assert_array_equal(got["z"], wanted)
    assert given is None or got["z"].dtype == np.float16


def test_an_optional_sequence_input_stays_half():
    """A sequence in an optional is cast element by element."""
    body = """g (optional(seq(float16[2])) o) => (float16[2] y) {
        q = OptionalGetElement (o) i = Constant <value = int64 {1}> ()
        a = SequenceAt (q, i) y = Mul (a, a) }"""
    got = run(checked_emulation(model(body, opset=18)), {"o": [half(1, 1), half(300, 2)]})
    np.testing.assert_array_equal(got["y"], half(np.inf, 4))


def test_a_weight_that_can_be_overridden_has_its_default():
    """Without a given value, the default is used."""
    made = model(BORDERS["a weight that can be overridden"])
    got = run(amp_rewrite.emulate(made), {"x": half(2, 2)})["y"]
    np.testing.assert_array_equal(got, half(2, 1))


OUT_OF_REACH = {
    "a sequence below opset 13": (BORDERS["a sequence that enters"], 12),
    "an optional below opset 16": (
        "g (optional(float16[2]) o) => (float16[2] y) { a = OptionalGetElement (o) y = Mul (a, a) }",
        15,
    ),
}


@pytest.mark.parametrize("name", OUT_OF_REACH)
def test_an_input_or_output_that_cannot_be_cast_is_refused(name):
    """Instead of a model that onnxruntime rejects, there is an error that names the value."""
    body, opset = OUT_OF_REACH[name]
    with pytest.raises(ModelError, match=r"no node can cast '[qo]'"):
        amp_rewrite.emulate(model(body, opset=opset))
