"""Networks with random weights and the structure of real ones, and inputs for them.

Each is built from the nodes that exporters emit: attention as MatMul and Softmax, GELU as Erf, a group norm
as InstanceNormalization. They need no framework and no download.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from layers import HEADS, MASKED, Layers
from onnx import TensorProto

Feeds = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Network:
    """A network, and inputs for it."""

    name: str
    model: onnx.ModelProto
    feeds: Feeds


def resnet50(*, batch: int, image: int, wide: int, blocks: tuple[int, ...]) -> Network:
    """ResNet-50 v1.5: bottlenecks with the stride in the middle; He et al., 2016."""
    net = Layers()
    x = net.add("Relu", net.normed(net.input("image", ("batch", 3, image, image)), 3, wide, 7, stride=2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    have = wide
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = _bottleneck(net, x, have, wide << stage, stride)
            have = (wide << stage) * 4
    net.output(net.classify(net.global_pool(x), have, 1000), "logits", ("batch", 1000))
    return Network("ResNet-50", net.model("resnet50"), {"image": _image(batch, 3, image)})


def _bottleneck(net: Layers, x: str, have: int, wide: int, stride: int) -> str:
    inner = net.add("Relu", net.normed(x, have, wide, 1))
    inner = net.add("Relu", net.normed(inner, wide, wide, 3, stride=stride))
    inner = net.normed(inner, wide, wide * 4, 1, scale=0.3)
    beside = x if have == wide * 4 else net.normed(x, have, wide * 4, 1, stride=stride)
    return net.add("Relu", net.add("Add", inner, beside))


_MOBILE = (
    # size, expanded, out, squeeze and excitation, HardSwish, stride: table 1 of Howard et al., 2019
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)


def mobilenet(*, batch: int, image: int, rows: int) -> Network:
    """MobileNetV3-Large, or its first rows."""
    net = Layers()
    x = net.normed(net.input("image", ("batch", 3, image, image)), 3, 16, 3, stride=2)
    x, have = net.add("HardSwish", x), 16
    for size, expanded, out, squeeze, swish, stride in _MOBILE[:rows]:
        act = "HardSwish" if swish else "Relu"
        inner = net.add(act, net.normed(x, have, expanded, 1))
        inner = net.add(act, net.normed(inner, expanded, expanded, size, stride=stride, group=expanded))
        inner = _excite(net, inner, expanded) if squeeze else inner
        inner = net.normed(inner, expanded, out, 1, scale=0.5)
        x, have = (net.add("Add", x, inner) if have == out and stride == 1 else inner), out
    x = net.add("HardSwish", net.normed(x, have, 960, 1))
    x = net.add("HardSwish", net.classify(net.global_pool(x), 960, 1280))
    net.output(net.classify(x, 1280, 1000), "logits", ("batch", 1000))
    return Network("MobileNetV3", net.model("mobilenet"), {"image": _image(batch, 3, image)})


def _excite(net: Layers, x: str, wide: int) -> str:
    squeezed = net.add("GlobalAveragePool", x)
    inner = net.add("Relu", net.conv(squeezed, wide, wide // 4, 1))
    gate = net.add("HardSigmoid", net.conv(inner, wide // 4, wide, 1), alpha=1 / 6, beta=0.5)
    return net.add("Mul", gate, x)


def bert(*, batch: int, length: int, wide: int, layers: int, words: int) -> Network:
    """BERT-base: norms after the residuals, a mask of -3.4e38, GELU by Erf; Devlin et al., 2019."""
    net, shape = Layers(), ("batch", "length")
    ids = net.input("input_ids", shape, TensorProto.INT64)
    attended = net.input("attention_mask", shape, TensorProto.INT64)
    kinds = net.input("token_type_ids", shape, TensorProto.INT64)
    embedded = net.add("Gather", net.weight(words, wide, scale=0.02), ids)
    embedded = net.add("Add", embedded, net.add("Gather", net.weight(2, wide, scale=0.02), kinds))
    x = net.norm(net.add("Add", embedded, net.weight(1, length, wide, scale=0.02)), wide)
    mask = net.mask(attended)
    for _ in range(layers):
        x = net.norm(net.add("Add", net.attention(x, wide, mask=mask), x), wide)
        inner = net.gelu(net.linear(x, wide, wide * 4))
        x = net.norm(net.add("Add", net.linear(inner, wide * 4, wide), x), wide)
    first = net.add("Gather", x, net.constant(0, np.int64), axis=1)
    pooled = net.add("Tanh", net.classify(first, wide, wide))
    net.output(x, "last_hidden_state", ("batch", "length", wide))
    net.output(pooled, "pooler_output", ("batch", wide))
    feeds = {"input_ids": _ids(words, batch, length), "attention_mask": _padded(batch, length)}
    return Network("BERT-base", net.model("bert"), feeds | {"token_type_ids": _ids(2, batch, length)})


def gpt2(*, batch: int, length: int, past: int, wide: int, layers: int, words: int) -> Network:
    """GPT-2, with keys and values of `past` earlier tokens if that is not 0; Radford et al., 2019."""
    net = Layers()
    ids = net.input("input_ids", ("batch", "length"), TensorProto.INT64)
    table, feeds = net.weight(words, wide, scale=0.02), {"input_ids": _ids(words, batch, length)}
    places = net.input("position_ids", ("batch", "length"), TensorProto.INT64)
    feeds["position_ids"] = np.tile(np.arange(past, past + length), (batch, 1))
    placed = net.add("Gather", net.weight(1024, wide, scale=0.02), places)
    x = net.add("Add", net.add("Gather", table, ids), placed)
    mask = net.constant(np.triu(np.full((length, past + length), MASKED), 1 + past))
    for layer in range(layers):
        seen, kept = _remembering(net, net.norm(x, wide), wide, mask, layer if past else None)
        x = net.add("Add", x, net.linear(seen, wide, wide, scale=0.02 / math.sqrt(2 * layers)))
        inner = net.gelu_tanh(net.linear(net.norm(x, wide), wide, wide * 4))
        x = net.add("Add", x, net.linear(inner, wide * 4, wide, scale=0.02 / math.sqrt(2 * layers)))
        feeds |= {name: _normal(batch, HEADS[wide], past, wide // HEADS[wide]) for name in kept}
    logits = net.add("MatMul", net.norm(x, wide), net.add("Transpose", table, perm=[1, 0]))
    net.output(logits, "logits", ("batch", "length", words))
    return Network(f"GPT-2{' with past' if past else ''}", net.model("gpt2"), feeds)


def _remembering(net: Layers, x: str, wide: int, mask: str, layer: int | None) -> tuple[str, tuple[str, ...]]:
    """Attention that includes past tokens; also the names of the inputs with past keys and values."""
    size = wide // HEADS[wide]
    joint = net.linear(x, wide, 3 * wide)
    query = net.add("Split", joint, net.constant([wide] * 3, np.int64), outputs=3, axis=-1)
    parts = [net.heads(name, HEADS[wide], size) for name in (query, f"{query}_1", f"{query}_2")]
    if layer is None:
        return net.attend(*parts, wide, mask=mask), ()
    kept = tuple(f"past_key_values.{layer}.{kind}" for kind in ("key", "value"))
    for index, name in enumerate(kept, start=1):
        shape = ("batch", HEADS[wide], "past", size)
        parts[index] = net.add("Concat", net.input(name, shape), parts[index], axis=2)
        present = name.replace("past_key_values", "present")
        net.output(parts[index], present, ("batch", HEADS[wide], "total", size))
    return net.attend(*parts, wide, mask=mask), kept


def vit(*, batch: int, image: int, wide: int, layers: int) -> Network:
    """ViT-B/16: patches, a class token, norms before each part; Dosovitskiy et al., 2021."""
    net, patches = Layers(), (image // 16) ** 2
    kernel = {"kernel_shape": [16, 16], "strides": [16, 16]}
    pixels = net.input("image", ("batch", 3, image, image))
    made = net.add("Conv", pixels, net.weight(wide, 3, 16, 16), net.weight(wide, scale=0.02), **kernel)
    flat = net.add("Reshape", made, net.constant([0, wide, -1], np.int64))
    tokens = net.add("Transpose", flat, perm=[0, 2, 1])
    many = net.add("Gather", net.add("Shape", pixels), net.constant([0], np.int64), axis=0)
    shape = net.add("Concat", many, net.constant([1, wide], np.int64), axis=0)
    token = net.add("Expand", net.weight(1, 1, wide, scale=0.02), shape)
    x = net.add("Concat", token, tokens, axis=1)
    x = net.add("Add", x, net.weight(1, patches + 1, wide, scale=0.02))
    for _ in range(layers):
        x = net.add("Add", net.attention(net.norm(x, wide), wide), x)
        inner = net.gelu(net.linear(net.norm(x, wide), wide, wide * 4))
        x = net.add("Add", net.linear(inner, wide * 4, wide), x)
    first = net.add("Gather", net.norm(x, wide), net.constant(0, np.int64), axis=1)
    net.output(net.classify(first, wide, 1000), "logits", ("batch", 1000))
    return Network("ViT-B/16", net.model("vit"), {"image": _image(batch, 3, image)})


def unet(*, batch: int, image: int, wide: tuple[int, ...]) -> Network:
    """A diffusion UNet: time-conditioned residual blocks, attention at the bottom, skips by Concat."""
    net = Layers()
    x = net.conv(net.input("sample", ("batch", 4, image, image)), 4, wide[0], 3)
    time = _time(net, net.input("timestep", ("batch",)), wide[0])
    have, skips = wide[0], list[tuple[str, int]]()
    for level, out in enumerate(wide):
        x, have = _residual(net, x, time, have, out, wide[0]), out
        skips.append((x, out))
        x = net.conv(x, out, out, 3, stride=2) if level < len(wide) - 1 else x
    x = _residual(net, _look_around(net, x, have), time, have, have, wide[0])
    for level, (skip, out) in enumerate(reversed(skips)):
        x = _upsampled(net, x, have) if level else x
        x = _residual(net, net.add("Concat", x, skip, axis=1), time, have + out, out, wide[0])
        have = out
    x = net.conv(net.silu(net.group_norm(x, have, GROUPS)), have, 4, 3)
    net.output(x, "noise", ("batch", 4, image, image))
    feeds = {"sample": _normal(batch, 4, image, image), "timestep": np.full(batch, 801, np.float32)}
    return Network("UNet", net.model("unet"), feeds)


GROUPS = 8


def _time(net: Layers, timestep: str, wide: int) -> str:
    """A sinusoidal time embedding, through two layers."""
    frequencies = np.exp(-math.log(10000) * np.arange(wide // 2) / (wide // 2))
    column = net.add("Unsqueeze", timestep, net.constant([1], np.int64))
    angles = net.add("Mul", column, net.constant(frequencies[None]))
    waves = net.add("Concat", net.add("Cos", angles), net.add("Sin", angles), axis=1)
    inner = net.silu(net.classify(waves, wide, wide * 4))
    return net.silu(net.classify(inner, wide * 4, wide))


def _residual(net: Layers, x: str, time: str, have: int, out: int, time_wide: int) -> str:
    inner = net.conv(net.silu(net.group_norm(x, have, GROUPS)), have, out, 3)
    moment = net.classify(time, time_wide, out)
    inner = net.add("Add", inner, net.add("Unsqueeze", moment, net.constant([2, 3], np.int64)))
    inner = net.conv(net.silu(net.group_norm(inner, out, GROUPS)), out, out, 3)
    return net.add("Add", inner, x if have == out else net.conv(x, have, out, 1))


def _look_around(net: Layers, x: str, wide: int) -> str:
    """Self-attention over all positions of the image."""
    flat = net.add("Reshape", net.group_norm(x, wide, GROUPS), net.constant([0, wide, -1], np.int64))
    seen = net.attention(net.add("Transpose", flat, perm=[0, 2, 1]), wide)
    back = net.add("Transpose", seen, perm=[0, 2, 1])
    return net.add("Add", net.add("Reshape", back, net.add("Shape", x)), x)


def _upsampled(net: Layers, x: str, wide: int) -> str:
    scales = net.constant([1, 1, 2, 2])
    modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return net.conv(net.add("Resize", x, "", scales, **modes), wide, wide, 3)


def lstm(*, batch: int, length: int, wide: int, layers: int) -> Network:
    """A stack of bidirectional LSTMs, and a classifier for every step."""
    net = Layers()
    x, have = net.input("frames", ("length", "batch", 80)), 80
    for _ in range(layers):
        scale = 1 / math.sqrt(wide)
        weights = [net.weight(2, 4 * wide, size, scale=scale) for size in (have, wide)]
        weights.append(net.weight(2, 8 * wide, scale=0.02))
        made = net.add("LSTM", x, *weights, outputs=3, hidden_size=wide, direction="bidirectional")
        x = net.add("Transpose", made, perm=[0, 2, 1, 3])
        x, have = net.add("Reshape", x, net.constant([0, 0, -1], np.int64)), 2 * wide
    logits = net.linear(x, have, 1000, scale=1 / math.sqrt(have))
    net.output(net.add("LogSoftmax", logits, axis=-1), "scores", ("length", "batch", 1000))
    return Network("LSTM", net.model("lstm"), {"frames": _normal(length, batch, 80)})


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def _image(batch: int, channels: int, size: int) -> np.ndarray:
    return _normal(batch, channels, size, size)


def _ids(words: int, batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, words, (batch, length))


def _padded(batch: int, length: int) -> np.ndarray:
    """A mask of ones whose last row ends early."""
    mask = np.ones((batch, length), np.int64)
    mask[-1, length - length // 4 :] = 0
    return mask


Sizes = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build a network: at its usual size, and at one for a smoke test."""

    make: Callable[..., Network]
    full: Sizes
    small: Sizes


