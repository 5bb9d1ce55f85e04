"""Pairs of an original and a result, and what the certificate says of them.

Most are rows of `tests/cases/certificate_*.cases`; those that no text describes are made in Python. The
domains `d`, `other` and `my` are known to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper, parser

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.errors import AmpRewriteError
from tests.onnx_text import HEADER, RUNS, numbers, run

DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "other", "d", "my")

Text = str | onnx.ModelProto
Change = Callable[[onnx.ModelProto], object]


def model(text: Text) -> onnx.ModelProto:
    """The model of a text, which nobody checks."""
    if isinstance(text, onnx.ModelProto):
        return text
    proto = parser.parse_model(text if text.startswith("<") else f"{HEADER} {text}")
    imported = {entry.domain for entry in proto.opset_import}
    for domain in DOMAINS:
        if domain not in imported:
            proto.opset_import.add(domain=domain, version=1)
    return proto


def changed(text: Text, change: Change) -> onnx.ModelProto:
    """A copy of a model after a change."""
    result = onnx.ModelProto()
    result.CopyFrom(model(text))
    change(result)
    return result


def store(name: str, array: NDArray[np.generic]) -> Change:
    """A change: an initializer has these numbers, or there is one more."""
    tensor = numpy_helper.from_array(array, name)

    def change(result: onnx.ModelProto) -> None:
        others = [each for each in result.graph.initializer if each.name != name]
        del result.graph.initializer[:]
        result.graph.initializer.extend([*others, tensor])

    return change


def move_to_file(tensor: TensorProto, **entries: str) -> None:
    """Let a tensor say that its data are in a file; `location` and `offset` are entries."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def check(original: Text, result: Text, claimed: str) -> None:
    """Asserts a verdict."""
    found = verdict(model(original), model(result), claimed)
    assert found == claimed, found


def verdict(
    original: onnx.ModelProto,
    result: onnx.ModelProto,
    claimed: str = "",
    op_types: Mapping[str, str] | None = None,
) -> str:
    """What the certificate says of a pair, in the words that are claimed as far as they hold.

    `proved`, `proved: 4 nodes`, `proved: merged 1, folded 2`, `not proved: why` or `error: why`.
    """
    try:
        found = certify(original, result, op_types=op_types)
    except AmpRewriteError as refusal:
        return _in_part("error", str(refusal), claimed)
    if not found.proved:
        itself = certify(original, original)
        told = found.problem if itself.proved else f"not even of itself: {itself.problem}"
        return _in_part("not proved", told, claimed)
    licences = ", ".join(f"{licence.value} {count}" for licence, count in found.licences.items())
    said = ["proved", f"proved: {found.nodes} nodes", f"proved: {licences}"]
    return claimed if claimed in said else said[-1 if licences else 1]


def _in_part(kind: str, problem: str, claimed: str) -> str:
    is_part = claimed.startswith(f"{kind}: ") and claimed.removeprefix(f"{kind}: ") in problem
    return claimed if is_part else f"{kind}: {problem}"


def exact(original: onnx.ModelProto, result: onnx.ModelProto) -> str:
    """`exact`: a result gives the same bits, and is proved in half with as many powers of two."""
    if RUNS and outputs(original) != outputs(result):
        return "not exact: other bits"
    powers = _powers(original, result)
    for half in ("float16", "bfloat16"):
        options = Options(half=half, level="unsafe-force-all", check=False, certify=False)
        if _powers(original, rewrite(result, options).model) != powers:
            return f"not exact: other powers of two in {half}"
    return "exact"


def outputs(proto: onnx.ModelProto) -> list[bytes]:
    """The bits of the outputs, for inputs of either sign."""
    found = run(proto, lambda kind: np.subtract(numbers(kind), np.float32(0.45)))
    return [array.tobytes() for array in found.values()]


def _powers(original: onnx.ModelProto, result: onnx.ModelProto) -> int:
    return {each.value: count for each, count in certify(original, result).licences.items()}.get(
        "rescaled", 0
    )
