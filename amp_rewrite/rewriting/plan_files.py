"""Plans as JSON: the decision on every unit and its reason, which can be replayed on the same model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.analysis.units import Unit, UnitGraph
from amp_rewrite.colouring.painting import Painting
from amp_rewrite.costs.flop_count import Flops
from amp_rewrite.errors import OptionError, PlanError
from amp_rewrite.files import reading
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
from amp_rewrite.rewriting import cast_sites, records
from amp_rewrite.rewriting.cast_sites import CastSite
from amp_rewrite.rewriting.decisions import Decision, Decisions
from amp_rewrite.rewriting.plan import Plan, PlannedCast, Rescaled, Storage
from amp_rewrite.rewriting.records import CastSiteRecord, Count, EntryRecord, PaintRecord

FORMAT = 4
"""The version of the file format; a file of another version is refused."""


@dataclass(frozen=True, kw_only=True)
class _UnitRecord(EntryRecord, PaintRecord):
    """The decision on a unit: its identifiers, its paint and its entry."""

    node: str | None
    operator: str
    variable: str
    defs: tuple[str, ...]
    flops: Count | None


@dataclass(frozen=True, kw_only=True)
class _CastRecord(CastSiteRecord):
    value: str | None
    to: str
    uses: Count


@dataclass(frozen=True)
class _StoredRecord:
    value: str | None
    form: Storage
    saturates: Count
    flushes: Count


@dataclass(frozen=True)
class _FormRecord:
    """The fields of a form that no other record of a plan has."""

    fold: bool
    raise_opset: bool
    idioms: bool
    kept_nodes: tuple[str, ...]
    kept_operators: tuple[str, ...]
    opset: int | None = None
    keep_overridable: bool = False


@dataclass(frozen=True)
class _PlanRecord:
    format: int
    model: str
    half: str
    target: str
    io: IOTypes
    keep_io: tuple[str, ...]
    keep_functions: bool
    form: _FormRecord
    assumptions: tuple[str, ...]
    units: tuple[_UnitRecord, ...]
    casts: tuple[_CastRecord, ...]
    stored: tuple[_StoredRecord, ...]
    rescaled: Rescaled | None = None
    storage_only: bool = False
    op_types: Mapping[str, str] = field(default_factory=dict[str, str])


def is_plan(path: Path) -> bool:
    """Return whether a file is JSON, as a plan is and no model, by its suffix or its first character."""
    try:
        with reading.open_regular(path) as file:
            return path.suffix == ".json" or file.read(_SHORT).lstrip(_BLANK).startswith(b"{")
    except OSError:
        return path.suffix == ".json"


_SHORT, _BLANK = 64, b"\xef\xbb\xbf \t\r\n"
"""Bytes that are read, and those before the first character: of a byte order mark, and white space."""


def dump(
    graph: UnitGraph,
    painting: Painting,
    plan: Plan,
    options: Options,
    flops: Flops | None = None,
    assumptions: tuple[str, ...] = (),
) -> str:
    """Return a plan as JSON text; `options` are those of its run, `flops` those of the nodes, and
    `assumptions` those behind these numbers.

    Only `units`, which holds the decisions, the fields above it and `rescaled` count when the plan is loaded;
    a `colour` may be edited. `casts` and `stored` are derived from them and are for the reader, as are the
    `why`, `defs` and `flops` of a unit.
    """
    form = options.form
    content = {
        "format": FORMAT,
        "model": fingerprint(graph.root),
        "half": plan.half.name,
        "target": options.target.name,
        "io": options.io.value,
        "keep_io": list(options.keep_io),
        "keep_functions": options.keep_functions,
        "form": {
            "fold": form.fold,
            "raise_opset": form.raise_opset,
            "idioms": form.idioms,
            "kept_nodes": list(form.kept_nodes),
            "kept_operators": [schema.written(*operator) for operator in form.kept_operators],
            "opset": form.opset,
            "keep_overridable": form.keep_overridable,
        },
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
        "rescaled": plan.rescaled and records.plain(plan.rescaled),
        "storage_only": options.storage_only,
        "op_types": dict(options.op_types),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cast(graph: UnitGraph, cast: PlannedCast) -> dict[str, Any]:
    site = cast_sites.planned(graph, cast)
    return {
        "value": cast.value.name,
        "to": element_type_name(cast.dtype),
        "uses": len(cast.uses),
        "origin": site.origin.value,
        "producer": site.producer,
        "consumers": list(site.consumers),
        "is_output": site.is_output,
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
        **records.describe_entry(entry),
        "why": in_words(entry.evidence),
        "defs": [value.name for value in unit.node.outputs if value.name],
        "flops": flops,
    }


def _operator(node: ir.Node) -> str:
    return schema.written(node.domain, node.op_type)


def fingerprint(root: ir.Graph) -> str:
    """Return a digest of a model's structure: nodes, names, attributes' names, and stored tensors' types and
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
    """A loaded plan: its run's options, the fingerprint of the model, and a record of every unit and Cast."""

    half: Half
    target: Target
    io: IOTypes
    keep_io: tuple[str, ...]
    form: Form
    model: str
    units: tuple[_UnitRecord, ...]
    casts: tuple[_CastRecord, ...]
    where: str
    assumptions: tuple[str, ...]
    rescaled: Rescaled | None
    storage_only: bool
    op_types: Mapping[str, str]

    def over(self, options: Options) -> Options:
        """Return the options with all that the plan decides taken from it."""
        return replace(
            options,
            half=self.half,
            target=self.target,
            io=self.io,
            keep_io=self.keep_io,
            keep_functions=self.form.keep_functions,
            fold=self.form.fold,
            keep_opset=not self.form.raise_opset and self.form.opset is None,
            opset=self.form.opset,
            keep_overridable=self.form.keep_overridable,
            gate=False,
            storage_only=self.storage_only,
            op_types=self.op_types,
        )

    def entries(self, graph: UnitGraph) -> tuple[Entry, ...]:
        """Return the entries of this model's units; PlanError when the plan was made for another model."""
        rows = self.units
        same = len(rows) == len(graph.units) and self.model == fingerprint(graph.root)
        if not same or not all(map(_is_of, rows, graph.units)):
            raise PlanError(
                "this plan was made for another model",
                where=self.where,
                remedy="make a new one with `Analysis.save_plan`",
            )
        return tuple(row.entry for row in rows)

    def painting(self, graph: UnitGraph, entries: tuple[Entry, ...]) -> Painting:
        """Return the saved colours of this model's units; PlanError when they cannot be."""
        painting = Painting(tuple(row.paint for row in self.units), entries)
        self._refuse_impossible(graph, painting)
        return painting

    def decisions(self) -> tuple[Decisions, Mapping[Hashable, int]]:
        """Return the decisions, independent of the model, and the FLOPs of their nodes by Decision.node.

        Nodes without FLOPs in the plan are absent.
        """
        rows = list(zip(_number_nodes(self.units), self.units, strict=True))
        units = tuple(_decision(node, row) for node, row in rows)
        flops = {node: row.flops for node, row in rows if row.flops is not None}
        return Decisions(units, tuple(map(_cast_site, self.casts))), flops

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


