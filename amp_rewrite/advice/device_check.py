"""The compatibility check of a precision policy: whether a device gains from half, and sizes fit its cores.

Keras logs the first part for `mixed_float16` ("Mixed precision compatibility check"); nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rewrite.advice.advice import Advice
from amp_rewrite.advice.compute_capability import TENSOR_CORES_FROM
from amp_rewrite.coverage.counts import some
from amp_rewrite.explaining.sentences import plural

_SHOWN = 3


def lines(advice: Advice) -> Iterator[str]:
    """What is known of the device, and which dimensions of products are no multiples of 8, a line each.

    In a train step the batch is among them: it is the inner dimension of the products that give gradients.
    """
    yield _device(advice)
    if advice.paddings:
        sizes = dict.fromkeys(
            f"{found.size:,} -> {found.padded:,}"
            for padding in advice.paddings
            for found in padding.dimensions
        )
        count = sum(len(padding.nodes) for padding in advice.paddings)
        shown = ", ".join([*list(sizes)[:_SHOWN], *(["..."] if len(sizes) > _SHOWN else [])])
        yield f"{plural(count, 'product')} with dimensions that are no multiples of 8: {shown}"
    if advice.open_dims:
        yield f"open dimensions ({some(advice.open_dims)}), the batch as well, are best as multiples of 8"


def _device(advice: Advice) -> str:
    since = TENSOR_CORES_FROM[advice.half]
    if advice.capability is None:
        return f"no CUDA device here; {advice.half} gains speed from compute capability {since} on"
    return advice.shortfall or f"compute capability {advice.capability} has Tensor Cores for {advice.half}"
