"""Predicted times, in words."""

from __future__ import annotations

from amp_rewrite.colouring.paying import Priced
from amp_rewrite.costs.model_costs import Prediction, RunTime
from amp_rewrite.explaining.sentences import plural
from amp_rewrite.policy.options import Options
from amp_rewrite.policy.targets import ONNXRUNTIME_WEBGPU

PREDICTED = "predicted, not measured"


def summary(found: Prediction) -> str:
    """The speed of a result against float32 and against everything in half, with its launches and Casts."""
    speeds = f"{found.speedup:.2f}x float32 and {found.of_everything:.2f}x everything in {found.half}"
    return f"{speeds} on {found.device}{_at(found)}, {_launches(found.result)} ({PREDICTED})"


def _launches(run: RunTime) -> str:
    casts = "a Cast" if run.casts == 1 else "Casts"
    return f"{plural(run.launches, 'launch')}, {run.casts:,} of them {casts}"


def of_job(priced: Priced, options: Options) -> tuple[str, ...]:
    """That half is predicted not to pay; of a browser's runtime only where --gate goes by that."""
    if options.target is ONNXRUNTIME_WEBGPU and not options.gate:
        return ()  # times are predicted for CUDA
    return warnings(priced.prediction, gated=priced.gated)


def warnings(found: Prediction | None, *, gated: bool) -> tuple[str, ...]:
    """That half is predicted not to pay, where it is."""
    if found is None or not found.is_slower:
        return ()
    remedy = _GATED if gated else _REMEDY
    if not found.fast_half:
        return (f"{found.device} is no faster in {found.half} than in float32; {remedy}",)
    speed = f"predicted speed {found.speedup:.2f}x float32 on {found.device}{_at(found)}"
    return (f"{speed}{_why(found)}; {remedy}",)


_GATED = "the model stays as it is (`Options.gate`)"
_REMEDY = "`Options.gate` leaves such a model as it is"


def _at(found: Prediction) -> str:
    if not found.sizes:
        return ""
    told = f"sizes {found.sizes_from}" if found.sizes_from else ""
    left = f"{'other' if told else 'open'} sizes count as {found.open_size}" if found.open_size else ""
    notes = ", ".join(filter(None, (told, left)))
    return f" at {found.sizes} ({notes})" if notes else f" at {found.sizes}"


def _why(found: Prediction) -> str:
    """Where the time goes: Casts, as a rule."""
    count = found.result.casts
    return f": {plural(count, 'Cast')} {'is a launch' if count == 1 else 'are launches'}" if count else ""
