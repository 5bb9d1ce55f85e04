"""Inputs synthesised from the model alone."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.parser import parse_model

from amp_rewrite.errors import FeedError
from tests.sampling import every
from tests.sessions import Runtime
from tests.text import model

pytest.importorskip("onnxruntime")
from amp_rewrite.running.inputs.feeds import Data, feeds

SHARED = Path(__file__).parents[2] / "shared" / "models"
RUNTIME = Runtime()


def made(text, weights=None, **asked):
    """The first synthetic sample for a model in ONNX text."""
    return next(feeds(model(text, weights), Data(**asked)))


def shapes(text, **dims):
    """The shapes of the synthetic inputs for a model in ONNX text."""
    return {name: array.shape for name, array in made(text, dims=dims).items()}


# --- sizes


def test_a_symbol_has_one_size_everywhere():
    """Fixed dimensions stay; `--dim` sets the size of a symbol at every input that has it."""
    text = "g (float[batch, 3] x, float[batch, k] z) => (float[batch, 3] y, float[batch, k] v) {\
        y = Relu (x) v = Relu (z) }"
    assert shapes(text, batch=4, k=7) == {"x": (4, 3), "z": (4, 7)}


def test_a_dimension_can_be_named_by_input_and_axis():
    """`x:1=5` is for a dimension without a symbol; the others keep their default sizes."""
    text = "g (float[?, ?, 8] x) => (float[?, ?, 8] y) { y = Relu (x) }"
    assert made(text, dims={"x:1": 5})["x"].shape == (1, 5, 8)


@pytest.mark.parametrize(
    ("symbols", "shape"),
    [
        ("batch, 3, height, width", (1, 3, 64, 64)),
        ("?, ?, ?, ?", (1, 3, 64, 64)),
        ("?, ?, ?, 3", (1, 64, 64, 3)),
        ("N, 12, seq_len, 64", (1, 12, 16, 64)),
        ("batch, samples", (1, 16_000)),
        ("s81, 4", (1, 4)),
    ],
)
def test_open_dimensions_get_sensible_sizes(symbols, shape):
    """Batch size 1, images of 64, sequences of 16, one second of audio."""
    assert made(f"g (float[{symbols}] x) => (float[{symbols}] y) {{ y = Relu (x) }}")["x"].shape == shape


GRAPH = """
g (float[{nodes}, 4] x, int64[2, {edges}] edge_index, float[{edges}, 3] weights) => (float[{edges}, 5] y)
<float[4, 5] w, int64 from = {{0}}> {{
    h = MatMul (x, w) source = Gather <axis = 0> (edge_index, from) y = Gather <axis = 0> (h, source) }}
"""


def test_none_is_not_a_name():
    """Exporters write it for unnamed dimensions: two of these need not have the same size."""
    proto = model("g (float[a, 4, b] x) => (float[a, 4, b] y) { y = Relu (x) }")
    for axis in (0, 2):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "None"
    assert next(feeds(proto, Data()))["x"].shape == (1, 4, 16)


def test_formulas_are_evaluated():
    """A formula of other dimensions is evaluated; a malformed one gets the default size."""
    proto = model("g (float[n] x, float[b, f] z, float[c, o] v) => (float[n] y) { y = Relu (x) }")
    for i, formula in ((1, "2*n - 1"), (2, "ceil(n * 2)")):
        proto.graph.input[i].type.tensor_type.shape.dim[1].dim_param = formula
    sample = next(feeds(proto, Data(dims={"n": 5})))
    assert (sample["z"].shape[1], sample["v"].shape[1]) == (9, 16)


@pytest.mark.parametrize(
    ("node", "weight", "shape"),
    [
        ("MatMul", "7, 5", (1, 7)),
        ("Gemm <transB = 1>", "5, 7", (1, 7)),
        ("Conv <group = 2>", "4, 7, 1", (1, 14, 16)),
    ],
)
def test_weights_require_sizes_of_their_data(node, weight, shape):
    """The inner dimension of a product and the channels of a convolution have the weight's size."""
    open_ = ", ".join("?" * len(shape))
    text = f"g (float[{open_}] x) => (float[{open_}] y) <float[{weight}] w> {{ y = {node} (x, w) }}"
    assert made(text)["x"].shape == shape


