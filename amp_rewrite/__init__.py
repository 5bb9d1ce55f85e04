"""amp-rewrite: a mixed-precision compiler pass over ONNX models.

`rewrite` rewrites a model, `analyze` decides and changes nothing, `verify` compares two models on
samples, `observe` looks at the values of a model on samples (for `rewrite(..., seen=...)`), `emulate` makes a
float32 model that rounds wherever a model is half, `measure_coverage` counts what of any model is half, and
`AmpPass` is the rewrite as a pass of onnx-ir. `Options` and `Pins` say how.
"""

from amp_rewrite.analysis import Analysis
from amp_rewrite.options import Options, Pins
from amp_rewrite.passes import AmpPass
from amp_rewrite.pipeline import Result, analyze, rewrite
from amp_rewrite.reporting.coverage.counts import Coverage
from amp_rewrite.reporting.coverage.measuring import measure as measure_coverage
from amp_rewrite.running.emulation import emulate
from amp_rewrite.running.observation import observe
from amp_rewrite.running.verification import Verdict, verify

__all__ = [
    "AmpPass",
    "Analysis",
    "Coverage",
    "Options",
    "Pins",
    "Result",
    "Verdict",
    "analyze",
    "emulate",
    "measure_coverage",
    "observe",
    "rewrite",
    "verify",
]
