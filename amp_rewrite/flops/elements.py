"""FLOPs of what is no product: so many for each element, and transforms."""

from __future__ import annotations

import math

from amp_rewrite.flops.contrib_shapes import attribute
from amp_rewrite.flops.ports import Formula, Ports


def made(ports: Ports) -> int:
    """One for each element that is made."""
    return math.prod(ports.made())


def per_read(times: int) -> Formula:
    """So many for each element of the first input."""
    return lambda ports: times * math.prod(ports.read(0))


def per_made(times: int) -> Formula:
    """So many for each element of the first output."""
    return lambda ports: times * math.prod(ports.made())


def pooled(ports: Ports) -> int:
    """One for each element under the kernel."""
    kernel = ports.node.attributes["kernel_shape"].as_ints()
    return math.prod(ports.made()) * math.prod(kernel)


def local_norm(ports: Ports) -> int:
    """LRN: a sum of squares over `size` channels for each element."""
    return 2 * math.prod(ports.read(0)) * attribute(ports.node, "size")


INTERPOLATED = 8
"""FLOPs of an element between others: four neighbours, a multiply-add each."""


def resize(ports: Ports) -> int:
    """Interpolated elements; to take the nearest one is no arithmetic."""
    mode = ports.node.attributes.get("mode")
    if mode is None or mode.as_string() == "nearest":
        return 0
    return INTERPOLATED * math.prod(ports.made())


def fourier(ports: Ports) -> int:
    """The usual 5 n log2 n of a fast Fourier transform, for each signal (Cooley and Tukey; FFTW's count)."""
    shape = ports.made()
    axis = attribute(ports.node, "axis", -2)
    length = ports.read(0)[axis]
    signals = math.prod(shape) // max(shape[axis], 1) // shape[-1]
    return _transform(length) * signals


def short_fourier(ports: Ports) -> int:
    """STFT makes batch x frames x bins x 2: a transform for each frame."""
    batch, frames, bins, _ = ports.made()
    two_sided = not attribute(ports.node, "onesided", 1)
    return batch * frames * _transform(bins if two_sided else 2 * (bins - 1))


def _transform(length: int) -> int:
    return round(5 * length * math.log2(length)) if length > 1 else 0


def determinant(ports: Ports) -> int:
    """Gaussian elimination: two thirds of n cubed for each matrix."""
    shape = ports.read(0)
    return round(2 / 3 * math.prod(shape) * shape[-1])
