"""Computes what depends on stored values alone: node by node, as a runtime folds it in float32."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from onnx import ModelProto, shape_inference

from amp_rewrite.certificate.pairs import DifferentError
from amp_rewrite.certificate.tensors import Array
from amp_rewrite.process import fork_safe

MOST = 1 << 28
"""The elements of all values that are computed for one model at most."""


def outputs(model: ModelProto) -> Sequence[Array]:
    """The outputs of a model without inputs, in order; DifferentError where they cannot be computed."""
    _refuse_large(model)
    try:
        run = _by_runtime if importlib.util.find_spec("onnxruntime") else _by_reference
        return run(model)
    except Exception as error:  # either raises errors of many kinds
        raise DifferentError("what is stored in place of a computed value cannot be computed anew") from error


def _refuse_large(model: ModelProto) -> None:
    """A few small values may be expanded to any size."""
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # as above
        raise DifferentError("the sizes of what is folded are not known") from error
    known = {
        info.name: info.type.tensor_type for info in (*inferred.graph.value_info, *inferred.graph.output)
    }
    total = 0
    for name in (name for node in model.graph.node for name in node.output):
        kind = known.get(name)
        if (
            kind is None
            or not kind.HasField("shape")
            or not all(d.HasField("dim_value") for d in kind.shape.dim)
        ):
            raise DifferentError("the sizes of what is folded are not known")
        count = 1
        for dim in kind.shape.dim:
            count *= dim.dim_value
        total += count
    if total > MOST:
        raise DifferentError("what is folded is too large to compute anew")


def _by_runtime(model: ModelProto) -> Sequence[Array]:
    runtime: Any = fork_safe.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal errors only
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {})


def _by_reference(model: ModelProto) -> Sequence[Array]:
    reference: Any = fork_safe.import_module("onnx.reference")
    return reference.ReferenceEvaluator(model).run(None, {})