PATCHES = """
g (float[n, c, height, width] x) => (float[n, l, d] y)
<float[6, 3, 4, 4] w, float[1, 1, 6] token, float[{positions}] positions, int64[1, 50] ids, int64[3] flat> {{
    half = Cast <to = 1> (x)
    patches = Conv <strides = [4, 4]> (half, w)
    rows = Reshape (patches, flat)
    tokens = Transpose <perm = [0, 2, 1]> (rows)
    all = Concat <axis = 1> (token, tokens)
    {table}
    y = Add (all, at)
}}"""


@pytest.mark.parametrize(
    ("positions", "table", "side"),
    [
        ("1, 50, 6", "", 28),
        ("77, 6", "at = Gather (positions, ids)", 28),
        ("1, 48, 6", "", 64),
        ("1, 50, 6", "at = Abs (positions)", 64),
    ],
)
def test_images_have_a_patch_for_each_stored_position(positions, table, side):
    """With 49 positions of patches and one of a class token, stored or looked up, images have 7 times 7
    patches of 4 pixels; positions that form no square, or are computed, require no size.
    """
    text = PATCHES.format(positions=positions, table=table)
    stored = {"flat": np.array([0, 6, -1]), "ids": np.arange(50)[None]}
    text = text if table else text.replace(", at)", ", positions)")
    assert made(text, stored)["x"].shape == (1, 3, side, side)


def test_weights_require_sizes_of_data_that_is_cast():
    """A model restored from half reads its inputs through Casts: they have the sizes that weights require."""
    text = """g (float16[b, c, h, w] x) => (float[b, d, e, f] y) <float[4, 7, 3, 3] k> {
        wide = Cast <to = 1> (x) y = Conv (wide, k) }"""
    assert made(text)["x"].shape == (1, 7, 64, 64)


CACHED = """
g (int64[batch, seq] input_ids, int64[batch, {total}] attention_mask, float[batch, 2, {past}, 4] past_key)
=> (int64[batch, seq] a, int64[batch, m] b, float[batch, 2, p, 4] c) {{
    a = Identity (input_ids) b = Identity (attention_mask) c = Identity (past_key)
}}"""


@pytest.mark.parametrize(
    ("past", "total"),
    [("past", "total"), ("kv", "all"), ("?", "?"), ("past", "past + seq"), ("5", "everything")],
)
def test_a_mask_covers_the_past(past, total):
    """The mask of a model with a cache is as long as the past and new tokens together."""
    proto = model(CACHED.format(total="formula", past=past))
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = total.strip("?")
    sample = next(feeds(proto, Data()))
    tokens, mask, cached = (sample[name] for name in ("input_ids", "attention_mask", "past_key"))
    assert mask.shape[1] == tokens.shape[1] + cached.shape[2] > tokens.shape[1]
    assert mask.all()
    assert not cached.any()


def test_states_have_the_batch_of_the_data():
    """[directions, batch, hidden]: the open dimension of a recurrent layer's state is the batch."""
    text = """g (float[3, batch, 4] x, float[1, ?, 2] h) => (float[3, 1, batch, 2] y)
        <float[1, 6, 4] w, float[1, 6, 2] r, float[1, 12] b> {
        y, last = GRU <hidden_size = 2> (x, w, r, b, , h) }"""
    assert shapes(text, batch=5) == {"x": (3, 5, 4), "h": (1, 5, 2)}


