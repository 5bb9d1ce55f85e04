"""File formats that are often mistaken for ONNX, recognised by their first bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """What a file is instead of ONNX: `problem` completes a sentence that begins with its path."""

    problem: str
    remedy: str


def recognise(data: bytes) -> ForeignFormat | None:
    """The format of these bytes, if it is known and not ONNX."""
    return next((known for pattern, known in _FORMATS if pattern.match(data)), None)


_UNPACK = "unpack it, and give the model in it"
_FORMATS = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), ForeignFormat(problem, remedy))
    for pattern, problem, remedy in (
        (rb"version https://git-lfs", "is a Git LFS pointer, not the model", "fetch it with git lfs pull"),
        (rb"\x1f\x8b", "is compressed with gzip", _UNPACK),
        (
            rb"PK\x03\x04",
            "is a zip archive, or a PyTorch checkpoint",
            "unpack it, or export the model to ONNX",
        ),
        (rb"....ORTM", "is in onnxruntime's own format", "give the ONNX model that it was made from"),
        (rb"\s*<(!doctype|html)", "is a web page, not the model", "download the model itself"),
        (
            rb"\s*(<\s*ir_version|\{|ir_version:)",
            "is text; models are read in ONNX's binary format",
            "convert it with onnx.save(onnx.load(FILE), NEW_FILE)",
        ),
    )
)
