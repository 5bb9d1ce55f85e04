"""A model with its types, shapes and arithmetic: what advice is given on."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.flops import flop_count as work
from amp_rewrite.flops.flop_count import Work
from amp_rewrite.flops.opened import Dims
from amp_rewrite.onnx_types.element_types import Types


@dataclass(frozen=True, slots=True)
class Measured:
    """A model whose functions are inlined, and its `work` with these `dims`."""

    model: ir.Model
    types: Types
    dims: Dims
    work: Work


def measure(model: ir.Model, types: Types, dims: Dims) -> Measured:
    """Counts what a model computes; OptionError when `dims` names what is not open."""
    return Measured(model, types, dims, work.count(model, types, dims))
