"""A model as numbered values: who makes each, of what, and what a Cast between floats leaves as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnx import AttributeProto, ModelProto, ValueInfoProto

from amp_rewrite.certificate.tensors import Folder
from amp_rewrite.certificate.value_kinds import Kind

if TYPE_CHECKING:
    from amp_rewrite.certificate.order import Row

MISSING = 0
"""The number of an optional value that is left out."""


@dataclass(slots=True, eq=False)
class Bound:
    """An attribute, and the graph that it was written in, where bodies find the values around them."""

    attribute: AttributeProto
    scope: Scope


@dataclass(slots=True, eq=False)
class Scope:
    """The names that are visible in a graph; `outer` encloses it.

    `versions` are the opsets by domain, and `bound` the attributes of the function's call, None outside.
    `repeated` is the node that computes the graph once for each of its rounds, None where it is computed
    once, and `declared` has what the graph declares of its values.
    """

    names: dict[str, int]
    outer: Scope | None
    versions: Mapping[str, int]
    bound: Mapping[str, Bound] | None = None
    repeated: Node | None = None
    declared: Mapping[str, ValueInfoProto] = field(default_factory=dict[str, ValueInfoProto])

    def find(self, name: str) -> int | None:
        """The number of a value by its name; None where no graph defines it. A function sees only its own."""
        scope: Scope | None = self
        while scope is not None:
            number = scope.names.get(name)
            if number is not None:
                return number
            outer = scope.outer
            is_function = outer is not None and outer.bound is None and scope.bound is not None
            scope = None if is_function else outer
        return None

    @property
    def outermost(self) -> Scope:
        """The graph of the model."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope


@dataclass(slots=True, eq=False)
class Body:
    """A graph in a node: the numbers of its inputs, and of its outputs, and the `names` of both."""

    attribute: str
    inputs: list[int]
    outputs: list[int]
    names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A node; `inputs` are numbers behind Casts that change nothing but precision. `first` is the number of
    its first output, and `count` how many it has.
    """

    proto: Any
    operator: tuple[str, str]
    version: int
    inputs: list[int]
    first: int
    count: int
    scope: Scope
    bodies: list[Body] | None

    @property
    def left_out(self) -> Sequence[int]:
        """The outputs that it leaves out: it tells by them what to compute, as a norm that trains."""
        return () if self.count == 1 else [port for port, name in enumerate(self.proto.output) if not name]


@dataclass(slots=True, eq=False)
class Numbered:
    """A model, its values by number.

    `makers` has the node of each value, None for what no node makes; `stored` the tensors, or Constant nodes,
    of those that the model stores. `roots` has the value that a Cast between floats stands for, else the
    value itself. `visible` has the values of the model's graph by name, `rows`
    its nodes as they stand, and `initial` what it stores by name, defaults of inputs as well. `results` has
    the value in a function for each output of a call, and `scopes` all graphs and functions with their scopes.
    """

    proto: ModelProto
    folder: Folder | None
    makers: list[Node | None] = field(default_factory=lambda: [None])
    roots: list[int] = field(default_factory=lambda: [MISSING])
    kinds: list[Kind] = field(default_factory=lambda: [None])
    names: list[str] = field(default_factory=lambda: [""])
    stored: dict[int, Any] = field(default_factory=dict[int, Any])
    inputs: dict[str, int] = field(default_factory=dict[str, int])
    outputs: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    visible: dict[str, int] = field(default_factory=dict[str, int])
    rows: Sequence[Row] = ()
    initial: Mapping[str, Any] = field(default_factory=dict[str, Any])
    calls: int = 0
    results: dict[int, int] = field(default_factory=dict[int, int])
    scopes: list[tuple[Any, Scope]] = field(default_factory=list[tuple[Any, Scope]])

    def add(self, name: str, maker: Node | None = None, kind: Kind = None) -> int:
        """A new value."""
        number = len(self.roots)
        self.roots.append(number)
        self.makers.append(maker)
        self.kinds.append(kind)
        self.names.append(name)
        return number

    def add_all(self, names: Sequence[str]) -> None:
        """New values, of which nothing is known yet."""
        first, count = len(self.roots), len(names)
        self.roots.extend(range(first, first + count))
        self.makers.extend([None] * count)
        self.kinds.extend([None] * count)
        self.names.extend(names)

    def read(self, node: Node) -> list[int]:
        """What a node reads, the Casts included that `inputs` is behind."""
        found = [self._result(node.scope.find(name) or MISSING) for name in node.proto.input]
        return found[: len(node.inputs)]

    def _result(self, number: int) -> int:
        while number in self.results:
            number = self.results[number]
        return number

    def told(self, number: int) -> str:
        """What a value is, in words."""
        node, name = self.makers[number], self.names[number]
        if number == MISSING:
            return "nothing"
        if node is None:
            return f"the stored value '{name}'" if number in self.stored else f"the input '{name}'"
        title = f" '{node.proto.name}'" if node.proto.name else ""
        return f"{node.operator[1]}{title}, which makes '{name}'"
