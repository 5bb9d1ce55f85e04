"""What becomes of a case: rewritten, checked, loaded, and compared with half rounded as a GPU rounds it."""

import enum
from dataclasses import dataclass

import numpy as np
import onnx

import amp_rewrite
from amp_rewrite import pipeline
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.policy.evidence import in_words
from amp_rewrite.policy.options import Level
from amp_rewrite.running.sessions import Device
from tests.sessions import Runtime

CLOSE = 1e-2
"""Absolute and relative: half has 11 bits, and a case adds up a few numbers."""


class Outcome(enum.Enum):
    """How a case came out. What follows FAR is a fault; what is FAR has to have a reason in its numbers."""

    GOOD = "computes in half, and is close"
    UNCHANGED = "stays as it is"
    IDLE = "changed, though nothing computes in half"
    UNRUN = "valid; onnxruntime does not run the original, or not right"
    FAR = "not close"
    REFUSED = "refused"
    INVALID = "invalid"
    UNPROVED = "not proved to be the original but for precision"
    UNSTABLE = "changed again by a second rewrite"
    UNLOADABLE = "does not run any more"
    OTHER_BORDERS = "other inputs and outputs"


@dataclass(frozen=True)
class Judged:
    """The outcome of a case, and why: what stays float32, or what is wrong."""

    outcome: Outcome
    why: str = ""


class Originals(Runtime):
    """onnxruntime, which runs an original once for all that is asked for."""

    def __init__(self):
        super().__init__()
        self._ran = {}

    def original(self, case):
        """The outputs of a case as it came."""
        key = case.name, case.data
        if key not in self._ran:
            self._ran[key] = self.run(case.data, case.feeds)
        return self._ran[key]


def judge(case, asked, runtime):
    """One case, from rewrite to comparison; again with what a run shows, as the command line does it."""
    first = _judge(case, asked, runtime, {})
    if first.outcome is not Outcome.FAR or asked.level is not Level.DEFAULT:
        return first
    return _judge(case, asked, runtime, amp_rewrite.observe(case.proto, [case.feeds], device=Device.CPU))


def _judge(case, asked, runtime, seen):
    try:
        analyses = []
        once = pipeline.rewrite(case.data, asked, observed=seen, on_plan=analyses.append).model
        if once == case.data:
            return Judged(Outcome.UNCHANGED, _reason(analyses[0]))
        again = pipeline.rewrite(once, asked, observed=dict(seen)).model  # of another model
    except AmpRewriteError as error:
        return Judged(Outcome.REFUSED, str(error))
    complained = complaint(onnx.ModelProto.FromString(once))
    if complained and not complaint(case.proto):
        return Judged(Outcome.INVALID, complained)
    proof = amp_rewrite.certify(case.data, once)
    if not proof.proved and amp_rewrite.certify(case.data, case.data).proved:
        return Judged(Outcome.UNPROVED, str(proof))
    if again != once:
        return Judged(Outcome.UNSTABLE)
    judged = _compared(case, once, runtime)
    has_half = any(analyses[0].painting.halves)
    idle = judged.outcome is Outcome.GOOD and not has_half
    return Judged(Outcome.IDLE) if idle else judged


def complaint(model):
    """What onnx's checker has against a model, in full; nothing if it is valid."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        return " ".join(str(error).split())[:200]
    return ""


def _reason(analysis):
    """Why nothing became half: what is said of the first part that could have, or that there is none."""
    entries = [analysis.painting.entries[unit.index] for unit in analysis.graph.units]
    return in_words(entries[0].evidence) if entries else "nothing in it computes in float32"


def _compared(case, once, runtime):
    """How a rewritten case runs, beside the original: as it is, and emulated."""
    before = runtime.original(case)
    if before.failure or not _is_right(case, before):
        return Judged(Outcome.UNRUN, before.failure)
    loaded = runtime.load(once)
    if loaded.failure:
        return Judged(Outcome.UNLOADABLE, loaded.failure)
    if (loaded.inputs, loaded.outputs) != (before.inputs, before.outputs):
        return Judged(Outcome.OTHER_BORDERS, f"{loaded.inputs} {loaded.outputs}")
    after = runtime.run(amp_rewrite.emulate(once).SerializeToString(), case.feeds)
    if after.failure:
        return Judged(Outcome.UNLOADABLE, f"emulated: {after.failure}")
    far = [name for name, value in before.values.items() if not close(value, after.values[name])]
    return Judged(Outcome.FAR, f"{', '.join(far)}") if far else Judged(Outcome.GOOD)


def _is_right(case, ran):
    """Whether the original gives what onnx expects, where onnx says what that is."""
    return all(map(close, case.expected, ran.values.values()))


def close(before, after):
    """Whether two outputs are near each other; what is no float array must be equal."""
    if isinstance(before, list):
        return len(before) == len(after) and all(map(close, before, after))
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(close(np.asarray(before[k]), after[k]) for k in before)
    if not isinstance(before, np.ndarray) or before.dtype.kind != "f":
        return np.array_equal(before, after)
    return np.allclose(after, before, rtol=CLOSE, atol=CLOSE, equal_nan=True)
