"""Dropouts that do nothing: onnxruntime takes them out before it looks for kernels."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite.model.constants import stored_as

_TRAINING_MODE = 2


def needs_no_kernel(node: ir.Node) -> bool:
    """Whether it is a Dropout at inference whose mask nobody reads.

    Of version 22, which JAX's exporter leaves behind, CUDA has no kernel (onnxruntime's `EliminateDropout`).
    """
    if node.op_type != "Dropout" or node.domain or not _is_at_inference(node):
        return False
    return all(not mask.uses() and not mask.is_graph_output() for mask in node.outputs[1:])


def _is_at_inference(node: ir.Node) -> bool:
    mode = node.inputs[_TRAINING_MODE] if len(node.inputs) > _TRAINING_MODE else None
    stored = stored_as(mode)
    return mode is None or (stored is not None and not mode.is_graph_input() and not stored.numpy().any())
