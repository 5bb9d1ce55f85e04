"""A small network of our own, so that the first run needs no download.

It has convolutions with a residual, attention with a mask, two kinds of normalisation, a loop and a
classifier, because each is a different case for mixed precision. Weights are random, and scaled so that
activations stay of order one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

Array = npt.NDArray[np.float32]

SPREAD = np.float32(0.1)  # standard deviation of scales around one and of biases around zero
TOKENS = 64  # the stem's output is an 8 x 8 map
WIDTH = 32
PADDING_TOKENS = 4  # the last tokens, which the attention mask excludes

# IR 8 and opset 17: the first opset with LayerNormalization, and old enough for any runtime in use.
NETWORK = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "amp-rewrite demo">
demo (float[batch,3,32,32] image) => (float[batch,10] probabilities)
<
  int64[3] map_shape     = {0, 32, 64},
  int64[4] heads_shape   = {0, 64, 2, 16},
  int64[3] tokens_shape  = {0, 64, 32},
  int64    loop_trips    = {3},
  bool     loop_starts   = {1},
  float    score_scale   = {0.25},
  float    gelu_one      = {1.0},
  float    gelu_half     = {0.5},
  float    gelu_sqrt_two = {1.4142135},
  float    rms_exponent  = {2.0},
  float    rms_epsilon   = {0.000001}
>
{

  # Stem
  [stem_conv1] conv1 = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(image, conv1_weight)
  [stem_norm1] normed1 = BatchNormalization(
    conv1, norm1_scale, norm1_bias, norm1_mean, norm1_variance)
  [stem_relu1] edges = Relu(normed1)
  [stem_conv2] conv2 = Conv<pads = [1, 1, 1, 1]>(edges, conv2_weight)
  [stem_norm2] normed2 = BatchNormalization(
    conv2, norm2_scale, norm2_bias, norm2_mean, norm2_variance)
  [stem_residual] residual = Add(normed2, edges)
  [stem_relu2] shapes = Relu(residual)
  [stem_conv3] map = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(shapes, conv3_weight, conv3_bias)
  [tokens_flatten] flat = Reshape(map, map_shape)
  [tokens_transpose] tokens = Transpose<perm = [0, 2, 1]>(flat)

  # Attention
  [attention_norm] attention_in = LayerNormalization<axis = -1>(
    tokens, attention_norm_scale, attention_norm_bias)
  [query_matmul] query_flat = MatMul(attention_in, query_weight)
  [query_split] query_split = Reshape(query_flat, heads_shape)
  [query_heads] query = Transpose<perm = [0, 2, 1, 3]>(query_split)
  [key_matmul] key_flat = MatMul(attention_in, key_weight)
  [key_split] key_split = Reshape(key_flat, heads_shape)
  [key_heads] key = Transpose<perm = [0, 2, 3, 1]>(key_split)
  [value_matmul] value_flat = MatMul(attention_in, value_weight)
  [value_split] value_split = Reshape(value_flat, heads_shape)
  [value_heads] value = Transpose<perm = [0, 2, 1, 3]>(value_split)
  [score_matmul] raw_scores = MatMul(query, key)
  [score_scale] scores = Mul(raw_scores, score_scale)
  [score_mask] masked_scores = Add(scores, attention_mask)
  [score_softmax] attention = Softmax<axis = -1>(masked_scores)
  [context_matmul] context_heads = MatMul(attention, value)
  [context_transpose] context_split = Transpose<perm = [0, 2, 1, 3]>(context_heads)
  [context_merge] context = Reshape(context_split, tokens_shape)
  [attention_project] attention_out = MatMul(context, project_weight)
  [attention_residual] attended = Add(tokens, attention_out)

  # MLP
  [mlp_norm] mlp_in = LayerNormalization<axis = -1>(
    attended, mlp_norm_scale, mlp_norm_bias)
  [mlp_up] mlp_up = MatMul(mlp_in, up_weight)
  [mlp_up_bias] hidden = Add(mlp_up, up_bias)
  [gelu_div] gelu_scaled = Div(hidden, gelu_sqrt_two)
  [gelu_erf] gelu_erf = Erf(gelu_scaled)
  [gelu_add] gelu_gate = Add(gelu_erf, gelu_one)
  [gelu_mul] gelu_product = Mul(hidden, gelu_gate)
  [gelu_halve] activated = Mul(gelu_product, gelu_half)
  [mlp_down] mlp_down = MatMul(activated, down_weight)
  [mlp_down_bias] mlp_out = Add(mlp_down, down_bias)
  [mlp_residual] thought = Add(attended, mlp_out)

  # RMS norm, decomposed as most exporters write it: in half, the square overflows first
  [rms_square] square = Pow(thought, rms_exponent)
  [rms_mean] mean_square = ReduceMean<axes = [-1], keepdims = 1>(square)
  [rms_epsilon] shifted_square = Add(mean_square, rms_epsilon)
  [rms_sqrt] rms = Sqrt(shifted_square)
  [rms_div] unscaled = Div(thought, rms)
  [rms_scale] state = Mul(unscaled, rms_norm_scale)

  # The body uses loop_weight from the enclosing graph
  [refine_loop] refined = Loop(loop_trips, loop_starts, state) <body = refine_step (
      int64 iteration, bool keep_going, float[batch,64,32] step_in
    ) => (bool keep_going_out, float[batch,64,32] step_out) {
      [refine_keep] keep_going_out = Identity(keep_going)
      [refine_matmul] step = MatMul(step_in, loop_weight)
      [refine_tanh] step_out = Tanh(step)
    }>

  # Head
  [head_pool] pooled = ReduceMean<axes = [1], keepdims = 0>(refined)
  [head_gemm] logits = Gemm(pooled, class_weight, class_bias)
  [head_softmax] probabilities = Softmax<axis = -1>(logits)
}
"""

