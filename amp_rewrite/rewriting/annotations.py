"""The decisions of a rewrite in the metadata of its result, which can be explained without the original.

One entry, KEY, has the plan (`plan_files`) as JSON, compressed, with the names that nodes and values have in
the result, and the powers of two of all its rewrites. A record in each node would double the file.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import zlib
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import msgspec
import onnx_ir as ir

from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.model.output_paths import DECISIONS
from amp_rewrite.onnx_types import schema
from amp_rewrite.operators import declared_types
from amp_rewrite.rewriting import decisions, plan_files, records
from amp_rewrite.rewriting.decisions import Decisions
from amp_rewrite.rewriting.plan import Rescaled, Scaled
from amp_rewrite.rewriting.plan_files import PlanOptions, SavedPlan

TRAINING = "amp_rewrite.train."
"""The prefix of the metadata keys for the spec of a train step: loss, seed, state, grads."""

KEY = DECISIONS
"""The metadata key of a model under which the decisions are stored."""

LIMIT = 1 << 28
"""The bytes of a plan above which it is not decompressed: no model of one protobuf has as many names."""


def update(
    model: ir.Model, decided: Decisions, options: PlanOptions, rescaled: Rescaled | None
) -> tuple[str, ...]:
    """Write the decisions of a rewrite into its result, with those of an earlier one that still hold.

    Returns the warnings for the user.
    """
    parts = [rescaled or Rescaled(())]
    try:
        before = stored(model.metadata_props)
        if before is not None:
            decided = decisions.merged(_of_nodes(model, before), decided)
            parts.insert(0, before.rescaled or Rescaled(()))
        warnings: tuple[str, ...] = ()
    except ModelError as error:
        warnings = (f"what is left of an earlier rewrite is dropped: {error.problem}",)
    there = _in_model(model, decided)  # which has all names: the first output is that of its node
    short = (msgspec.structs.replace(each, node="", outputs=each.outputs[:1]) for each in there.all)
    plan = plan_files.of("", replace(there, all=tuple(short)), options, _joined(parts))
    model.metadata_props[KEY] = packed(plan)
    return warnings


def _joined(parts: Sequence[Rescaled]) -> Rescaled | None:
    """Return what several rewrites store times powers of two; the exponents of one value add up."""
    totals = Counter[tuple[str, str | None, int]]()
    for each in itertools.chain(*(part.values for part in parts)):
        totals[each.value, each.reader, each.port] += each.exponent
    values = tuple(Scaled(value, reader, port, e) for (value, reader, port), e in totals.items() if e)
    products = tuple(itertools.chain(*(part.products for part in parts)))
    norms = tuple(itertools.chain(*(part.norms for part in parts)))
    return Rescaled(values, products=products, norms=norms) if values else None


def packed(plan: SavedPlan) -> str:
    """Return a plan as the text of an entry."""
    text = json.dumps(records.plain(plan), separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode(), level=9)).decode()


def stored(metadata: Mapping[str, str]) -> SavedPlan | None:
    """Return the plan in the metadata of a model, None without one; raise ModelError when it is damaged."""
    if KEY not in metadata:
        return None
    try:
        text = zlib.decompressobj().decompress(base64.b64decode(metadata[KEY]), LIMIT)
        return plan_files.parse(text, KEY)
    except (ValueError, OptionError, zlib.error) as error:
        raise ModelError(
            f"the decisions in its metadata are damaged ({error})"[:200],
            remedy="rewrite the original again to have them",
        ) from error


def read(model: ir.Model) -> Decisions | None:
    """Return the decisions that a model carries; None when it carries none.

    Nodes removed or renamed since have none, and units that they caused have no cause.
    Raises ModelError when they are damaged.
    """
    plan = stored(model.metadata_props)
    return _of_nodes(model, plan) if plan is not None and plan.decisions else None


def rescaled(metadata: Mapping[str, str]) -> Rescaled:
    """Return what a model stores times powers of two; raise ModelError where that is damaged."""
    plan = stored(metadata)
    return Rescaled(()) if plan is None or plan.rescaled is None else plan.rescaled


def is_rescaled(metadata: Mapping[str, str]) -> bool:
    """Return whether a model says that it stores values times powers of two."""
    try:
        return bool(rescaled(metadata).values)
    except ModelError:
        return False


def _of_nodes(model: ir.Model, plan: SavedPlan) -> Decisions:
    """Return the decisions of a plan on nodes of a model, with all names. Outputs of one name, as in two
    branches, have it in the order of the model; several records can be of one node.
    """
    names: dict[Hashable, tuple[str, tuple[str, ...]]] = {}
    waiting: dict[tuple[str, str], deque[ir.Node]] = {}
    for node in model.graph.all_nodes():
        outputs = decisions.names_of_outputs(node)
        names[node] = (node.name or "", outputs)
        waiting.setdefault((schema.written(node.domain, node.op_type), outputs[0]), deque()).append(node)
    decided = plan.decided()
    found: dict[Hashable, ir.Node | None] = {}
    for number, decision in zip(decided.nodes, decided.all, strict=True):
        if number not in found:
            nodes = waiting.get((decision.operator, next(iter(decision.outputs), "")))
            found[number] = None if not nodes else nodes.popleft() if len(nodes) > 1 else nodes[0]
    there = _in_model(model, replace(decided, nodes=tuple(found[number] for number in decided.nodes)))
    named = (
        msgspec.structs.replace(decision, node=names[node][0], outputs=names[node][1])
        for node, decision in zip(there.nodes, there.all, strict=True)
    )
    return replace(there, all=tuple(named))


def _in_model(model: ir.Model, decided: Decisions) -> Decisions:
    """Return the decisions on the nodes of a model, in the order of these nodes, and its Casts."""
    there, nodes = tuple(model.graph.all_nodes()), decided.nodes
    place: dict[Hashable, int] = {node: place for place, node in enumerate(there)}
    casts = {value.name for node in there if node.op_type == "Cast" for value in node.outputs}
    units = sorted((u for u, node in enumerate(nodes) if node in place), key=lambda unit: place[nodes[unit]])
    return decided.of_units(units, (site for site in decided.cast_sites if site.output in casts))


def declare_types(model: ir.Model, op_types: Mapping[str, str]) -> None:
    """Record the declared types of operators in the metadata of a model."""
    if op_types:
        model.metadata_props[declared_types.KEY] = json.dumps(dict(op_types))


def forget_decisions(model: ir.Model) -> None:
    """Remove the decisions of a model whose types change; its powers of two still hold.

    What is damaged stays, for whoever reads it to say so.
    """
    with contextlib.suppress(ModelError):
        plan = stored(model.metadata_props)
        remove(model)
        if plan is not None and plan.rescaled is not None:
            model.metadata_props[KEY] = packed(msgspec.structs.replace(plan, decisions=(), casts=()))


def remove(model: ir.Model, *keys: str) -> None:
    """Remove the decisions from the metadata of a model, and what it has under other keys of ours."""
    for key in (KEY, *keys):
        model.metadata_props.pop(key, None)


def purpose_warnings(model: ir.Model) -> tuple[str, ...]:
    """Return a warning for a train step, which its metadata describe."""
    is_step = any(key.startswith(TRAINING) for key in model.metadata_props)
    scale = "its metadata describe a train step, which needs a loss scale: `amp-rewrite train` inserts it"
    return (scale,) if is_step else ()
