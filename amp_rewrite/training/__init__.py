"""Train steps: plain graphs that take weights and a batch, and give the loss and the new weights.

`rewrite_train_step` makes one mixed precision with a loss scale, `insert_loss_scale` inserts that alone,
`find_spec` says what loss, seed and state are, and `initial_state` what a dynamic scale starts from.
"""

from amp_rewrite.errors import SpecError
from amp_rewrite.policy.named_policies import Policy
from amp_rewrite.training.scaled_step import ScaleBorders, ScaledStep
from amp_rewrite.training.spec import DynamicLossScale, FixedLossScale, Implementation, Pair, TrainSpec
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
    "Policy",
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
