"""FLOPs of operators other than products: a constant for each element, and transforms."""

from __future__ import annotations

import math

from amp_rewrite.flops.port_shapes import Formula, PortShapes
from amp_rewrite.onnx_types import attributes


def per_output_element(ports: PortShapes) -> int:
    """One for each element of the first output."""
    return math.prod(ports.output())


def per_read(times: int) -> Formula:
    """`times` for each element of the first input."""
    return lambda ports: times * math.prod(ports.input(0))


def per_made(times: int) -> Formula:
    """`times` for each element of the first output."""
    return lambda ports: times * math.prod(ports.output())


def pooled(ports: PortShapes) -> int:
    """One for each element of each pooling window."""
    kernel = ports.node.attributes["kernel_shape"].as_ints()
    return math.prod(ports.output()) * math.prod(kernel)


def local_norm(ports: PortShapes) -> int:
    """LRN: a sum of squares over `size` channels for each element."""
    return 2 * math.prod(ports.input(0)) * attributes.integer(ports.node, "size")


INTERPOLATED = 8
"""FLOPs of an interpolated element: four neighbours, a multiply-add each."""


def resize(ports: PortShapes) -> int:
    """INTERPOLATED for each element; the mode `nearest` does no arithmetic."""
    if ports.node.attributes.get_string("mode", "nearest") == "nearest":
        return 0
    return INTERPOLATED * math.prod(ports.output())


def fourier(ports: PortShapes) -> int:
    """The usual 5 n log2 n of a fast Fourier transform, for each signal (Cooley and Tukey; FFTW's count)."""
    shape = ports.output()
    axis = attributes.integer(ports.node, "axis", -2)
    length = ports.input(0)[axis]
    signals = math.prod(shape) // max(shape[axis], 1) // shape[-1]
    return _transform(length) * signals


def short_fourier(ports: PortShapes) -> int:
    """The output of STFT is batch x frames x bins x 2: one transform for each frame."""
    batch, frames, bins, _ = ports.output()
    two_sided = not attributes.integer(ports.node, "onesided", 1)
    return batch * frames * _transform(bins if two_sided else 2 * (bins - 1))


def _transform(length: int) -> int:
    return round(5 * length * math.log2(length)) if length > 1 else 0


def determinant(ports: PortShapes) -> int:
    """Gaussian elimination: two thirds of n cubed for each matrix."""
    shape = ports.input(0)
    return round(2 / 3 * math.prod(shape) * shape[-1])
