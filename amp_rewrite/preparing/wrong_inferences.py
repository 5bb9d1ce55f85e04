"""Nodes whose outputs onnx gives wrong shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir


def is_wrong(node: ir.Node) -> bool:
    """Whether what onnx 1.23 infers for a node is wrong, or is not what runtimes compute."""
    rule = None if node.domain else _RULES.get(node.op_type)
    return rule is not None and rule(node)


def _has_sides_of_its_own(node: ir.Node) -> bool:
    """onnx takes an STFT that does not say so for one with two sides, and an open batch for one of 0."""
    signal = node.inputs[0]
    dims = signal.shape if signal is not None else None
    return "onesided" not in node.attributes or not dims or not isinstance(dims[0], int)


def _drops_axis(node: ir.Node) -> bool:
    """onnx ignores `keepdims = 0` of a SplitToSequence that is told where to split, and onnxruntime does not
    where the parts have one size. PyTorch's exporter writes `unbind` so.
    """
    kept = node.attributes.get("keepdims")
    return len(node.inputs) > 1 and node.inputs[1] is not None and kept is not None and kept.value == 0


_RULES: Mapping[str, Callable[[ir.Node], bool]] = {
    "STFT": _has_sides_of_its_own,
    "SplitToSequence": _drops_axis,
}
