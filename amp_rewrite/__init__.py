"""amp-rewrite: a mixed-precision compiler pass over ONNX models."""

from amp_rewrite.pipeline import analyze, rewrite

__all__ = ["analyze", "rewrite"]