_BERT = {"wide": 768, "layers": 12, "words": 30522}
_GPT2 = {"wide": 768, "layers": 12, "words": 50257}
_SMALL = {"wide": 64, "layers": 2, "words": 500}
RECIPES: Mapping[str, Recipe] = {
    "resnet50": Recipe(
        resnet50,
        {"batch": 16, "image": 224, "wide": 64, "blocks": (3, 4, 6, 3)},
        {"batch": 1, "image": 64, "wide": 16, "blocks": (1, 2, 1, 1)},
    ),
    "mobilenet": Recipe(
        mobilenet, {"batch": 16, "image": 224, "rows": 15}, {"batch": 1, "image": 64, "rows": 8}
    ),
    "bert": Recipe(bert, {"batch": 8, "length": 256, **_BERT}, {"batch": 2, "length": 16, **_SMALL}),
    "gpt2": Recipe(
        gpt2, {"batch": 4, "length": 256, "past": 0, **_GPT2}, {"batch": 2, "length": 16, "past": 0, **_SMALL}
    ),
    "gpt2_past": Recipe(
        gpt2, {"batch": 8, "length": 1, "past": 512, **_GPT2}, {"batch": 2, "length": 1, "past": 16, **_SMALL}
    ),
    "vit": Recipe(
        vit,
        {"batch": 16, "image": 224, "wide": 768, "layers": 12},
        {"batch": 1, "image": 64, "wide": 64, "layers": 2},
    ),
    "unet": Recipe(
        unet,
        {"batch": 4, "image": 64, "wide": (128, 256, 512)},
        {"batch": 1, "image": 16, "wide": (16, 32)},
    ),
    "lstm": Recipe(
        lstm,
        {"batch": 32, "length": 128, "wide": 512, "layers": 2},
        {"batch": 2, "length": 8, "wide": 32, "layers": 2},
    ),
}


def make(name: str, *, small: bool) -> Network:
    """The network of that name."""
    recipe = RECIPES[name]
    return recipe.make(**(recipe.small if small else recipe.full))