def _is_of(row: _UnitRecord, unit: Unit) -> bool:
    key = row.node, row.operator, row.variable
    return key == (unit.node.name, _operator(unit.node), str(unit.var))


def _number_nodes(rows: tuple[_UnitRecord, ...]) -> Iterator[Hashable]:
    """Yield the node number of each row: the units of a node are adjacent, each with another variable."""
    number, variables, last = 0, set[str](), None
    for row in rows:
        identity = row.node, row.operator, row.defs
        if identity != last or row.variable in variables:
            number, variables = number + 1, set()
        last = identity
        variables.add(row.variable)
        yield number


def _decision(node: Hashable, row: _UnitRecord) -> Decision:
    return Decision(
        node=node,
        operator=row.operator,
        name=row.node or "",
        defs=row.defs,
        variable=row.variable,
        paint=row.paint,
        entry=row.entry,
    )


def _cast_site(row: _CastRecord) -> CastSite:
    value = row.value or ""
    return row.site(None, (value, f"{value}__{row.to}"), row.to, is_new=True)


def load(path: str | Path) -> SavedPlan:
    """Read a plan that `Analysis.save_plan` or --save-plan saved, for `rewrite(..., replay=plan)`.

    Raises PlanError when it is missing, damaged, or of another format.

    Examples:
        >>> import tempfile
        >>> from amp_rewrite import analyze, load_plan
        >>> from amp_rewrite.demo import network
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     analyze(network()).save_plan(f'{folder}/plan.json')
        ...     load_plan(f'{folder}/plan.json').half.name
        'float16'
    """
    file = arguments.path("path", path)
    try:
        text = reading.read(file)
    except OSError as error:
        raise PlanError(reading.problem(error), where=path, remedy=reading.remedy(error)) from error
    return parse(text, path)


def parse(text: bytes | str, where: str | Path) -> SavedPlan:
    """Return the plan in a JSON text, as `dump` returns it; PlanError, at `where`, as for `load`."""
    try:
        return _saved(records.parse(text, _PlanRecord, FORMAT), str(where))
    except (ValueError, OptionError) as error:
        raise PlanError(f"is not a valid plan ({error})", where=where, remedy=_AGAIN) from error


_AGAIN = "make it again with `Analysis.save_plan`"


def _saved(content: _PlanRecord, where: str) -> SavedPlan:
    count = len(content.units)
    for number, unit in enumerate(content.units):
        records.refuse_dangling([unit.cause], count, f"units[{number}].cause")
    for number, cast in enumerate(content.casts):
        records.refuse_dangling([cast.producer, *cast.consumers], count, f"casts[{number}]")
    half, target = halves.named(content.half), targets.named(content.target)
    form = Form(
        half=half,
        target=target,
        keep_functions=content.keep_functions,
        fold=content.form.fold,
        raise_opset=content.form.raise_opset,
        idioms=content.form.idioms,
        kept_nodes=content.form.kept_nodes,
        kept_operators=tuple(map(schema.parse, content.form.kept_operators)),
        opset=content.form.opset,
        keep_overridable=content.form.keep_overridable,
    )
    return SavedPlan(
        half=half,
        target=target,
        io=content.io,
        keep_io=content.keep_io,
        form=form,
        model=content.model,
        units=content.units,
        casts=content.casts,
        where=where,
        assumptions=content.assumptions,
        rescaled=content.rescaled,
        storage_only=content.storage_only,
        op_types=content.op_types,
    )
