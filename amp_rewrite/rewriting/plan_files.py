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
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.errors import OptionError, PlanError
from amp_rewrite.files import reading
from amp_rewrite.flops.shapes import Flops
from amp_rewrite.model.traversal import graphs
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.onnx_types.element_types import element_type_name
from amp_rewrite.policy import targets
from amp_rewrite.policy.entries import Entry
from amp_rewrite.policy.evidence import Authority
from amp_rewrite.policy.form import Form
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.policy.reasons import in_words
from amp_rewrite.policy.targets import Target
from amp_rewrite.rewriting import cast_sites, decision_records, form_records, plan_schema
from amp_rewrite.rewriting.plan import Plan, PlannedCast


def dump(
    graph: UnitGraph,
    painting: Painting,
    plan: Plan,
    options: Options,
    flops: Flops | None = None,
    assumptions: tuple[str, ...] = (),
) -> str:
    """A plan as JSON text; `options` are those of the run that made it, `flops` those of the nodes, and
    `assumptions` what these rest on.

    `units` holds the decisions, and with what stands above it counts when the plan is read back: a `colour`
    may be edited. `casts` and `stored` say what follows from them; they are for the reader, as are the `why`
    of a unit, its `defs` and its `flops`.
    """
    content = {
        "format": plan_schema.FORMAT,
        "model": fingerprint(graph.root),
        "half": plan.half.name,
        "target": options.target.name,
        "io": options.io.value,
        "keep_io": list(options.keep_io),
        "keep_functions": options.keep_functions,
        "form": form_records.of(options.form),
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
    why = decision_records.of_cast_site(cast_sites.planned(graph, cast))
    return {"value": cast.value.name, "to": element_type_name(cast.dtype), "uses": len(cast.uses), **why}


def _unit(unit: Unit, painting: Painting, flops: int | None) -> dict[str, Any]:
    paint, entry = painting.paints[unit.index], painting.entries[unit.index]
    return {
        "node": unit.node.name,
        "operator": _operator(unit.node),
        "variable": str(unit.var),
        **decision_records.of_paint(paint),
        **decision_records.of_entry(entry),
        "why": in_words(entry.evidence),
        "defs": [value.name for value in unit.node.outputs if value.name],
        "flops": flops,
    }


def _operator(node: ir.Node) -> str:
    return schema.written(node.domain, node.op_type)


def fingerprint(root: ir.Graph) -> str:
    """A digest of a model's structure: nodes, names, attributes' names, and stored tensors' types and
    shapes, but not their numbers.
    """
    digest = hashlib.sha256()
    for line in _structure(root):
        digest.update(line.encode(errors="surrogatepass"))
    return digest.hexdigest()


def _structure(root: ir.Graph) -> Iterator[str]:
    for graph in graphs(root):
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
    form: Form
    model: str
    units: tuple[Mapping[str, Any], ...]
    casts: tuple[Mapping[str, Any], ...]
    where: str
    assumptions: tuple[str, ...]

    def over(self, options: Options) -> Options:
        """The options with all that the plan decides taken from it."""
        return replace(
            options,
            half=self.half,
            target=self.target,
            io=self.io,
            keep_io=self.keep_io,
            keep_functions=self.form.keep_functions,
            fold=self.form.fold,
            keep_opset=not self.form.raise_opset,
            gate=False,
        )

    def entries(self, graph: UnitGraph) -> tuple[Entry, ...]:
        """What was said of this model's units; PlanError when the plan was made for another model."""
        rows = self.units
        same = len(rows) == len(graph.units) and self.model == fingerprint(graph.root)
        if not same or not all(map(_is_of, rows, graph.units)):
            raise PlanError(
                "this plan was made for another model",
                where=self.where,
                remedy="make a new one with `plan_files.dump`",
            )
        return tuple(map(decision_records.entry, rows))

    def painting(self, graph: UnitGraph, entries: tuple[Entry, ...]) -> Painting:
        """The saved colours of this model's units; PlanError when they cannot be."""
        painting = Painting(tuple(map(decision_records.paint, self.units)), entries)
        self._refuse_impossible(graph, painting)
        return painting

    def _refuse_impossible(self, graph: UnitGraph, painting: Painting) -> None:
        for unit in graph.units:
            able = any(self.half.tensor in kind for kind in unit.allowed)
            bound = painting.entries[unit.index].authority is Authority.SCHEMA
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


def _is_of(row: Mapping[str, Any], unit: Unit) -> bool:
    named = row["node"], row["operator"], row["variable"]
    return named == (unit.node.name, _operator(unit.node), str(unit.var))


def load(path: str | Path) -> SavedPlan:
    """Reads a saved plan; PlanError when it is missing, damaged, or of another format."""
    file = arguments.path("path", path)
    try:
        text = reading.read(file)
    except OSError as error:
        raise PlanError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    return parse(text, path)


def parse(text: bytes | str, where: str | Path) -> SavedPlan:
    """The plan in a JSON text, as `dump` returns it; PlanError, at `where`, as for `load`."""
    try:
        content = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise PlanError(f"is not valid JSON ({error})", where=where, remedy=_AGAIN) from error
    try:
        plan_schema.check(content)
        return _saved(content, str(where))
    except (ValueError, OptionError) as error:
        raise PlanError(f"is not a valid plan ({error})", where=where, remedy=_AGAIN) from error


_AGAIN = "make it again with `plan_files.dump`"


def _saved(content: Mapping[str, Any], where: str) -> SavedPlan:
    half, target = halves.named(content["half"]), targets.named(content["target"])
    return SavedPlan(
        half=half,
        target=target,
        io=IOTypes(content["io"]),
        keep_io=tuple(content["keep_io"]),
        form=form_records.form(content["form"], half, target, keep_functions=content["keep_functions"]),
        model=content["model"],
        units=tuple(content["units"]),
        casts=tuple(content["casts"]),
        where=where,
        assumptions=tuple(content["assumptions"]),
    )
