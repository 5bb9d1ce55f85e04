"""Calibration runs of the float32 model that observe the extremes of all its values, by sample.

Nodes behind each value reduce it within the run, so that no value is retained. The outputs are three vectors:
the largest elements of the values, the smallest, and sums. Those of a body leave it through new outputs of an
If, Loop or Scan: the other branch of an If yields neutral elements, and the vectors of all iterations are
reduced behind a Loop or Scan.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.observed import NOTHING, Extremes
from amp_rewrite.arguments import PathLike, function, instance
from amp_rewrite.errors import FeedError
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.numerics.half import FLOAT16, HALF_TYPES
from amp_rewrite.onnx_types import control_flow, element_types
from amp_rewrite.operators.catalogue import SAME_ELEMENTS
from amp_rewrite.process import executors
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.rewriting.instrument import Instrument, instrument
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running import metrics, sessions
from amp_rewrite.running.inputs.feeds import FROM_CALLER, InputSource
from amp_rewrite.running.instrumented_model import LightModel, as_file, light
from amp_rewrite.running.sequences import Steps
from amp_rewrite.running.sessions import Device, Feeds, Libraries, Runnable, Samples

# A float32 model whose outputs are the extremes of its float values, and counts of their elements.

SINCE_COUNTS = 9
"""The first opset for element counts, that of Where."""

_SINCE_STATES = 9
"""The first opset where a Scan has no batch axis."""


@dataclass(frozen=True, slots=True)
class ReducedRow:
    """The numbers of values with the same elements: the largest and the smallest element, and sums.

    If elements are counted, the sums are the counts of all elements, of those that float16 flushes to 0, of
    non-finite ones, and of finite ones that overflow float16; the extremes are of finite elements. Otherwise
    it is the sum of the elements, as ReduceMax and ReduceMin may skip elements next to a NaN.
    """

    names: list[str]
    is_counted: bool

    @property
    def width(self) -> int:
        """The number of its sums."""
        return 4 if self.is_counted else 1

    def extremes(self, high: float, low: float, sums: Sequence[float]) -> Extremes:
        """Return the extremes of one run; NOTHING if the value was not computed or is empty."""
        if not self.is_counted:
            return Extremes(low, high) if -math.inf < low <= high < math.inf else NOTHING
        size, flushed, not_finite, beyond = map(int, sums)
        total = max(size, flushed + not_finite + beyond)  # above 2^24 float32 rounds them
        return Extremes(low, high, int(size > 0), total, beyond, flushed, not_finite)

    def leaves_float16(self, high: float, low: float, sums: Sequence[float]) -> bool:
        """Return whether an uncounted value has elements outside the range of float16."""
        if self.is_counted:
            return False
        return math.isnan(sums[0]) or (low <= high and not max(-low, high) <= FLOAT16.largest)


def read_rows(
    rows: Sequence[ReducedRow], vectors: Iterable[Any]
) -> Iterator[tuple[ReducedRow, tuple[Any, Any, list[Any]]]]:
    """Yield each row with its numbers in the three vectors of a run."""
    highs, lows, sums = (vector.tolist() for vector in vectors)
    ends = itertools.accumulate(row.width for row in rows)
    for row, high, low, end in zip(rows, highs, lows, ends, strict=True):
        yield row, (high, low, sums[end - row.width : end])


def reduce_values(model: ir.Model, is_counted: Callable[[str], bool]) -> Sequence[ReducedRow]:
    """Replace the outputs of a model by the three vectors of the float32 and half values that it computes or
    is given, as far as they have a type.

    Returns their rows; a model without such values has none, and stays as it is.
    """
    with instrument(model, {}) as points:
        vectors = _Reducer(points, is_counted).reduce(model.graph)
    if vectors is None:
        return ()
    model.graph.outputs.clear()
    model.graph.outputs.extend(vectors.values)
    return vectors.rows


class _Way(NamedTuple):
    """How numbers of a vector are joined: the reduction, the first opset where its axes are an input, and the
    number that changes nothing.
    """

    operator: str
    since_input: int
    neutral: float


_WAYS = (_Way("ReduceMax", 18, -math.inf), _Way("ReduceMin", 18, math.inf), _Way("ReduceSum", 13, 0.0))
_LIMITS = (
    math.inf,
    -math.inf,
    0.0,
    FLOAT16.smallest / 2,  # the largest magnitude that float16 rounds to 0
    FLOAT16.largest,
)


@dataclass(frozen=True, slots=True)
class _Vectors:
    """The three vectors of a graph, and their rows."""

    values: Sequence[ir.Value]
    rows: Sequence[ReducedRow]


class _Parts:
    """What the vectors of a graph are joined of, and the rows of its values."""

    def __init__(self) -> None:
        self.rows: list[ReducedRow] = []
        self.numbers: tuple[list[ir.Value], ...] = ([], [], [])
        self.row_of: dict[ir.Value | None, ReducedRow] = {}

    def add(self, rows: Iterable[ReducedRow], numbers: Iterable[Iterable[ir.Value]]) -> None:
        """Add rows, and their part of each vector."""
        self.rows.extend(rows)
        for vector, more in zip(self.numbers, numbers, strict=True):
            vector.extend(more)


class _Reducer:
    def __init__(self, points: Instrument, is_counted: Callable[[str], bool]) -> None:
        self._points, self._is_counted = points, is_counted

    @cached_property
    def _flat(self) -> ir.Value:
        return self._points.stored(np.array([-1], np.int64))

    @cached_property
    def _limits(self) -> list[ir.Value]:
        return [self._points.stored(np.array(number, np.float32)) for number in _LIMITS]

    def reduce(self, graph: ir.Graph) -> _Vectors | None:
        """Reduce the values of a graph, each behind its producer; None if it has none."""
        parts, inner = _Parts(), list[_Vectors]()
        nodes = tuple(graph)
        self._reduce(parts, (value for value in graph.inputs if not value.is_initializer()))
        for node in nodes:
            inner.extend(self._of_bodies(node))
            is_copy = node.op_type in SAME_ELEMENTS and not node.domain
            if is_copy and (row := parts.row_of.get(node.inputs[0])):
                row.names.append(node.outputs[0].name or "")
                parts.row_of[node.outputs[0]] = row
            elif node.op_type != "Constant":
                self._reduce(parts, node.outputs)
        for vectors in inner:
            parts.add(vectors.rows, ([value] for value in vectors.values))
        if not parts.rows:
            return None
        sizes = len(parts.rows), len(parts.rows), sum(row.width for row in parts.rows)
        pairs = zip(parts.numbers, sizes, strict=True)
        return _Vectors([self._joined(graph, *each) for each in pairs], parts.rows)

    def _reduce(self, parts: _Parts, values: Iterable[ir.Value]) -> None:
        for value in filter(_is_reduced, values):
            name = value.name or ""
            row = parts.row_of[value] = ReducedRow([name], self._is_counted(name))
            parts.add([row], self._numbers(value, row))

    def _joined(self, graph: ir.Graph, parts: Sequence[ir.Value], size: int) -> ir.Value:
        node = self._points.node("Concat", parts, parts[0], axis=0)
        graph.append(node)
        return _declared(node.outputs[0], size)

    def _of_bodies(self, node: ir.Node) -> Iterator[_Vectors]:
        """Reduce the values in the bodies of a node, and yield the vectors that leave it."""
        is_known = node.op_type in ("If", "Loop", "Scan") and not node.domain
        if is_known and not (node.op_type == "Scan" and self._points.opset < _SINCE_STATES):
            for body in control_flow.bodies(node):
                if vectors := self.reduce(body):
                    outputs = [
                        self._output(node, body, *each) for each in zip(vectors.values, _WAYS, strict=True)
                    ]
                    yield _Vectors(outputs, vectors.rows)

    def _output(self, node: ir.Node, body: ir.Graph, vector: ir.Value, way: _Way) -> ir.Value:
        """Return a new output of a node: a vector of one of its bodies, joined over all iterations."""
        assert vector.shape is not None, "its length is known"
        for each in control_flow.bodies(node):
            each.outputs.append(vector if each is body else self._neutral(each, vector.shape.numpy(), way))
        count = len(body.outputs) - (node.op_type == "Loop")
        before = len(node.outputs)
        node.resize_outputs(count)  # some may have been left out
        for output in node.outputs[before:]:
            output.name = self._points.names.of_value(vector, "output")
        output = node.outputs[-1]
        if node.op_type == "If":
            return output
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in node.attributes:
                node.attributes[name] = ir.AttrInt64s(name, (*node.attributes[name].as_ints(), 0))
        takes_axes = self._points.opset >= way.since_input
        inputs = (output, self._points.stored(np.array([0], np.int64))) if takes_axes else (output,)
        joined = self._points.node(way.operator, inputs, output, keepdims=0)
        if not takes_axes:
            joined.attributes["axes"] = ir.AttrInt64s("axes", [0])
        return self._points.behind(output, [joined])

    def _neutral(self, branch: ir.Graph, shape: Sequence[int], way: _Way) -> ir.Value:
        node = ir.node("Constant", [], {"value": ir.tensor(np.full(shape, way.neutral, np.float32))})
        node.outputs[0].name = self._points.names.new_value("neutral")
        branch.append(node)
        return _declared(node.outputs[0], shape[0])

    def _numbers(self, value: ir.Value, row: ReducedRow) -> tuple[Sequence[ir.Value], ...]:
        """Put nodes behind a value that reduce it to the extremes of its finite elements and to counts; if it
        is not counted, to its extremes and its sum. Returns what belongs to each of the three vectors.

        Each count is a sum of its own: a difference of large sums would be inexact in float32.
        """
        nodes = list[ir.Node]()

        def add(operator: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
            nodes.append(self._points.node(operator, inputs, value, **attributes))
            return nodes[-1].outputs[0]

        def float32(of: ir.Value) -> ir.Value:
            return add("Cast", of, to=int(ir.DataType.FLOAT))

        flat = add("Reshape", value if value.dtype == ir.DataType.FLOAT else float32(value), self._flat)
        high, low, sums = flat, flat, [flat]
        if row.is_counted:
            infinity, minus, zero, smallest, largest = self._limits
            magnitude = add("Abs", flat)
            is_finite = add("Less", magnitude, infinity)  # NaN is not
            is_flushed = add("Xor", add("Greater", magnitude, zero), add("Greater", magnitude, smallest))
            is_beyond = add("And", add("Greater", magnitude, largest), is_finite)
            high, low = (add("Where", is_finite, flat, limit) for limit in (minus, infinity))
            sums = [float32(flags) for flags in (is_flushed, add("Not", is_finite), is_beyond)]
        counts = [float32(add("Shape", flat))] if row.is_counted else []
        counts += [add("ReduceSum", each, keepdims=1) for each in sums]
        numbers = (
            [add("ReduceMax", high, keepdims=1)],
            [add("ReduceMin", low, keepdims=1)],
            counts,
        )
        self._points.behind(value, nodes)
        return numbers


def _is_reduced(value: ir.Value) -> bool:
    is_tensor = bool(value.name) and isinstance(value.type, ir.TensorType)
    return is_tensor and value.dtype in (ir.DataType.FLOAT, *HALF_TYPES)


def _declared(vector: ir.Value, size: int) -> ir.Value:
    vector.type, vector.shape = element_types.tensor(ir.DataType.FLOAT), ir.Shape([size])
    return vector


# The runs of that model.

PART = 8
"""The samples per task of an executor."""

COUNTED = 2
"""The samples in which the elements of all values are counted, which takes longer than to find extremes."""

REOPENED = 4
"""The most reopenings of a session for further values to count; afterwards all values are counted."""


def observe(
    model: ModelSource,
    samples: Samples,
    *,
    device: Device | str | None = None,
    timeout: float | None = None,
    steps: int = 1,
    inputs: InputSource = FROM_CALLER,
    on_sample: Callable[[int], object] | None = None,
    executor: Executor | None = None,
    custom_ops: PathLike | Iterable[PathLike] = (),
) -> Observed:
    """Return the extremes of all float32 values over all samples, including If, Loop and Scan bodies.

    The model can be of any kind that `rewrite` takes; the result is for its argument `observed`. A sample is
    a mapping from input names to arrays; `samples` is one sample or an iterable of samples, of which one at a
    time is in memory, and `inputs` their source. With `steps`, they make sequences as in `verify`. Each run
    reduces the values, and retains none.
    `on_sample` is called after each sample with the number of samples so far. `device` is "cuda" or "cpu"; by
    default CUDA if it works. Elements are counted in the first two samples (COUNTED), and from then on of
    values that have elements which are not finite, or beyond float16; within runs at opset 9 or later.

    The workers of an `executor` (concurrent.futures) observe PART samples at a time, and count elements in
    the first two of each part; the extremes are the same. They have to see the same files. `custom_ops` are
    the libraries of the model's custom operators, of whose values only inputs are seen.

    Raises MissingPackageError without onnxruntime, ModelError and FeedError if the model does not run, or the
    model or a sample is invalid or holds NaN, FeedError if there is no sample, or if no float value is
    finite, OptionError for other invalid arguments, TimeLimitError after `timeout` seconds, and
    WorkerError where a worker ends before its work is done.

    Examples:
        >>> from amp_rewrite import observe
        >>> from amp_rewrite.demo import feeds, network
        >>> seen = observe(network(), [feeds(seed) for seed in range(3)])
        >>> seen.samples, seen["probabilities"].high <= 1
        (3, True)
    """
    runnable = sessions.check_model("model", model)
    runs = sessions.check_samples(samples, model, steps)
    function("on_sample", on_sample)
    if executor is not None:
        instance("executor", executor, Executor)
    where, libraries = sessions.check_device(device), sessions.check_libraries(custom_ops)
    with TimeLimit(timeout).running():
        pairs = ((inputs.sample(at) or f"sample {at + 1}", feeds) for at, feeds in enumerate(runs))
        if executor is None:
            observed = _observe(runnable, pairs, where, libraries, on_sample)
        else:
            observed = _in_parts(runnable, pairs, where, libraries, on_sample, executor)
        return _finite(observed, is_synthetic=inputs.is_synthetic)


def _finite(observations: Observed, *, is_synthetic: bool) -> Observed:
    """Drop values that were never finite; raise FeedError if none remains, or there was no sample."""
    if not observations.samples:
        raise FeedError("there is no sample to observe", remedy="give one with `samples`")
    finite = {name: extremes for name, extremes in observations.items() if not extremes.is_empty}
    if observations and not finite:
        problem = "no floating-point value of a run is finite"
        raise FeedError(problem, remedy="give other inputs with `samples`")
    return Observed(observations.model, observations.samples, finite, is_synthetic=is_synthetic)


def _observe(
    model: Runnable,
    samples: Iterable[tuple[str, Feeds]],
    device: Device,
    libraries: Libraries,
    on_sample: Callable[[int], object] | None = None,
) -> Observed:
    """Return the extremes of all values over the samples, even never finite ones; names are for errors."""
    ranges, count = dict[str, Extremes](), 0
    open_session = functools.cache(lambda: sessions.open_session(model, device, libraries))
    with light(model) as readable:
        runs = _ObservedRuns(readable, device, libraries)
        for where, feeds in samples:
            for inputs in feeds.feeds if isinstance(feeds, Steps) else [feeds]:
                _refuse_nan(where, inputs)
            for step in _steps(feeds, open_session):
                for name, extremes in runs.measure(where, step).items():
                    ranges[name] = ranges.get(name, NOTHING).join(extremes)
            count += 1
            if on_sample is not None:
                on_sample(count)
    return Observed(readable.fingerprint, count, ranges)


def _steps(feeds: Feeds, open_session: Callable[[], Any]) -> Iterator[Feeds]:
    """Yield the inputs of each step of a sequence, with the states of a run, or those of another sample."""
    if not isinstance(feeds, Steps):
        yield feeds
        return
    run = functools.partial(sessions.run_session, open_session())
    yield from (inputs for inputs, _ in feeds.unrolled(run))


def _refuse_nan(where: str, feeds: Feeds) -> None:
    for name, value in feeds.items():
        parts: list[Any] = value if isinstance(value, list) else [value]
        arrays = (part for part in parts if isinstance(part, np.ndarray) and metrics.is_float(part))
        if any(np.isnan(array).any() for array in arrays):
            raise FeedError(f"input '{name}' holds NaN", where=where, remedy="leave this sample out")


class _ObservedRuns:
    """The runs of a model, whose session is reopened when further values need element counts.

    The elements of all values are counted in the first COUNTED runs, afterwards those of values with an
    element outside the range of float16.
    """

    def __init__(self, model: LightModel, device: Device, libraries: Libraries) -> None:
        self._model = model
        self._device = device
        self._libraries = libraries
        self._session: Any = None
        self._rows: Sequence[ReducedRow] = ()
        self._runs = self._reopened = 0
        self._leaving: set[str] = set()

    def measure(self, where: str, feeds: Feeds) -> dict[str, Extremes]:
        """Return the extremes of the values that a run computes, by name.

        Raises ModelError, RunError and FeedError, at `where`.
        """
        if self._runs in (0, COUNTED):
            self._open()
        values, further = self._run(where, feeds)
        while further:
            self._leaving |= further
            self._reopened += 1
            self._open()
            values, further = self._run(where, feeds)
        self._runs += 1
        self._leaving |= {name for name, extremes in values.items() if extremes.beyond or extremes.not_finite}
        return values

    def _open(self) -> None:
        """Open a session; optimised except for the first runs, which count elements."""
        self._session = None  # released first: two sessions would take twice the memory
        opset = self._model.opset
        counts_all = self._runs < COUNTED or self._reopened > REOPENED

        def is_counted(name: str) -> bool:
            return opset >= SINCE_COUNTS and (counts_all or name in self._leaving)

        self._rows, proto, folder = self._model.edited(lambda copy: reduce_values(copy, is_counted))
        options = self._options(folder, is_optimised=self._runs >= COUNTED)
        self._session = sessions.opened(proto, self._device, options)

    def _options(self, folder: Path | None, *, is_optimised: bool) -> Any:
        """Return session options for reducing each value right behind its producer."""
        runtime, options = sessions.onnxruntime(), sessions.session_options(self._libraries)
        levels = runtime.GraphOptimizationLevel
        # ORT_ENABLE_ALL gives convolutions a blocked channel layout, which each reduction reorders
        options.graph_optimization_level = (
            levels.ORT_ENABLE_EXTENDED if is_optimised else levels.ORT_DISABLE_ALL
        )
        options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_pattern = False  # it allocates again in the second run
        options.add_session_config_entry(_SPINNING, "0")  # reductions have one thread: others need not wait
        options.add_session_config_entry(sessions.NO_QUANTISED, "1")  # it has a DequantizeLinear per consumer
        if folder is not None:
            options.add_session_config_entry(sessions.DATA_FOLDER, str(folder))
        return options

    def _run(self, where: str, feeds: Feeds) -> tuple[dict[str, Extremes], set[str]]:
        """Return the extremes of one run, and the uncounted values that leave the range of float16."""
        outputs = sessions.run_session(self._session, feeds, where=where)
        values, further = dict[str, Extremes](), set[str]()
        for row, numbers in read_rows(self._rows, outputs.values()) if self._rows else ():
            extremes = row.extremes(*numbers)
            if self._model.opset >= SINCE_COUNTS and row.leaves_float16(*numbers):
                further.update(row.names)
            for name in row.names if extremes.samples else ():
                previous = values.get(name)  # from another branch of an If
                values[name] = extremes if previous is None else previous.join(extremes).in_one_run()
        return values, further


_SPINNING = "session.intra_op.allow_spinning"


def _in_parts(
    model: Runnable,
    samples: Iterator[tuple[str, Feeds]],
    device: Device,
    libraries: Libraries,
    on_sample: Callable[[int], object] | None,
    executor: Executor,
) -> Observed:
    """Observe the samples in parts by the workers of an executor; without samples, start none."""
    total: Observed | None = None
    with as_file(model) as file:
        parts = iter(lambda: list(itertools.islice(samples, PART)), [])
        for observations in executors.results(
            executor, _observe, ((file, part, device, libraries) for part in parts)
        ):
            total = observations if total is None else total.merge(observations)
            if on_sample is not None:
                on_sample(total.samples)
    return Observed("", 0, {}) if total is None else total
