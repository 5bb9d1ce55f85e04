"""Plans as JSON: what was decided for every unit, and why; read back, they are carried out again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.analysis.units import Unit, UnitGraph
from amp_rewrite.colouring.classification import BY_SCHEMA
from amp_rewrite.colouring.rules import Colour, Paint, Painting, Rule
from amp_rewrite.errors import OptionError, PlanError
from amp_rewrite.files import reading
from amp_rewrite.flops.flop_count import Flops
from amp_rewrite.model.traversal import graphs
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy import targets
from amp_rewrite.policy.operator_lists import Entry, Kind
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.policy.targets import Target
from amp_rewrite.rewriting import cast_sites, plan_schema
from amp_rewrite.rewriting.plan import Plan, PlannedCast


def dump(
    graph: UnitGraph,
    painting: Painting,
    plan: Plan,
    model: ir.Model,
    options: Options,
    flops: Flops | None = None,
    assumptions: tuple[str, ...] = (),
) -> str:
    """A plan as JSON text; `options` are those of the run that made it, `flops` those of the nodes, and
    `assumptions` what these rest on.

    `units` holds the decisions, and with what stands above it counts when the plan is read back: a `colour`
    may be edited. `casts` and `stored` say what follows from them, and what a unit `makes` and its `flops`
    are for the reader as well.
    """
    content = {
        "format": plan_schema.FORMAT,
        "model": fingerprint(model),
        "half": plan.half.name,
        "target": options.target.name,
        "io": options.io.value,
        "keep_io": list(options.keep_io),
        "keep_functions": options.keep_functions,
        "assumptions": list(assumptions),
        "units": [_unit(unit, painting, (flops or {}).get(unit.node)) for unit in graph.units],
        "casts": [_cast(graph, cast) for cast in plan.casts],
        "stored": [
            {
                "value": storing.stored.value.name,
                "form": storing.storage.value,
                "saturates": storing.saturates,
                "flushes": storing.flushes,
            }
            for storing in plan.tensors
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cast(graph: UnitGraph, cast: PlannedCast) -> dict[str, Any]:
    crossing = cast_sites.planned(graph, cast)
    return {
        "value": cast.value.name,
        "to": cast.dtype.name.lower(),
        "reads": len(cast.uses),
        "origin": crossing.origin.value,
        "maker": crossing.producer,
        "readers": list(crossing.consumers),
        "leaves": crossing.is_output,
    }


def _unit(unit: Unit, painting: Painting, flops: int | None) -> dict[str, Any]:
    paint, entry = painting.paints[unit.index], painting.entries[unit.index]
    return {
        "node": unit.node.name,
        "operator": _operator(unit.node),
        "variable": str(unit.var),
        "colour": paint.colour.value,
        "rule": paint.rule.value,
        "cause": paint.cause,
        "kind": entry.kind.value,
        "reason": entry.reason,
        "follow": entry.follow,
        "source": entry.source,
        "makes": [value.name for value in unit.node.outputs if value.name],
        "flops": flops,
    }


def _operator(node: ir.Node) -> str:
    return schema.written(node.domain, node.op_type)


def fingerprint(model: ir.Model) -> str:
    """A digest of a model's structure: nodes, names, attributes' names, and stored tensors' types and
    shapes, but not their numbers.
    """
    digest = hashlib.sha256()
    for line in _structure(model):
        digest.update(line.encode(errors="surrogatepass"))
    return digest.hexdigest()


def _structure(model: ir.Model) -> Iterator[str]:
    for graph in graphs(model.graph):
        yield f"graph {[v.name for v in graph.inputs]} {[v.name for v in graph.outputs]}\n"
        for value in graph.initializers.values():
            tensor = value.const_value
            yield f"tensor {value.name} {tensor and tensor.dtype} {tensor and tensor.shape}\n"
        for node in graph:
            inputs = [value and value.name for value in node.inputs]
            outputs = [value.name for value in node.outputs]
            yield f"{_operator(node)} {node.name} {inputs} {outputs} {list(node.attributes)}\n"


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan that was read back: the run it was made in (see Options), the model it belongs to, and a row
    for every unit.
    """

    half: Half
    target: Target
    io: IOTypes
    keep_io: tuple[str, ...]
    keep_functions: bool
    model: str
    units: tuple[Mapping[str, Any], ...]
    casts: tuple[Mapping[str, Any], ...]
    where: str
    assumptions: tuple[str, ...] = ()

    def over(self, options: Options) -> Options:
        """The options with all that the plan decides taken from it."""
        return replace(
            options,
            half=self.half,
            target=self.target,
            io=self.io,
            keep_io=self.keep_io,
            keep_functions=self.keep_functions,
        )

    def painting(self, graph: UnitGraph, model: ir.Model) -> Painting:
        """The saved decisions for this model's units.

        Raises PlanError when the plan was made for another model, or asks for what cannot be.
        """
        rows = self.units
        same = len(rows) == len(graph.units) and self.model == fingerprint(model)
        if not same or not all(map(_is_of, rows, graph.units)):
            raise PlanError(
                "this plan was made for another model",
                where=self.where,
                remedy="make a new one with `plan_files.dump`",
            )
        painting = Painting(tuple(map(paint, rows)), tuple(map(entry, rows)))
        self._refuse_impossible(graph, painting)
        return painting

    def _refuse_impossible(self, graph: UnitGraph, painting: Painting) -> None:
        for unit in graph.units:
            able = any(self.half.tensor in kind for kind in unit.allowed)
            bound = painting.entries[unit.index].source == BY_SCHEMA
            if painting.is_half(unit.index) and (bound or not able):
                raise PlanError(
                    f"{unit} cannot be {self.half.name}: its schema does not allow it",
                    where=self.where,
                    remedy='set its colour to "full"',
                )
        for tie in graph.ties:
            if len({painting.is_half(unit) for unit in tie}) > 1:
                raise PlanError(
                    f"{' and '.join(str(graph.units[u]) for u in tie)} must have one colour",
                    where=self.where,
                    remedy="change the colour of all of them",
                )


