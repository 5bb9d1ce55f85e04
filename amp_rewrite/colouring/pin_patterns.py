"""Names of nodes, and the patterns by which a user names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import onnx_ir as ir
import re2

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.errors import OptionError
from amp_rewrite.onnx_types import control_flow

Nodes = tuple[ir.Node, ...]
Around = Mapping[ir.Node, Nodes]
"""Every node, with the nodes in whose bodies it stands, the outermost first, and itself."""


def around(graph: ir.Graph, outer: Nodes = ()) -> Iterator[tuple[ir.Node, Nodes]]:
    """Every node of a graph and the graphs below it, with those around it."""
    for node in graph:
        yield node, (*outer, node)
        for body in control_flow.bodies(node):
            yield from around(body, (*outer, node))


def pinnable(graph: UnitGraph) -> set[str]:
    """The names by which pins find nodes."""
    return set(map(pinned_as, with_units(graph, dict(around(graph.root))))) - {""}


def pinned(graph: UnitGraph, patterns: Iterable[str]) -> tuple[int, ...]:
    """How many nodes each pattern names: OptionError, as `classify` raises it, for one that is none."""
    held = with_units(graph, dict(around(graph.root))) if patterns else {}
    return tuple(len(matching(held, pattern, "")) for pattern in patterns)


def with_units(graph: UnitGraph, nested: Around) -> Mapping[ir.Node, None]:
    """The nodes that have units, or have such nodes in their bodies."""
    return {node: None for unit in graph.units for node in nested[unit.node]}


def matching(held: Mapping[ir.Node, None], pattern: str, field: str) -> set[ir.Node]:
    """The nodes that a pattern names; OptionError, which names the `field`, for one that is not valid."""
    matches = _matcher(pattern, field, {pinned_as(node) for node in held})
    return {node for node in held if matches(pinned_as(node))}


def pinned_as(node: ir.Node) -> str:
    """The name of a node; for one that has none, that of the first value it makes."""
    named = (value.name for value in node.outputs if value.name)
    return node.name or next(named, "")


def pattern_for(name: str, names: Collection[str]) -> str:
    """What a pin says to name a node and no other of `names`: the name itself where that will do."""
    if not _SPECIAL.isdisjoint(name):
        return re.escape(name)
    dotted = "." in name and re.compile(re.escape(name).replace(r"\.", "."))
    return re.escape(name) if dotted and any(map(dotted.fullmatch, set(names) - {name})) else name


_SPECIAL = frozenset("\\^$*+?{}[]|()")
"""What means something else in an expression, besides the dot."""


def _matcher(pattern: str, field: str, names: Collection[str]) -> Callable[[str], bool]:
    quiet = re2.Options()
    quiet.log_errors = False  # they would go to standard error
    try:
        expression = re2.compile(_encoded(pattern), quiet)
    except re2.error as error:
        if pattern in names:
            return pattern.__eq__
        raise OptionError(
            f"{field} {pattern} is not a valid regular expression: {error.args[0].decode(errors='replace')}",
            remedy="give a node's name, escape it with a backslash, or do without look-around and "
            "back-references: patterns are those of RE2, which takes no more time for one than for another",
        ) from error
    return lambda name: name == pattern or expression.fullmatch(_encoded(name)) is not None


def _encoded(text: str) -> bytes:
    """Text as RE2 takes it, also what came from bytes that are none."""
    return text.encode(errors="surrogatepass")