@pytest.mark.parametrize(
    ("given", "made_of_it", "size"),
    [
        ("float[7, ?, ?] d", "", (7, 3, 4)),
        ("float[N, 7, 4] x", "d = Transpose <perm = [1, 0, 2]> (x)", (3, 7, 4)),
        ("int64[batch, 7] x", "e = Gather (table, x) d = Transpose <perm = [1, 0, 2]> (e)", (3, 7)),
        ("float[?, 7, 5] x", "e = MatMul (x, v) d = Transpose <perm = [1, 0, 2]> (e)", (3, 7, 5)),
    ],
)
def test_a_stored_state_has_the_batch(given, made_of_it, size):
    """The batch of a recurrent layer is that of the state that it begins with: of its data, and of others."""
    text = f"""g ({given}) => (float[7, 1, 3, 2] y) <float[1, 6, 4] w, float[1, 6, 2] r, float[1, 12] b,
        float[1, 3, 2] h, float[9, 4] table, float[5, 4] v> {{
        {made_of_it} y = GRU <hidden_size = 2> (d, w, r, b, , h) }}"""
    assert list(shapes(text).values()) == [size]


def test_a_dimension_that_is_not_open_is_refused():
    """An unknown name or a fixed dimension is refused in one line, with the closest name."""
    text = "g (float[batch, 3] x) => (float[batch, 3] y) { y = Relu (x) }"
    with pytest.raises(FeedError, match=r"no open dimension 'bacth'; did you mean batch\?"):
        made(text, dims={"bacth": 2})
    with pytest.raises(FeedError, match="no open dimension 'x:1'"):
        made(text, dims={"x:1": 2})


# --- numbers


def test_the_seed_determines_the_samples():
    """The same seed gives the same sample; another seed or the next sample has other numbers."""
    proto = model("g (float[100] x) => (float[100] y) { y = Relu (x) }")
    first, second = (f["x"] for f in feeds(proto, Data(samples=2)))
    again, other = next(feeds(proto, Data()))["x"], next(feeds(proto, Data(seed=1)))["x"]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_an_additional_input_does_not_change_the_others():
    """Each input has its own random number generator."""
    alone = made("g (float[9] x) => (float[9] y) { y = Relu (x) }")
    beside = made("g (float[9] a, float[9] x) => (float[9] y) { y = Add (a, x) }")
    np.testing.assert_array_equal(alone["x"], beside["x"])
    assert not np.array_equal(beside["a"], beside["x"])


