"""Whatever holds decisions -> why each part of a model is half or float32: a model, its result, or a plan."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from amp_rewrite import annotations, model_io, plan_files, saved_decisions, shape_inference
from amp_rewrite.arithmetic import work
from amp_rewrite.arithmetic.work import Work
from amp_rewrite.decisions import Decisions
from amp_rewrite.element_types import Types
from amp_rewrite.errors import ModelError
from amp_rewrite.pipeline import Analysis
from amp_rewrite.reporting import causes, remedies
from amp_rewrite.reporting.causes import RootCause

Dims = Mapping[str, int]
"""Sizes for dimensions that a model leaves open, by symbol or as `input:axis`; others count as 1."""


class Source(enum.Enum):
    """What decisions were read from: an ANALYSIS made now, the METADATA of a rewritten model, or a PLAN."""

    ANALYSIS = "analysis"
    METADATA = "metadata"
    PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why each part of a model is half or float32.

    `model` and `work` are None where only a plan is at hand. `warnings` say what a reader should know.
    """

    source: Source
    decisions: Decisions
    causes: tuple[RootCause, ...]
    model: ir.Model | None = None
    types: Types | None = None
    work: Work | None = None
    warnings: tuple[str, ...] = ()


def of_plan(path: Path) -> Explanation:
    """What a saved plan says without its model; PlanError when it is missing or damaged."""
    saved = saved_decisions.of(plan_files.load(path))
    return Explanation(Source.PLAN, saved.decisions, _guessed(saved.decisions, saved.flops))


def of_analysis(made: Analysis, dims: Dims, *, replayed: bool = False) -> Explanation:
    """What an analysis decided; with a plan that was carried out again (`replayed`), no flag was tried.

    Raises OptionError when `dims` names what is not open.
    """
    model, types = made.loaded.model, made.graph.types
    counted = work.count(model, types, dims)
    decisions = made.decisions()
    found = _guessed(decisions, counted.flops) if replayed else made.causes(counted.flops)
    source = Source.PLAN if replayed else Source.ANALYSIS
    return Explanation(source, decisions, found, model, types, counted, made.warnings)


def of_model(path: Path, dims: Dims, analyze: Callable[[], Analysis]) -> Explanation:
    """What a rewritten model carries; of any other, the analysis that `analyze` makes.

    Raises ModelError, and OptionError when `dims` names what is not open.
    """
    if not _mentions_us(path):
        return of_analysis(analyze(), dims)
    model = model_io.load(path).model
    try:
        found = annotations.read(model)
    except ModelError as error:
        made = of_analysis(analyze(), dims)
        return replace(made, warnings=(*made.warnings, f"{error}; what follows is a new analysis"))
    if found is None:
        return of_analysis(analyze(), dims)
    types = shape_inference.types(model)
    counted = work.count(model, types, dims)
    return Explanation(Source.METADATA, found, _guessed(found, counted.flops), model, types, counted)


def _mentions_us(path: Path) -> bool:
    """Whether decisions can be in a file at all; much quicker than reading the model for them."""
    try:
        return annotations.KEY.encode() in path.read_bytes()
    except OSError:
        return False  # who reads it as a model says what is wrong


def _guessed(decisions: Decisions, flops: causes.Flops) -> tuple[RootCause, ...]:
    found = causes.find(decisions, flops)
    return tuple(replace(cause, remedy=remedies.untried(cause)) for cause in found)
