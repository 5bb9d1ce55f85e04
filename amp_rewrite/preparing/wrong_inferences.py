"""Nodes whose outputs onnx gives wrong shapes."""

from __future__ import annotations

import onnx_ir as ir


def is_wrong(node: ir.Node) -> bool:
    """Whether what onnx infers for a node is wrong.

    onnx 1.23 takes an STFT that does not say so for one with two sides, and an open batch for one of 0.
    """
    if node.domain or node.op_type != "STFT":
        return False
    signal = node.inputs[0]
    dims = signal.shape if signal is not None else None
    return "onesided" not in node.attributes or not dims or not isinstance(dims[0], int)
