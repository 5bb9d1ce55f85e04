"""Inputs and outputs of a model: those that are state, an input and the output with its next value, and those
that become half.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite.onnx_types.element_types import Types
from amp_rewrite.operators.catalogue import OF_SIZES, find, having
from amp_rewrite.operators.record import Role, Trait
from amp_rewrite.policy.node_patterns import matcher
from amp_rewrite.policy.options import IOTypes, Options


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of state: its input, and the output with its value after the step.

    Examples:
        >>> from amp_rewrite.training import Pair
        >>> str(Pair("w", "w.new"))
        'w -> w.new'
    """

    input: str
    output: str

    def __str__(self) -> str:
        return f"{self.input} -> {self.output}"


@dataclass(frozen=True, slots=True)
class Borders:
    """The inputs and outputs of a model by name, with the types of their values."""

    inputs: Mapping[str, ir.Value]
    outputs: Mapping[str, ir.Value]
    types: Types

    @property
    def names(self) -> frozenset[str]:
        """The names of all inputs and outputs."""
        return frozenset((*self.inputs, *self.outputs))

    def matches(self, one: ir.Value, other: ir.Value) -> bool:
        """Return True for values of one type, without dimensions that differ."""
        if self.types.get(one) != self.types.get(other):
            return False
        if one.shape is None or other.shape is None:
            return True
        sizes = zip(one.shape, other.shape, strict=False)
        return len(one.shape) == len(other.shape) and all(_may_equal(a, b) for a, b in sizes)


def _may_equal(one: object, other: object) -> bool:
    return one == other or not (isinstance(one, int) and isinstance(other, int))


def borders(graph: ir.Graph, types: Types) -> Borders:
    """Return the borders of a graph: the inputs that a caller feeds, and the outputs."""
    inputs = {value.name or "": value for value in graph.inputs if not value.is_initializer()}
    return Borders(inputs, {value.name or "": value for value in graph.outputs}, types)


_SUFFIXES = (".new", "_new", "_out", ".out", ".updated", "_updated", "_next")
_PREFIXES = ("new_", "updated_", "new.", "updated.", "next_")
_RENAMED = (("past_key_values", "present"), ("past", "present"), ("_in", "_out"), ("in_", "out_"))
_WHOLE = {"stateN": ("state",), "hn": ("h", "h0"), "cn": ("c", "c0"), "h_n": ("h_0",), "c_n": ("c_0",)}
"""The names of outputs beside those of the inputs with the same state: endings, beginnings, parts (of the
input and of the output: Transformers' exporters), and whole names (Silero's, and those of PyTorch's LSTM).
"""


def by_name(borders: Borders, suffix: str | None = None) -> Iterator[Pair]:
    """Yield the pairs of an input `X` and an output `X.new`, `X_out`, `new_X` or the like, or of `past` and
    `present`, in the order of the outputs; with a suffix, only those of that suffix.
    """
    for name, output in borders.outputs.items():
        for stem in _stems(name) if suffix is None else [name.removesuffix(suffix)]:
            if stem != name and stem in borders.inputs and borders.matches(borders.inputs[stem], output):
                yield Pair(stem, name)
                break


def _stems(name: str) -> Iterator[str]:
    """Yield the names that the input with the state of an output may have."""
    yield from (name.removesuffix(end) for end in _SUFFIXES)
    yield from (name.removeprefix(start) for start in _PREFIXES)
    yield from (name.replace(after, before) for before, after in _RENAMED)
    yield from _WHOLE.get(name, ())


def float_pairs(borders: Borders) -> tuple[Pair, ...]:
    """Return the pairs by name of floating-point state."""
    kinds = {name: borders.types.get(value) for name, value in borders.inputs.items()}
    floats = {name for name, kind in kinds.items() if kind is not None and kind.dtype.is_floating_point()}
    return tuple(pair for pair in by_name(borders) if pair.input in floats)


def half_names(borders: Borders, options: Options) -> frozenset[str]:
    """Return the names of the inputs and outputs that become half, as far as they are float32: not those of
    inputs that become integers or sizes, which half would move (2731 is 2732).
    """
    if options.io is IOTypes.KEEP:
        return frozenset()
    names = borders.names.difference(
        name for name, value in borders.inputs.items() if _only_counts(value, borders.types)
    )
    if options.io is IOTypes.STATE:
        names = frozenset(name for pair in float_pairs(borders) for name in (pair.input, pair.output))
    return names.difference(*(matching(pattern, names) for pattern in options.keep_io))


def _only_counts(value: ir.Value, types: Types) -> bool:
    """Return whether a value becomes integers or sizes, and beside them at most booleans, by arithmetic and
    movements alone.
    """
    todo, visited, counts = [value], {value}, False
    while todo:
        value = todo.pop()
        if value.is_graph_output():
            return False
        for node, port in value.uses():
            kind, record = types.get(node.outputs[0]), find(node.domain, node.op_type)
            is_integer = (
                kind is not None and kind.dtype.is_integer() and not node.op_type.endswith("QuantizeLinear")
            )
            ends = not node.domain and (is_integer or record.roles.get(port) is Role.SCALE)
            counts = counts or ends
            if ends or record.traits & Trait.COMPARES:
                continue
            if node.domain or node.op_type not in _REACH_SIZES:
                return False
            todo += [output for output in node.outputs if output not in visited]
            visited.update(node.outputs)
    return counts


_REACH_SIZES = OF_SIZES | having(Trait.AVERAGES)


def matching(pattern: str, names: Collection[str]) -> Collection[str]:
    """Return the input or output of this name, or else those that the pattern matches; OptionError for an
    invalid one.
    """
    return (
        [pattern] if pattern in names else list(filter(matcher(pattern, "`Options.keep_io`", names), names))
    )
