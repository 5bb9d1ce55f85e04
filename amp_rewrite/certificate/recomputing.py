"""Computes what depends on stored values alone: node by node, as a runtime folds it in float32."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from onnx import ModelProto

from amp_rewrite.certificate import folding_costs
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.element_checks import Array
from amp_rewrite.process import fork_safe


def outputs(model: ModelProto) -> Sequence[Array]:
    """The outputs of a model without inputs, in order; DifferentError where they cannot be computed."""
    folding_costs.refuse(model)
    try:
        run = _by_runtime if importlib.util.find_spec("onnxruntime") else _by_reference
        return run(model)
    except Exception as error:  # either raises errors of many kinds
        raise DifferentError("what is stored in place of a computed value cannot be computed anew") from error


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
