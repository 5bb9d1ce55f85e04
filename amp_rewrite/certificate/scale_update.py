"""What a dynamic loss scale becomes after a step, as a model of its own: TensorFlow's rule.

(tensorflow/python/training/experimental/loss_scale.py, DynamicLossScale.update)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import ModelProto, numpy_helper, parser

from amp_rewrite.certificate import numbering
from amp_rewrite.certificate.certificate import DifferentError
from amp_rewrite.certificate.declared_scale import Declared
from amp_rewrite.certificate.numbered import Numbered
from amp_rewrite.certificate.proving import Proving
from amp_rewrite.certificate.skipped_steps import flag_of, numbered

_RULE = """<ir_version: 8, opset_import: ["" : 17]>
update (float scale, int64 good, bool finite) => (float next, int64 steps)
<float multiplier, float infinity, float least, int64 one, int64 zero, int64 period> {
    larger = Mul (scale, multiplier)
    holds = Less (larger, infinity)
    grown = Where (holds, larger, scale)
    count = Add (good, one)
    waits = Less (count, period)
    after_finite = Where (waits, scale, grown)
    smaller = Div (scale, multiplier)
    shrunk = Max (smaller, least)
    next = Where (finite, after_finite, shrunk)
    counts = And (finite, waits)
    steps = Where (counts, count, zero)
}"""


def refuse_other(model: Numbered, declared: Declared) -> None:
    """DifferentError where the state of a scale does not become what the rule says."""
    if "good_steps" not in declared.state:
        return
    outputs = dict(model.outputs)
    names = [declared.state[name] for name in ("scale", "good_steps")]
    ends = [(each[1], numbered(outputs, each[1])) for each in names]
    rule = numbering.number(_rule(declared, model), None, {})
    proving = Proving(rule, replace(model, outputs=ends))
    begins = [numbered(model.inputs, each[0]) for each in names]
    for left, right in zip(rule.inputs.values(), (*begins, flag_of(model, declared)), strict=True):
        proving.assume(left, right)
    found = proving.run()
    if not found.proved:
        raise DifferentError(f"the loss scale does not become what the rule says ({found.problem})")


def _rule(declared: Declared, model: Numbered) -> ModelProto:
    rule = parser.parse_model(_RULE)
    numbers = {
        "multiplier": np.float32(declared.scale["multiplier"]),
        "infinity": np.float32(np.inf),
        "least": np.float32(1),
        "one": np.int64(1),
        "zero": np.int64(0),
        "period": np.int64(declared.scale["increment_period"]),
    }
    del rule.graph.initializer[:]
    rule.graph.initializer.extend(numpy_helper.from_array(np.asarray(n), name) for name, n in numbers.items())
    rule.opset_import[0].version = numbering.imports(model.proto.opset_import)[""]
    return rule
