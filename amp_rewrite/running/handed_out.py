"""Which values a session hands out, to be reduced outside of it: those that are small enough together.

A node that reduces a small value costs more than the value, and a run has several for each. Of a large value,
what costs is to have it in memory, where plain runs have it only until it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from amp_rewrite.model import proto_traversal
from amp_rewrite.running import reducible_values
from amp_rewrite.running.reducible_values import SAME_ELEMENTS, FloatTypes
from amp_rewrite.running.sessions import Feeds

MOST = 1 << 25
"""The elements that are handed out at a time at most, of all values together: 128 MB."""

ABREAST = 2
"""The runs that are made side by side: many kernels, those that reduce most of all, use one thread each."""

SMALL = 1 << 22
"""The elements up to which each value of a model is small enough to be in memory for each of these runs."""

WORTH_A_NODE = 1 << 15
"""The elements of a value up to which nodes that reduce it cost more in each run than memory that is new."""

_FOLLOWING = SAME_ELEMENTS | {"Relu"}
"""Operators of whose output nothing is handed out: what is seen of their input tells of it."""

WORTH_A_SESSION = 1 << 20
"""The elements, the same in each run, from which on a session that does not hand them out pays."""


@dataclass(frozen=True, slots=True)
class HandedOut:
    """The `names` of values that are handed out, of so many `elements` for inputs of these `sizes`.

    A session for many runs reduces those of them that are `constants` (see `folded`) within the run, and
    those that are `bulky` unless it counts their elements. So many runs have room `abreast` in memory;
    `largest` are the elements of the largest value.
    """

    names: frozenset[str] = frozenset()
    constants: frozenset[str] = frozenset()
    bulky: frozenset[str] = frozenset()
    elements: int = 0
    sizes: Mapping[str, int] | None = None
    abreast: int = 1
    largest: int = 0

    def fits(self, feeds: Feeds) -> bool:
        """Whether that is so for these inputs as well: values grow at most with the square of an input."""
        if self.sizes is None:
            return False
        growth = max(
            (size / max(1, self.sizes.get(name, 0)) for name, size in sizes(feeds).items()), default=1
        )
        if growth <= 1:
            return True
        is_small = self.abreast == 1 or self.largest * growth**2 <= SMALL
        return is_small and self.abreast * self.elements * growth**2 <= MOST


def folded(model: onnx.ModelProto, elements: Mapping[str, int]) -> frozenset[str]:
    """Values of so many `elements` that no input changes, which a session for many runs reduces once."""
    names = reducible_values.folded(model)
    return names if sum(elements.get(name, 0) for name in names) >= WORTH_A_SESSION else frozenset()


def sizes(feeds: Feeds) -> Mapping[str, int]:
    """The number of elements of each input that is an array."""
    return {name: value.size for name, value in feeds.items() if isinstance(value, np.ndarray)}


def sources(graph: onnx.GraphProto, types: FloatTypes) -> Mapping[str, str]:
    """The values that may be handed out, each with the one that is handed out for it."""
    inner = {name for names in types[1:] for name in names} | {entry.name for entry in graph.input}
    found: dict[str, str] = {}
    for node in graph.node:
        for name in (name for name in node.output if name in types[0] and name not in inner):
            follows = node.domain == "" and node.op_type in _FOLLOWING and node.input
            found[name] = found.get(node.input[0], name) if follows else name
    return found


def measure(graph: onnx.GraphProto, names: Sequence[str]) -> None:
    """Makes the numbers of elements of values the outputs of a graph."""
    del graph.output[:]
    prefix = proto_traversal.unused_prefix(graph, "amp_rewrite_size")
    for at, name in enumerate(names):
        graph.node.append(helper.make_node("Size", [name], [f"{prefix}{at}"]))
        graph.output.append(helper.make_tensor_value_info(f"{prefix}{at}", TensorProto.INT64, []))


def chosen(
    values: Mapping[str, str],
    elements: Mapping[str, int],
    feeds: Feeds,
    constants: frozenset[str] = frozenset(),
) -> HandedOut:
    """The smallest of the `values` (see `sources`), of so many `elements`, which have MOST together.

    None of them is bulky if they are all but `constants`: onnxruntime optimises more where nothing is reduced
    within the run.
    """
    names, total, given = set[str](), 0, sizes(feeds)
    largest = max((*elements.values(), *given.values()), default=0)
    abreast = ABREAST if largest <= SMALL else 1
    for name, size in sorted(elements.items(), key=lambda pair: pair[1]):
        if abreast * (total + size) > MOST:
            break
        names.add(name)
        total += size
    is_all = elements.keys() <= names | constants
    bulky = {name for name in names - constants if elements[name] > WORTH_A_NODE and not is_all}
    all_names, all_bulky = (
        frozenset(name for name, source in values.items() if source in found) for found in (names, bulky)
    )
    return HandedOut(all_names, all_names & constants, all_bulky, total, given, abreast, largest)
