"""amp-rewrite: a mixed-precision compiler pass over ONNX models.

`rewrite` rewrites a model, `analyze` decides and changes nothing, `emulate` makes a float32 model that
rounds wherever a model is half, and `AmpPass` is the rewrite as a pass of onnx-ir.
"""

from amp_rewrite.passes import AmpPass
from amp_rewrite.pipeline import Analysis, Result, analyze, rewrite
from amp_rewrite.running.emulation import emulate

__all__ = ["AmpPass", "Analysis", "Result", "analyze", "emulate", "rewrite"]
