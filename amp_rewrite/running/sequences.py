"""A sequence as a sample: steps in which state outputs go back into the inputs that they pair up with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis import states
from amp_rewrite.analysis.states import Pair
from amp_rewrite.errors import FeedError, OptionError
from amp_rewrite.onnx_types import element_types

Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A change of the inputs of a step."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Mapping[str, Any]):
    """A sample of `count` steps; as a mapping, the inputs of the first one.

    `feeds` are the inputs of the steps, from the first again after the last. In a run, each state is what the
    step before returned; of one that grows, such as a KV cache, the last entries, so that it keeps its size.
    """

    feeds: Sequence[Mapping[str, Any]]
    states: tuple[Pair, ...]
    count: int
    change: Change | None = None

    def __getitem__(self, name: str) -> Any:
        return self.feeds[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.feeds[0])

    def __len__(self) -> int:
        return len(self.feeds[0])

    def unrolled(
        self, run: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Run the steps, and yield the inputs and outputs of each."""
        state: dict[str, Any] = {}
        for feeds in itertools.islice(itertools.cycle(self.feeds), self.count):
            inputs = {**feeds, **state}
            inputs = inputs if self.change is None else self.change(inputs)
            outputs = run(inputs)
            yield inputs, outputs
            state = {pair.input: _last(outputs[pair.output], inputs[pair.input]) for pair in self.states}

    def run(self, run: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
        """Run the steps, and return the outputs by name, each as an `EachStep`."""
        outputs: dict[str, Any] = {}
        for _, step in self.unrolled(run):
            for name, value in step.items():
                outputs.setdefault(name, EachStep()).append(value)
        return outputs


class EachStep(list[Any]):
    """The values of an output in each step of a sequence."""


def by_step(outputs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the outputs of each step of a sequence, or those of a single run."""
    if not any(isinstance(value, EachStep) for value in outputs.values()):
        yield outputs
        return
    for values in zip(*outputs.values(), strict=True):
        yield dict(zip(outputs, values, strict=True))


def changed(feeds: Mapping[str, Any], change: Change) -> Mapping[str, Any]:
    """Return a sample with changed inputs, in every step of a sequence, after a change before."""
    if not isinstance(feeds, Steps):
        return change(feeds)
    before = feeds.change
    return replace(feeds, change=change if before is None else lambda inputs: change(before(inputs)))


def sequences(
    model: ir.Model, samples: Iterable[Mapping[str, Any]], count: int, distinct: int
) -> Iterator[Steps]:
    """Yield sequences of `count` steps, each with the inputs of up to `distinct` consecutive samples in turn.

    Raises OptionError for a model without state, and FeedError for state without elements.
    """
    pairs = tuple(states.by_name(states.borders(model.graph, element_types.infer(model))))
    if not pairs:
        raise OptionError(
            "`steps` needs state: no input and output of the model pair up by their names and types",
            remedy="rename them, as state and new_state, or leave it out",
        )
    remaining = iter(samples)
    chunks = iter(lambda: list(itertools.islice(remaining, distinct)), [])
    return (Steps(chunk, _refuse_empty(pairs, chunk[0]), count) for chunk in chunks)


def _refuse_empty(pairs: tuple[Pair, ...], first: Mapping[str, Any]) -> tuple[Pair, ...]:
    """Return the pairs whose inputs a sample has; a run refuses one that lacks an input without a default."""
    for pair in pairs:
        if pair.input in first and np.size(first[pair.input]) == 0:
            raise FeedError(
                f"the state '{pair.input}' has no elements, and keeps its size",
                remedy="give a sample with some, or its size with `Data.dims`",
            )
    return tuple(pair for pair in pairs if pair.input in first)


def _last(value: Any, like: Any) -> Any:
    """Return the last entries of an array along each axis on which another is shorter."""
    if not isinstance(value, np.ndarray) or np.ndim(value) != np.ndim(like):
        return value
    sizes = zip(value.shape, like.shape, strict=True)
    return value[tuple(slice(max(have - want, 0), None) for have, want in sizes)]
