"""Type checks of the arguments of `rewrite` and `analyze`."""

from __future__ import annotations

import os
from collections.abc import Mapping

import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.analysis.observed import Extremes
from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.onnx_types import element_types, schema
from amp_rewrite.operators import declared_types
from amp_rewrite.policy.options import Options
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.rewriting.plan_files import SavedPlan
from amp_rewrite.text import suggestion


def check_types(
    source: object, options: object, replay: object, observed: object, imprecise_outputs: object
) -> None:
    """Raise ModelError or OptionError, which names the argument, for a value of a wrong type."""
    if isinstance(source, (str, os.PathLike)) and not _is_valid_path(source):
        raise ModelError(
            f"{arguments.describe(os.fspath(source))} is not a model", remedy="give the path of a file"
        )
    if options is not None:
        arguments.instance("options", options, Options, "write Options(...)")
    if replay is not None:
        remedy = "read a saved plan with amp_rewrite.load_plan"
        arguments.instance("replay", replay, SavedPlan, remedy)
        _refuse_overruled(options)
    if observed is not None:
        remedy = "give what amp_rewrite.observe returned"
        for name, value in arguments.mapping(
            "observed", observed, "observed=amp_rewrite.observe(model, samples)"
        ).items():
            arguments.instance(f'observed["{name}"]', value, Extremes, remedy)
    if imprecise_outputs is not None:
        for name, cost in arguments.mapping(
            "imprecise_outputs", imprecise_outputs, 'imprecise_outputs={"waveform": 0.07}'
        ).items():
            _refuse_no_number(f'imprecise_outputs["{name}"]', cost)


def _refuse_no_number(name: str, value: object) -> None:
    if not arguments.is_number(value) or not value >= 0:
        remedy = "give the error of rounding that output alone"
        raise arguments.refused(name, f"{arguments.describe(value)} is not a number from 0 up", remedy)


def _refuse_overruled(options: object) -> None:
    """Raise OptionError for options that conflict with the decisions of a saved plan."""
    plain = Options()
    for name in ("lists", "level", "follow", "pins"):
        if options is not None and getattr(options, name) != getattr(plain, name):
            raise OptionError(
                f"`Options.{name}` has no effect beside a saved plan: the plan has decided",
                remedy="leave one of them out, or edit the plan",
            )


def _is_valid_path(path: object) -> bool:
    return arguments.is_path(path) and bool(os.fspath(path)) and not arguments.flaw_of(path)


def check_op_types(model: ir.Model, options: Options) -> Mapping[str, str]:
    """Return the types that its metadata, lists and options declare for the custom operators of a model.

    Raises OptionError for an operator in `Options.op_types`, or a port of one, that the model lacks.
    """
    declared = {**element_types.declared_in(model), **options.operator_lists().op_types}
    if not declared:
        return declared
    ports: dict[str, set[int]] = {}
    functions = {(domain, name) for domain, name, _ in model.functions}
    for node in (node for graph in (model.graph, *model.functions.values()) for node in graph.all_nodes()):
        if not schema.is_known(node.domain, node.op_type) and (node.domain, node.op_type) not in functions:
            both = {*range(len(node.inputs)), *(~i for i in range(len(node.outputs)))}
            ports.setdefault(schema.written(node.domain, node.op_type), set()).update(both)
    for operator, types in options.op_types.items():
        where = f"`Options.op_types` {operator}={types}"
        if operator not in ports:
            remedy = suggestion(operator, ports) if ports else ""
            raise OptionError("the model has no such custom operator", where=where, remedy=remedy)
        for port in declared_types.parse(types).ports.keys() - ports[operator]:
            name = f"IN{port}" if port >= 0 else f"OUT{~port}"
            raise OptionError(f"there is no {name}; they are counted from IN0 and OUT0", where=where)
    return {operator: declared[operator] for operator in ports if operator in declared}


def refuse_other(observed: object, model: ir.Model) -> None:
    """Raise OptionError for observations of another model."""
    if isinstance(observed, Observed) and observed.model != plan_files.fingerprint(model.graph):
        raise OptionError(
            "was observed on another model",
            where=observed.where,
            remedy="observe the model that you rewrite",
        )


def check_output(source: object, output: object, *, in_place: object) -> None:
    """Raise OptionError for an output that is not a path, and for `in_place` without a file as input."""
    is_path = isinstance(source, (str, os.PathLike))
    if arguments.flag("in_place", in_place) and not is_path:
        raise OptionError("in_place is for a path; other models are returned")
    if output is not None and is_path:
        arguments.path("output", output)