# The last word of a name selects the distribution of its values.
WEIGHT_SHAPES: dict[str, tuple[int, ...]] = {
    "conv1_weight": (16, 3, 3, 3),
    **dict.fromkeys(("norm1_scale", "norm1_bias", "norm1_mean", "norm1_variance"), (16,)),
    "conv2_weight": (16, 16, 3, 3),
    **dict.fromkeys(("norm2_scale", "norm2_bias", "norm2_mean", "norm2_variance"), (16,)),
    "conv3_weight": (WIDTH, 16, 3, 3),
    "conv3_bias": (WIDTH,),
    "attention_norm_scale": (WIDTH,),
    "attention_norm_bias": (WIDTH,),
    "query_weight": (WIDTH, WIDTH),
    "key_weight": (WIDTH, WIDTH),
    "value_weight": (WIDTH, WIDTH),
    "project_weight": (WIDTH, WIDTH),
    "mlp_norm_scale": (WIDTH,),
    "mlp_norm_bias": (WIDTH,),
    "up_weight": (WIDTH, 4 * WIDTH),
    "up_bias": (4 * WIDTH,),
    "down_weight": (4 * WIDTH, WIDTH),
    "down_bias": (WIDTH,),
    "rms_norm_scale": (WIDTH,),
    "loop_weight": (WIDTH, WIDTH),
    "class_weight": (WIDTH, 10),
    "class_bias": (10,),
}


TRAIN_STEP = """
<ir_version: 8, opset_import: ["" : 18], producer_name: "amp-rewrite demo">
train_step (float[8, 4] x, float[8, 3] y, float lr, float[4, 16] w1, float[16, 3] w2)
  => (float loss, float[4, 16] w1_new, float[16, 3] w2_new)
<float zero = {0.0}, float scale = {0.083333336}, float loss_grad = {1.0}>
{
  # Forward: two layers and the mean squared error
  hidden = MatMul (x, w1)
  active = Relu (hidden)
  guess = MatMul (active, w2)
  off = Sub (guess, y)
  squared = Mul (off, off)
  loss = ReduceMean <keepdims = 0> (squared)

  # Backward, from loss_grad on
  off_grad = Mul (off, scale)
  guess_grad = Mul (off_grad, loss_grad)
  active_t = Transpose <perm = [1, 0]> (active)
  w2_grad = MatMul (active_t, guess_grad)
  w2_t = Transpose <perm = [1, 0]> (w2)
  active_grad = MatMul (guess_grad, w2_t)
  is_active = Greater (active, zero)
  hidden_grad = Where (is_active, active_grad, zero)
  x_t = Transpose <perm = [1, 0]> (x)
  w1_grad = MatMul (x_t, hidden_grad)

  # Gradient descent
  w1_step = Mul (lr, w1_grad)
  w1_new = Sub (w1, w1_step)
  w2_step = Mul (lr, w2_grad)
  w2_new = Sub (w2, w2_step)
}
"""


def network(seed: int = 0) -> onnx.ModelProto:
    """Return the network, from `image` [batch, 3, 32, 32] to `probabilities` [batch, 10], float32.

    The same seed gives the same bytes.

    Examples:
        >>> from amp_rewrite.demo import network
        >>> [output.name for output in network().graph.output]
        ['probabilities']
    """
    model = onnx.parser.parse_model(NETWORK)
    for name, array in _weights(np.random.default_rng(seed)):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def train_step() -> onnx.ModelProto:
    """Return a train step of two layers: the loss, and the weights after a step of gradient descent, float32.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> [value.name for value in train_step().graph.output]
        ['loss', 'w1_new', 'w2_new']
    """
    return onnx.parser.parse_model(TRAIN_STEP)


def feeds(seed: int = 0) -> dict[str, Array]:
    """Return two noise images: `image`, float32 [2, 3, 32, 32], mean 0, standard deviation 1.

    Examples:
        >>> from amp_rewrite.demo import feeds
        >>> feeds()["image"].shape
        (2, 3, 32, 32)
    """
    rng = np.random.default_rng(seed)
    return {"image": rng.standard_normal((2, 3, 32, 32), dtype=np.float32)}


def _weights(rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    for name, shape in WEIGHT_SHAPES.items():
        yield name, _random(name.rsplit("_", 1)[1], shape, rng)
    yield "attention_mask", _attention_mask()


def _random(role: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return values for a role that keep the standard deviation of activations near one."""
    noise = rng.standard_normal(shape, dtype=np.float32)
    match role:
        case "weight":
            return noise / np.float32(math.sqrt(_fan_in(shape)))
        case "scale":
            return 1 + noise * SPREAD
        case "variance":
            return 1 + np.abs(noise) * SPREAD
        case _:
            return noise * SPREAD


def _fan_in(shape: tuple[int, ...]) -> int:
    """Return the number of products in each sum: Conv weights have the outputs first, matrices the inputs."""
    first, *rest = shape
    return math.prod(rest) if len(rest) > 1 else first


def _attention_mask() -> Array:
    """float32 [1, 1, TOKENS, TOKENS]: 0, and the lowest float32 for keys that are padding."""
    mask = np.zeros((1, 1, TOKENS, TOKENS), np.float32)
    mask[..., -PADDING_TOKENS:] = np.finfo(np.float32).min
    return mask
