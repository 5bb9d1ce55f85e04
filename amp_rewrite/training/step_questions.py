"""What may be asked of a model: what it is as a train step, and what its loss scale starts from."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from amp_rewrite import arguments
from amp_rewrite.errors import SpecError
from amp_rewrite.model import inlining, loading, serialization
from amp_rewrite.rewriting import result_checks
from amp_rewrite.training import finding, scaled_step
from amp_rewrite.training.finding import Step
from amp_rewrite.training.spec import Asked, TrainSpec, pairs


def find_spec(
    model: loading.ModelSource,
    *,
    loss: str | None = None,
    seed: str | None = None,
    state: Any = None,
    gradients: arguments.Texts | None = None,
    state_suffix: str | None = None,
) -> TrainSpec:
    """What a model is as a train step; the model is not changed.

    What is not given is taken from its metadata (`amp_rewrite.train.*`), else from names (`loss`,
    `loss_grad`, `X.new` for `X`; with `state_suffix`, `X` with that), else from the dataflow.
    Raises SpecError, which says what is missing or lists the candidates, where it is no train step or not
    clear as one, ModelError for what is no model, and OptionError for arguments of other types.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import find_spec
        >>> spec = find_spec(train_step())
        >>> spec.loss, spec.seed, [str(pair) for pair in spec.state]
        ('loss', 'loss_grad', ['w1 -> w1_new', 'w2 -> w2_new'])
    """
    asked = Asked(
        None if loss is None else arguments.instance("loss", loss, str),
        None if seed is None else arguments.instance("seed", seed, str),
        None if state is None else pairs("state", state),
        None if gradients is None else arguments.texts("gradients", gradients),
    )
    suffix = None if state_suffix is None else arguments.instance("state_suffix", state_suffix, str)
    return complete_spec(model, asked, suffix)


def complete_spec(model: loading.ModelSource, asked: Asked, suffix: str | None = None) -> TrainSpec:
    """What was said of a step, with what it leaves open found as by `find_spec`."""
    loaded = loading.load(model).model
    with result_checks.blaming(lambda: serialization.checkable(model)):
        return found_in(loaded, asked, suffix).spec


def found_in(model: ir.Model, asked: Asked, suffix: str | None = None) -> Step:
    """The step that a loaded model is, after its functions are inlined; raises as `find_spec`."""
    inlining.inline(model)
    return finding.find_step(model, asked, suffix)


def initial_state(model: loading.ModelSource) -> dict[str, NDArray[np.generic]]:
    """The first values of the inputs that a dynamic loss scale added to a model, by name: the scale, a
    float32 scalar, and the number of good steps, an int64 scalar. Empty for a fixed scale.

    Raises SpecError for a model without a loss scale of ours, and ModelError for what is no model.

    Examples:
        >>> from amp_rewrite.demo import train_step
        >>> from amp_rewrite.training import initial_state, insert_loss_scale
        >>> sorted(initial_state(insert_loss_scale(train_step()).model))
        ['good_steps', 'loss_scale']
    """
    metadata = loading.load(model).model.metadata_props
    try:
        found = scaled_step.start_values(metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(
            f"its metadata are damaged ({error})", remedy="insert the loss scale again"
        ) from error
    if found is None:
        raise SpecError("the model has no loss scale of ours", remedy="insert one with insert_loss_scale")
    return found