@pytest.mark.parametrize(
    ("dtype", "numpy"),
    [("float", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16"), ("double", "float64")],
)
def test_floats_are_normal_in_their_type(dtype, numpy):
    """Mean 0 and standard deviation 1, in the declared type."""
    array = made(f"g ({dtype}[1000] x) => ({dtype}[1000] y) {{ y = Identity (x) }}")["x"]
    assert array.dtype.name == numpy
    assert abs(array.astype(float).mean()) < 0.2
    assert 0.8 < array.astype(float).std() < 1.2


@pytest.mark.parametrize(
    "body",
    [
        "y = Sqrt (x)",
        "y = Log (x)",
        "y = Reciprocal (x)",
        "y = Div (one, x)",
        "y = Pow (x, root)",
        "a = Add (one, x) y = Log (a)",
        "a = Add (x, root) y = Sqrt (a)",
        "a = Unsqueeze (x, axis) b = Cast <to = 1> (a) c = Squeeze (b, axis) y = Sqrt (c)",
        """y = If (truth) <then_branch = t () => (float[50] p) { p = Sqrt (x) },
                           else_branch = e () => (float[50] q) { q = Identity (one) }>""",
    ],
)
def test_roots_and_denominators_are_positive(body):
    """Operands of roots and logarithms and divisors are positive, also behind movement, in branches, and
    where a stored number is added first.
    """
    text = f"""g (float[50] x) => (float[50] y)
        <float[50] one, float root = {{0.5}}, int64[1] axis = {{0}}, bool truth = {{1}}> {{ {body} }}"""
    array = made(text)["x"]
    assert 0.1 <= array.min() < array.max() <= 1


def dense(body):
    """The synthetic adjacency matrix for what a model does with it."""
    header = '<ir_version: 8, opset_import: ["": 17]> g (float[9, 9] A) => (float y)'
    stored = """<float root = {-0.5}, float inverse = {-1}, int64[1] last = {1},
        float[9, 1] ones = {1, 1, 1, 1, 1, 1, 1, 1, 1}, float[9, 1] signs = {1, 1, 1, -1, 1, 1, 1, 1, 1}>"""
    return next(feeds(parse_model(f"{header} {stored} {{ {body} }}"), Data()))["A"]


@pytest.mark.parametrize(
    "body",
    [
        "d = ReduceSum (A, last) y = Pow (d, root)",
        "d = ReduceSum (A, last) y = Pow (d, inverse)",
        "l = EyeLike (A) s = Add (A, l) d = ReduceSum (s, last) e = Unsqueeze (d, last) y = Pow (e, root)",
        "t = Transpose (A) s = Add (A, t) d = ReduceSum (s, last) e = Sqrt (d) y = Reciprocal (e)",
        "d = MatMul (A, ones) e = Add (d, ones) y = Log (e)",
        'd = Einsum <equation = "ij->i"> (A) y = Pow (d, root)',
        "d = ReduceMean <axes = [1]> (A) y = Sqrt (d)",
        "d = ReduceSum (A, last) y = Reciprocal (d)",
        "d = ReduceSum (A, last) y = Div (A, d)",
    ],
)
def test_sums_below_roots_are_of_positive_numbers(body):
    """The degrees of a dense adjacency matrix, with and without loops, however they are added up."""
    array = dense(body)
    assert 0.1 <= array.min() < array.max() <= 1


@pytest.mark.parametrize(
    "body",
    [
        "s = Mul (A, A) d = ReduceSum (s, last) y = Sqrt (d)",
        "d = ReduceMean <axes = [1]> (A) y = Sub (A, d)",
        "d = MatMul (A, signs) e = Add (d, ones) y = Log (e)",
        "d = ReduceSum (A, last) e = Abs (d) y = Log (e)",
        "s = Add (A, ones) y = Reciprocal (s)",
    ],
)
def test_other_sums_are_of_any_numbers(body):
    """What is squared first, taken away, weighted by other signs, or never reduced before a division."""
    assert dense(body).min() < 0


def test_a_network_of_a_dense_graph_is_finite():
    """Its symmetric normalisation takes roots of degrees."""
    network = model("""g (float[8, 8] A, float[8, 4] x) => (float[8, 4] y)
        <float root = {-0.5}, int64[1] last = {-1}> {
        l = EyeLike (A) s = Add (A, l) d = ReduceSum <keepdims = 0> (s, last) r = Pow (d, root)
        left = Unsqueeze (r, last) m = Mul (left, s) n = Mul (m, r) h = MatMul (n, x) y = Relu (h) }""")
    ran = RUNTIME.run(network.SerializeToString(), dict(next(feeds(network, Data()))))
    assert np.isfinite(ran.values["y"]).all()


@pytest.mark.parametrize(("operator", "low", "high"), [("Acos", -1, 1), ("Acosh", 1, 9), ("Atanh", -1, 1)])
def test_operands_are_in_the_domain_of_their_function(operator, low, high):
    """Inverse trigonometric functions give no NaN."""
    array = made(f"g (float[500] x) => (float[500] y) {{ y = {operator} (x) }}")["x"]
    assert low < array.min() < array.max() < high


def test_an_integer_power_has_any_base():
    """A square is defined for negative numbers: they occur."""
    text = "g (float[50] x) => (float[50] y) <float two = {2.0}> { y = Pow (x, two) }"
    assert made(text)["x"].min() < 0


@pytest.mark.parametrize("size", ["1, 3, 8, 8", "1, 8, 8, 3", "1, 1, 8, 8"])
def test_images_are_between_0_and_1(size):
    """An input of rank 4 with one or three channels, first or last, that a convolution reads is an image."""
    text = "g (float[{0}] x) => (float[a, b, c, d] y) <float[1, 3, 1, 1] w> {{ {1} }}"
    array = made(text.format(size, "c = Neg (x) y = Conv (c, w)"))["x"]
    assert 0 <= array.min() < array.max() <= 1
    assert made(text.format(size, "y = Relu (x)"))["x"].min() < 0


def test_float_masks_mask_nothing():
    """A multiplied mask is 1; one that is added before a softmax is 0."""
    product = "g (float[4] mask, float[4] x) => (float[4] y) { y = Mul (x, mask) }"
    added = "g (float[4] mask, float[4] x) => (float[4] y) { s = Add (x, mask) y = Softmax (s) }"
    assert made(product)["mask"].tolist() == [1, 1, 1, 1]
    assert made(added)["mask"].tolist() == [0, 0, 0, 0]


WAVES = {
    "a filter of one channel": ("float[1, 1, 16000] x", "y = Conv <strides = [64]> (x, w)"),
    "its name": ("float[batch, 1, samples] audio", "y = Neg (audio)"),
    "its size": ("float[1, 8000, 1] x", "y = Neg (x)"),
}


@pytest.mark.parametrize(("declared", "body"), WAVES.values(), ids=WAVES)
def test_audio_is_a_voice(declared, body):
    """Its spectrum has harmonics, and part of it is silent; noise is neither."""
    text = f"g ({declared}) => (float[a, b, c] y) <float[4, 1, 64] w> {{ {body} }}"
    (wave,) = made(text).values()
    frames = wave.reshape(-1)[:7936].reshape(-1, 256)
    loudness = np.sqrt(np.mean(frames**2, axis=1))
    assert 0 < loudness.min() < loudness.max() / 50
    spectrum = np.abs(np.fft.rfft(frames[0]))
    assert np.median(spectrum) < spectrum.max() / 20


@pytest.mark.parametrize("declared", ["float[1, 1, 512] x", "float[1, 80, 400] mel", "float[2, 1, 128] h"])
def test_other_numbers_are_no_voice(declared):
    """Features, spectrograms and states are normally distributed."""
    (array,) = made(f"g ({declared}) => (float[a, b, c] y) {{ y = Neg ({declared.split()[-1]}) }}").values()
    assert 0.8 < np.std(array) < 1.2


@pytest.mark.parametrize("body", ["g = Gather (r, i)", "g = ScatterElements (r, i, f)"])
def test_indices_of_a_table_of_unknown_size_are_zeros(body):
    """The first entry is there whatever its size is."""
    text = f"""g (float[n, 4] x, int64[3, 2] i, float[3, 2] f) => (float y) {{
        m = NonZero (x) t = Transpose (m) r = Cast <to = 1> (t) {body}
        y = ReduceSum <keepdims = 0> (g) }}"""
    assert not made(text)["i"].any()


HIDING = {
    "hides": ("Identity (c)", "Where (m, low, x)", 0),
    "keeps": ("Identity (c)", "Where (m, x, low)", 1),
    "negated": ("Not (c)", "Where (m, low, x)", 1),
    "compared with 0": ("Equal (f, nil)", "Where (m, low, x)", 1),
    "beside another": ("And (c, other)", "Where (m, low, x)", 0),
    "zeroes": ("Identity (c)", "Where (m, x, nil)", 1),
}


@pytest.mark.parametrize("kind", ["float", "int64", "bool"])
@pytest.mark.parametrize(("condition", "masked", "value"), HIDING.values(), ids=HIDING)
def test_masks_leave_something(kind, condition, masked, value):
    """Exporters mean either by 1: PyTorch's padding masks hide, those of Transformers keep."""
    text = f"""g ({kind}[1,4] mask, float[1,4] x) => (float[1,4] y)
        <float low = {{-10000.0}}, float nil = {{0.0}}, bool other = {{1}}> {{
        c = Cast <to = 9> (mask) f = Cast <to = 1> (mask) m = {condition} s = {masked} y = Softmax (s) }}"""
    assert made(text)["mask"].astype(int).tolist() == [[value] * 4]


def test_a_mask_times_a_huge_number_keeps():
    """What is multiplied is what hides: the mask itself, or 1 minus it."""
    product = """g (float[4] mask, float[4] x) => (float[4] y)
        <float low = {{-1.0e9}}, float one = {{1.0}}> {{
        {} p = Mul (m, low) s = Sub (x, p) y = Softmax (s) }}"""
    assert made(product.format("m = Identity (mask)"))["mask"].tolist() == [0, 0, 0, 0]
    assert made(product.format("m = Sub (one, mask)"))["mask"].tolist() == [1, 1, 1, 1]


def test_scales_and_thresholds_are_usable():
    """Resize gets positive scales, and NonMaxSuppression thresholds between 0 and 1."""
    resize = "g (float[1,3,4,4] x, float[4] scales) => (float[1,3,h,w] y) { y = Resize (x, , scales) }"
    assert made(resize)["scales"].tolist() == [1, 1, 2, 2]
    suppress = """g (float[1,6,4] b, float[1,2,6] s, int64[1] most, float[1] i) => (int64[n,3] y) {
        y = NonMaxSuppression (b, s, most, i) }"""
    sample = made(suppress)
    assert 0 < sample["i"].item() < 1
    assert sample["most"].item() == 1


@pytest.mark.parametrize(
    "body",
    [
        "y = Gather (table, ids)",
        "a = Unsqueeze (ids, axis) b = Squeeze (a, axis) c = Cast <to = 6> (b) y = Gather (table, c)",
        "t = Transpose (flipped) y = Gather <axis = 1> (flipped, ids)",
        """y = If (truth) <then_branch = t () => (float[4,500,2] p) { p = Gather (table, ids) },
                           else_branch = e () => (float[4,500,2] q) { q = Gather (table, ids) }>""",
        """i = If (truth) <then_branch = t () => (int64[4,500] p) { p = Identity (ids) },
                           else_branch = e () => (int64[4,500] q) { q = Neg (ids) }>
           y = Gather (table, i)""",
    ],
)
def test_ids_are_within_their_table(body):
    """Ids are less than the number of rows of their table, also behind casts and in branches."""
    text = f"""g (int64[4, 500] ids) => (float[a, b, c] y)
        <float[9, 2] table, float[2, 9] flipped, int64[1] axis = {{0}}, bool truth = {{1}}> {{ {body} }}"""
    ids = made(text)["ids"]
    assert (ids.min(), ids.max(), ids.dtype) == (0, 8, np.int64)


def test_the_smallest_table_counts():
    """Ids that index two tables are within both; a table that is an input has its synthetic size."""
    text = """g (int64[500] ids, float[rows, 2] other) => (float[500, 2] y, float[500, 2] z)
        <float[9, 2] table> { y = Gather (table, ids) z = Gather (other, ids) }"""
    assert made(text, dims={"rows": 5})["ids"].max() == 4


def test_ids_enter_loops():
    """A Loop's body can use ids as a loop-carried value."""
    text = """g (int64[500] ids) => (float[500, 2] y) <int64 trips = {2}, bool go = {1}, float[9, 2] table> {
        last, y = Loop (trips, go, ids, table) <body = b (int64 i, bool on, int64[500] held, float[9, 2] old)
            => (bool more, int64[500] same, float[500, 2] found) {
            more = Identity (on) same = Identity (held) found = Gather (table, held) }> }"""
    proto = parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    table = np.ones((9, 2), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    assert next(feeds(proto, Data()))["ids"].max() == 8


def test_integers_with_a_name():
    """Positions ascend within their table, token types are zeros, masks are ones."""
    text = """g (int64[2, 6] position_ids, int64[2, 6] token_type_ids, int64[2, 6] attention_mask)
        => (float[2, 6, 3] y, int64[2, 6] z) <float[4, 3] table> {
        y = Gather (table, position_ids) z = Add (token_type_ids, attention_mask) }"""
    sample = made(text)
    assert sample["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1]] * 2
    assert not sample["token_type_ids"].any()
    assert sample["attention_mask"].all()


def test_positions_follow_the_past():
    """With eight tokens in the cache, the first position is 8."""
    text = """g (int64[1, 3] position_ids, float[1, 2, 8, 4] past_key)
        => (int64[1, 3] a, float[1, 2, 8, 4] b) { a = Identity (position_ids) b = Identity (past_key) }"""
    assert made(text)["position_ids"].tolist() == [[8, 9, 10]]


@pytest.mark.parametrize(
    "body",
    [
        "f = Cast <to = 1> (seen) y = Sub (one, f)",
        "b = Cast <to = 9> (seen) n = Not (b) y = Cast <to = 1> (n)",
        "b = Cast <to = 9> (seen) y = Where (b, one, one)",
    ],
)
def test_integers_that_are_used_as_a_mask_are_ones(body):
    """An input used as `1 - mask`, negated, or as a condition is a mask, whatever its name."""
    assert made(f"g (int64[2, 40] seen) => (float[2, 40] y) <float[2, 40] one> {{ {body} }}")["seen"].all()


def test_an_input_compared_with_a_constant_is_that_constant():
    """A sampling rate is the one that the model compares it with."""
    text = "g (int64 rate) => (bool y) <int64 known = {16000}> { y = Equal (rate, known) }"
    assert made(text)["rate"].item() == 16000


def test_counts_let_loops_run():
    """A trip count, or a bound of a counter, is small but more than one."""
    text = """g (int64 trips, float[2] x) => (float[2] y) <bool go = {1}> {
        y = Loop (trips, go, x) <body = b (int64 i, bool on, float[2] held) => (bool more, float[2] next) {
            more = Identity (on) next = Relu (held) }> }"""
    assert made(text)["trips"].item() == 3
    assert made("g (int64 n) => (bool y) <int64 i> { y = Less (i, n) }")["n"].item() == 3


def test_lengths_cut_nothing_off():
    """The sequence lengths of a recurrent layer are those of its data."""
    text = """g (float[7, 2, 4] x, int32[2] n) => (float[7, 1, 2, 2] y)
        <float[1, 6, 4] w, float[1, 6, 2] r, float[1, 12] b> { y = GRU <hidden_size = 2> (x, w, r, b, n) }"""
    assert made(text)["n"].tolist() == [7, 7]


@pytest.mark.parametrize(
    ("node", "count", "expected"),
    [
        ("Reshape (x, n)", 2, [-1, 1]),
        ("Slice (x, zero, n, axis)", 1, [6]),
        ("Resize (x, , , n)", 4, [1, 2, 12, 8]),
        ("Unsqueeze (x, n)", 2, [0, 1]),
        ("CumSum (x, n)", 1, [0]),
        ("Expand (x, n)", 4, [1, 1, 1, 1]),
    ],
)
def test_shape_operands_fit_their_data(node, count, expected):
    """Shapes, ends and axes that are inputs are valid for the operator."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 6, 4] x, int64[{count}] n) => (float y)
        <int64[1] zero = {{0}}, int64[1] axis = {{2}}> {{ y = {node} }}"""
    assert next(feeds(parse_model(text), Data()))["n"].tolist() == expected


def test_a_size_is_a_shape():
    """Batch size of the data, channels, and small sides; recognised by its name alone."""
    text = "g (float[2, 3] x, int64[4] size) => (float[2, 3] y, int64[4] z) { y = Relu (x) z = Neg (size) }"
    assert made(text)["size"].tolist() == [2, 3, 4, 4]


def test_splits_cover_the_axis():
    """Parts are equal; the last one has the remainder."""
    text = """g (float[7] x, int64[3] n) => (float[a] p, float[b] q, float[c] r) { p, q, r = Split (x, n) }"""
    assert made(text)["n"].tolist() == [2, 2, 3]


def test_integers_do_not_divide_by_zero():
    """A divisor is 1."""
    assert made("g (int64[2, 30] x) => (int64[2, 30] y) <int64[2, 30] w> { y = Div (w, x) }")["x"].all()


def test_bytes_use_the_full_range():
    """An image of uint8 has values from 0 to 255."""
    array = made("g (uint8[1, 3, 40, 40] x) => (float[1, 3, 40, 40] y) { y = Cast <to = 1> (x) }")["x"]
    assert (array.dtype, array.min(), array.max()) == (np.uint8, 0, 255)


def test_booleans_and_strings():
    """Booleans are true, and strings are greetings."""
    sample = made("g (bool[2] b, string[2] s) => (bool[2] c, string[2] t) { c = Not (b) t = Identity (s) }")
    assert sample["b"].tolist() == [True, True]
    assert sample["s"].tolist() == ["hello world"] * 2


# --- which inputs


CHOICE = """g (float[2] x, bool[1] use_cache_branch, bool[2] mask) => (float[2] y) {
    low = Where (mask, x, x)
    y = If (use_cache_branch) <
        then_branch = t () => (float[2] a) { a = Relu (low) },
        else_branch = e () => (float[2] b) { b = Neg (low) }>
}"""


@pytest.mark.parametrize(("asked", "chosen"), [(1, [True, False]), (3, [True, False, True])])
def test_both_branches_run(asked, chosen):
    """A truth value that chooses a branch takes turns, in two samples at least; others are true."""
    samples = list(feeds(model(CHOICE), Data(samples=asked)))
    assert [sample["use_cache_branch"].item() for sample in samples] == chosen
    assert all(sample["mask"].all() for sample in samples)


def test_weights_are_not_synthesised():
    """IR 3 lists weights as inputs; from IR 4 on they are defaults, which are kept."""
    for version in (3, 8):
        proto = model("g (float[2, 3] x) => (float[2, 4] y) <float[3, 4] w> { y = MatMul (x, w) }")
        proto.ir_version = version
        proto.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 4]))
        assert list(next(feeds(proto, Data()))) == ["x"]


def test_sequences_and_optionals():
    """A sequence is a short list of tensors, and an optional is not empty."""
    text = """g (seq(float[n, 3]) s, optional(float[4]) o) => (float[m, 3] y, bool z) {
        y = ConcatFromSequence <axis = 0> (s) z = OptionalHasElement (o) }"""
    proto = parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    sample = next(feeds(proto, Data(dims={"n": 5})))
    assert [array.shape for array in sample["s"]] == [(5, 3), (5, 3)]
    assert sample["o"].shape == (4,)


def test_what_cannot_be_synthesised_says_how_to_give_it():
    """For an input without a rank or not a tensor, the error has its name and the field that helps."""
    proto = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(FeedError, match=r"input 'x' has no shape .*; give it with `Data.paths`"):
        next(feeds(proto, Data()))
    proto.graph.input[0].type.map_type.key_type = onnx.TensorProto.INT64
    with pytest.raises(FeedError, match=r"input 'x' is not a tensor.*; give it with `Data.paths`"):
        next(feeds(proto, Data()))


# --- real models


def entries():
    """The models of the index that onnxruntime runs; empty if they are not there."""
    index = SHARED / "index.json"
    found = json.loads(index.read_text()) if index.is_file() else []
    return every(4, [entry for entry in found if entry["runs"]], lambda entry: entry["name"])


@pytest.mark.parametrize("entry", entries())
def test_real_models_run_on_synthetic_inputs(entry):
    """Every model that runs at all runs on synthetic inputs."""
    path = SHARED / entry["file"]
    ran = RUNTIME.run(str(path), dict(next(feeds(path, Data()))))
    assert not ran.failure
    masked = "qk_matmul_output"  # is minus infinity where a causal mask hides it
    floats = {n: a for n, a in ran.values.items() if getattr(a, "dtype", np.dtype("i")).kind == "f"}
    assert all(np.isfinite(array).all() for name, array in floats.items() if name != masked)


@pytest.mark.parametrize("size", [2**41, 2**62])
def test_sizes_beyond_any_memory(size):
    """A dimension can be any number: an input that is too large is refused with its size."""
    with pytest.raises(FeedError, match=f"input 'x' would have {size} x 2 elements; give smaller sizes"):
        made(f"g (float[{size},2] x) => (float[{size},2] y) {{ y = Relu (x) }}")


@pytest.mark.parametrize("size", ["1", "n"])
def test_more_dimensions_than_numpy_has(size):
    """An input of rank 65 is refused, however small; the line does not list its dimensions."""
    dims = ", ".join([size] * 65)
    with pytest.raises(FeedError, match="input 'x' has 65 dimensions, and NumPy has at most 64; export"):
        made(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu (x) }}")
