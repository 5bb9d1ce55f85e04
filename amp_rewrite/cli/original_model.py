"""What the result of a command is compared with."""

from __future__ import annotations

from pathlib import Path

from amp_rewrite.errors import AmpRewriteError, ModelError
from amp_rewrite.model import loading
from amp_rewrite.running.sessions import Runnable


def original(model: Path, *, in_place: bool) -> Runnable | AmpRewriteError:
    """What to compare the result with: a model that will be overwritten is read beforehand."""
    if not in_place:
        return model
    if loading.load(model).external:
        return ModelError(
            "--in-place replaces a model with external data",
            remedy="write the result to another file with -o, and compare the two",
        )
    return loading.load_proto(model)
