"""Synthetic audio: a voice, as noise hides what recordings show (silence, harmonics, onsets)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_RATE = 16_000
"""The usual sampling rate of speech models."""
_PITCH, _MELODY, _SYLLABLES = 120.0, 2.0, 3.0
"""In Hz: the fundamental of a low voice, how often it moves by a quarter, and syllables."""
_HARMONICS = 20
_LOUD, _NOISE = 0.2, 1e-3
"""Amplitudes: of the fundamental, and of noise, which silence has too (-60 dB)."""


def voice(shape: Sequence[int], random: np.random.Generator) -> NDArray[Any]:
    """Return harmonics under an envelope, with noise and silence, along the longest axis."""
    axis = int(np.argmax(shape))
    seconds = np.arange(shape[axis]) / _RATE
    pitch = _PITCH * (1 + np.sin(2 * np.pi * _MELODY * seconds + random.uniform(0, 2 * np.pi)) / 4)
    phase = 2 * np.pi * np.cumsum(pitch) / _RATE
    tone = sum(np.sin(number * phase) / number for number in range(1, _HARMONICS + 1))
    envelope = np.maximum(np.cos(2 * np.pi * _SYLLABLES * seconds), 0)
    along = np.reshape(_LOUD * envelope * tone, [size if at == axis else 1 for at, size in enumerate(shape)])
    return along + _NOISE * random.standard_normal(shape)
