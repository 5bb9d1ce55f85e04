"""Parts of an operator that is written out, and the marking of their units.

    x / Sqrt(ReduceMean(x * x) + eps)        is an RMSNormalization, whose kernels compute this in float32
    0.5 * x * (1 + Erf(x / 1.414))           is a Gelu: all of it has one type, so that runtimes fuse it

What is one operator gets one decision. Its squares and sums would lose digits in half, and a Cast within it
would break the fusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from amp_rewrite.analysis import states
from amp_rewrite.analysis.idioms import gates, norms
from amp_rewrite.analysis.idioms.idiom import Alike, Idiom, Part, Spelled
from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model import patterns
from amp_rewrite.policy.options import Options


def mark(graph: UnitGraph, options: Options) -> UnitGraph:
    """Return the same graph with the parts of idioms marked, an edge from the data of each to its result, and
    ties.

    A unit in several idioms gets the first of INNER, RESULT and OUTER that it has in any of them.
    """
    graph = replace(graph, norms=tuple(norms.find(graph)))
    idioms = [*_find(graph, options)]
    return _Marking(graph, idioms, options).marked() if idioms else graph


def _find(graph: UnitGraph, options: Options) -> Iterator[Idiom]:
    """Yield the idioms of a model for these options; linear in the nodes, and the same for any order of
    independent nodes.
    """
    yield from norms.idioms(graph.norms, graph, options)
    yield from norms.find_groups(graph)
    yield from gates.find_activations(graph, options.half)


class _Marking:
    def __init__(self, graph: UnitGraph, idioms: Sequence[Idiom], options: Options) -> None:
        self._graph, self._idioms = graph, idioms
        self._halved = states.half_names(states.borders(graph.root, graph.types), options)
        self._entering, self._leaving = frozenset(graph.root.inputs), frozenset(graph.root.outputs)
        self._units: dict[ir.Node, list[int]] = {}
        nodes = {node for idiom in idioms for node in (*idiom.inner, *idiom.outer)}
        for unit in graph.units:
            if unit.node in nodes:
                self._units.setdefault(unit.node, []).append(unit.index)

    def marked(self) -> UnitGraph:
        graph = self._graph
        predecessors, successors = list(graph.predecessors), list(graph.successors)
        for producer, result in self._entrances():
            if producer not in predecessors[result]:
                predecessors[result] = [*predecessors[result], producer]
                successors[producer] = [*successors[producer], result]
        outer = (
            self._making((*(idiom.inner if idiom.has_one_type else ()), *idiom.outer))
            for idiom in self._idioms
        )
        return replace(
            graph,
            predecessors=predecessors,
            successors=successors,
            ties=(*graph.ties, *(units for units in outer if len(units) > 1)),
            spelled=self._spelled(),
            alike=tuple(self._alike(*each) for each in self._fused()),
        )

    def _of(self, nodes: Iterable[ir.Node]) -> tuple[int, ...]:
        return tuple(unit for node in nodes for unit in self._units.get(node, ()))

    def _making(self, nodes: Iterable[ir.Node]) -> tuple[int, ...]:
        """Return the units of these nodes that produce values: an exponent may have a type of its own."""
        return tuple(unit for unit in self._of(nodes) if self._graph.units[unit].defs)

    def _entrances(self) -> Iterator[tuple[int, int]]:
        """Yield the producer of the data and the result of each idiom that has both as units."""
        for idiom in self._idioms:
            producer, result = self._graph.producer.get(idiom.data), self._result(idiom)
            if producer is not None and result is not None:
                yield producer, result

    def _result(self, idiom: Idiom) -> int | None:
        return self._graph.producer.get(idiom.result.outputs[0]) if idiom.result is not None else None

    def _spelled(self) -> Mapping[int, Spelled]:
        parts: dict[int, Spelled] = {}
        for part in reversed(Part):
            for idiom in self._idioms:
                part_of_idiom = Spelled(part, idiom.operator, idiom.has_one_type)
                parts.update(dict.fromkeys(self._in(idiom, part), part_of_idiom))
        return parts

    def _in(self, idiom: Idiom, part: Part) -> Iterable[int]:
        result = self._result(idiom)
        if part is Part.RESULT:
            return () if result is None else (result,)
        if part is Part.OUTER:
            return self._making(idiom.outer)
        return (unit for unit in self._of(idiom.inner) if unit != result)

    def _fused(self) -> Iterator[tuple[Idiom, ir.Value, int]]:
        for idiom in self._idioms:
            result = self._result(idiom)
            if idiom.typed_as is not None and result is not None and self._of(idiom.outer):
                yield idiom, idiom.typed_as, result

    def _alike(self, idiom: Idiom, data: ir.Value, result: int) -> Alike:
        graph, inner = self._graph, frozenset(self._of(idiom.inner))
        aliases = _passed_on(data)
        beside = (unit for value in aliases for unit, _ in graph.uses.get(value, ()) if unit not in inner)
        return Alike(
            result=result,
            producer=graph.producer.get(data),
            weights=self._of(idiom.outer),
            beside=tuple(dict.fromkeys(beside)),
            enters=data in self._entering and self._is_half_io(data),
            leaves=any(value in self._leaving and not self._is_half_io(value) for value in aliases),
        )

    def _is_half_io(self, value: ir.Value) -> bool:
        """Return whether an input or output of the model becomes half."""
        return value.name in self._halved and not value.is_initializer()


def _passed_on(value: ir.Value) -> tuple[ir.Value, ...]:
    """Return a value and the outputs of its Identities: runtimes take them for the same."""
    aliases = {value: None}
    for each in (waiting := [value]):
        copies = [node.outputs[0] for node, _ in each.uses() if patterns.is_default(node, "Identity")]
        waiting += [other for other in copies if other not in aliases]
        aliases.update(dict.fromkeys(copies))
    return tuple(aliases)
