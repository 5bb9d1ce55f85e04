"""A model with its types, shapes and arithmetic: what advice is given on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.arithmetic import work
from amp_rewrite.arithmetic.work import Work
from amp_rewrite.element_types import Types

Dims = Mapping[str, int]
"""Sizes for dimensions that a model leaves open, by symbol or as `input:axis`; others count as 1."""


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
