"""Train steps: plain graphs from weights and a batch to the loss and the new weights.

`rewrite_train_step` rewrites one to mixed precision with a loss scale, `insert_loss_scale` inserts the scale
alone, `find_spec` finds loss, seed and state, and `initial_state` returns the start of a dynamic scale.
"""

from amp_rewrite.analysis.states import Pair
from amp_rewrite.errors import SpecError
from amp_rewrite.training.scaled_step import ScaleBorders, ScaledStep
from amp_rewrite.training.spec import DynamicLossScale, FixedLossScale, Implementation, TrainSpec
from amp_rewrite.training.steps import (
    InsertResult,
    TrainResult,
    find_spec,
    initial_state,
    insert_loss_scale,
    rewrite_train_step,
)

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "Implementation",
    "InsertResult",
    "Pair",
    "ScaleBorders",
    "ScaledStep",
    "SpecError",
    "TrainResult",
    "TrainSpec",
    "find_spec",
    "initial_state",
    "insert_loss_scale",
    "rewrite_train_step",
]