def _named(row: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return row["node"], row["operator"], row["variable"]


def _is_of(row: Mapping[str, Any], unit: Unit) -> bool:
    return _named(row) == (unit.node.name, _operator(unit.node), str(unit.var))


def paint(row: Mapping[str, Any]) -> Paint:
    """The paint that a row holds."""
    return Paint(Colour(row["colour"]), Rule(row["rule"]), row["cause"])


def entry(row: Mapping[str, Any]) -> Entry:
    """The entry that a row holds."""
    return Entry(Kind(row["kind"]), row["reason"], row["follow"], row["source"])


def load(path: str | Path) -> SavedPlan:
    """Reads a saved plan; PlanError when it is missing, damaged, or of another format."""
    file = arguments.path("path", path)
    try:
        content = json.loads(reading.read(file).decode())
    except OSError as error:
        raise PlanError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"is no JSON ({error})", where=path, remedy=_AGAIN) from error
    try:
        plan_schema.check(content)
        return _saved(content, str(path))
    except (ValueError, OptionError) as error:
        raise PlanError(f"is no plan ({error})", where=path, remedy=_AGAIN) from error


_AGAIN = "make it again with `plan_files.dump`"


def _saved(content: Mapping[str, Any], where: str) -> SavedPlan:
    return SavedPlan(
        half=halves.named(content["half"]),
        target=targets.named(content["target"]),
        io=IOTypes(content["io"]),
        keep_io=tuple(content["keep_io"]),
        keep_functions=content["keep_functions"],
        model=content["model"],
        units=tuple(content["units"]),
        casts=tuple(content.get("casts", ())),
        where=where,
        assumptions=tuple(content.get("assumptions", ())),
    )
