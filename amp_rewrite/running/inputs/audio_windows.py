"""The windows that a network cuts a waveform into: filters of a Conv over one channel, or an STFT's."""

from __future__ import annotations

import math
from collections.abc import Iterable

from amp_rewrite.model.constants import stored_as
from amp_rewrite.running.inputs.consumers import NodeInput

_WINDOW, _LENGTH = 2, 3
"""The inputs of an STFT with its window, and with the length of one."""


def longest(uses: Iterable[NodeInput]) -> int:
    """The most samples that a window of these uses takes; 0 if they take none."""
    windows = {("Conv", 0): _of_conv, ("STFT", 0): _of_stft}
    return max((windows[use.key](use) for use in uses if use.key in windows), default=0)


def _of_conv(use: NodeInput) -> int:
    """The length of filters that lie along one axis of one channel."""
    weight = stored_as(use.input_at(1))
    _, channels, *sides = (0, 0) if weight is None else weight.shape.numpy()
    if channels != 1 or use.attribute("group", 1) != 1 or max(sides, default=0) != math.prod(sides):
        return 0
    dilations = use.node.attributes.get_ints("dilations", (1,) * len(sides))
    return max((side - 1) * dilation + 1 for side, dilation in zip(sides, dilations, strict=False))


def _of_stft(use: NodeInput) -> int:
    window, length = stored_as(use.input_at(_WINDOW)), stored_as(use.input_at(_LENGTH))
    if window is not None:
        return window.size
    return 0 if length is None else int(length.numpy().item())
