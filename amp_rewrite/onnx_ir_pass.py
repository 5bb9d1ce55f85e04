"""The rewrite as a pass of onnx-ir."""

from __future__ import annotations

import onnx_ir as ir

from amp_rewrite import arguments, pipeline
from amp_rewrite.policy.options import Options


class AmpPass(ir.passes.FunctionalPass):
    """Rewrites a model to mixed precision; the input model is not changed.

    Raises OptionError for `options` of another type and, when called, the errors of `amp_rewrite.rewrite`;
    onnx-ir's `Sequential` wraps them in a PassError.

    Examples:
        >>> import onnx_ir
        >>> from amp_rewrite import AmpPass
        >>> from amp_rewrite.demo import network
        >>> AmpPass()(onnx_ir.from_proto(network())).modified
        True
    """

    def __init__(self, options: Options | None = None) -> None:
        super().__init__()
        if options is not None:
            arguments.instance("options", options, Options, "write AmpPass(Options(...))")
        self.options = options

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Return the rewritten model, and whether anything changed.

        Examples:
            >>> import onnx_ir
            >>> from amp_rewrite import AmpPass, Options
            >>> from amp_rewrite.demo import network
            >>> AmpPass(Options(half="bfloat16")).call(onnx_ir.from_proto(network())).modified
            True
        """
        arguments.instance("model", model, ir.Model, "give an onnx_ir.Model")
        result = pipeline.rewrite(model, self.options)
        return ir.passes.PassResult(result.model, modified=result.report.changed)
