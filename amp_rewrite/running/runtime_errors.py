"""Errors of runtimes: the reason on one line, and whether it is lack of memory or threads."""

from __future__ import annotations

import re

from amp_rewrite.text import shortened

_SCARCE = re.compile(
    r"bad_alloc|bad allocation|Failed to allocate memory|Cannot allocate memory|out of memory|ALLOC_FAILED"
    r"|Resource temporarily unavailable|failed to map segment",
    re.IGNORECASE,
)
"""What onnxruntime (its arena and thread pool), the C++ library, the loader, CUDA, cuBLAS and cuDNN say."""


def is_scarce(error: BaseException) -> bool:
    """Return whether an exception says that the system gave no memory or no thread: no fault of a model."""
    return isinstance(error, MemoryError) or bool(_SCARCE.search(str(error)))


def reason(error: BaseException) -> str:
    """Return the reason that an exception of onnxruntime gives, without its codes and places in C++."""
    return one_line(str(error), *_NOISE) or type(error).__name__


def one_line(message: str, *noise: re.Pattern[str]) -> str:
    """Return a message on one line without `noise`; of a long one, the beginning and the end."""
    line = " ".join(message.split())
    for pattern in noise:
        line = pattern.sub("", line)
    return shortened(line.strip(), _LONGEST)


_LONGEST = 400
_PLACE = r"(?<!\S)\S+\.(?:cc|cpp|cu|cuh|h|hpp):\d+ .*?"
_NOISE = (
    re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : "),
    re.compile(r"^Load model from .* failed: ?"),  # an error says where it is
    re.compile(rf"{_PLACE} was false\. "),
    re.compile(rf"{_PLACE}\)(?: const)?(?: \[with [^\]]*\])? "),
    re.compile(r" ?==> Context:.*"),
)
