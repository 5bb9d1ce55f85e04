"""The verdict of a comparison, as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.rewriting.report import NodeCounts
from amp_rewrite.running import comparison, sessions
from amp_rewrite.running.blame import Blame
from amp_rewrite.running.comparison import Float32Noise, HalvedPort, Runs, SampleComparison
from amp_rewrite.running.inputs.feeds import FROM_CALLER, InputSource
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.running.sessions import Device
from amp_rewrite.running.tolerances import Measured
from amp_rewrite.text import brief, plural


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of an output: an axis, and the position along it."""

    axis: int
    index: int


@dataclass(frozen=True, slots=True)
class Output:
    """An output's metrics, the worst over all samples, and the violated bounds, in words.

    `error` is that of the tolerances: the RMS of the difference over the `spread` of the output
    (metrics.spread), of the worst channel where channels count apart, which is `channel`. `floor` is what of
    it rounding this output alone makes, in relation to its spread however faint; infinite where half cannot
    hold a value of it. `noise` is float32's own error: of the original without onnxruntime's optimisation, on
    the first sample. None for what does not apply or was not measured. `by_sample` is the relative L2 error
    of each sample, None where a sample does not have this output. `is_undecided` holds where nothing is
    decided: it is too far off, and float32 itself about as far, so that no bound counts as violated, or it
    says as little as all others. `unbounded` names the bounds that were removed.
    """

    name: str
    metrics: Metrics
    broken: tuple[str, ...]
    error: float | None = None
    floor: float | None = None
    noise: float | None = None
    spread: float | None = None
    channel: Channel | None = None
    by_sample: tuple[float | None, ...] = ()
    is_undecided: bool = False
    unbounded: tuple[str, ...] = ()

    @property
    def is_compared(self) -> bool:
        """Whether the original has at least one comparable value."""
        return self.metrics.compared > 0


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A comparison that does not count: the range of its images, what it came to, and whether it passes."""

    images: str
    error: float
    noise: float | None
    ok: bool


@dataclass(frozen=True, slots=True)
class Tried:
    """Options that were tried after a failed comparison, and what that of their result came to.

    `keep_full` are the pins that were added, `level` the level that was taken; None where it stayed. `nodes`
    counts what is half in that result; None where that is not known. `keep_io` are inputs and outputs that
    stayed float32.
    """

    keep_full: tuple[str, ...]
    level: str | None
    error: float
    ok: bool
    nodes: NodeCounts | None = None
    keep_io: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """Whether a rewritten model computes the same outputs as the original.

    `signature` lists unexpected differences in the names, types and shapes of inputs and outputs, or the
    error that keeps the rewritten model from running, which is `failed_run` too, else empty. `how` is where
    the two ran, `samples` the number of samples, `inputs` their source; `blame` is None unless requested.
    `warnings` are about outputs that declare a wrong shape in both models; these are compared all the same.
    `metrics` are those of the user's own. `witness` is where the rewritten model ran: on the CPU half is
    emulated. `not_judged` are comparisons on images of other ranges, on which float32 is less exact itself.
    `tried` are options that might have mended a failed comparison, in the order in which they were tried.
    `misfits` are the inputs and outputs that half cannot hold: rounding one alone fails the comparison.
    `changing` are the outputs that the original does not compute alike twice; these are not compared.
    `is_made_up` holds where outputs are too far off on synthetic inputs, which is no proof of a fault.

    A verdict without evidence does not pass. A value is comparable if it is finite in the original, or not
    float. `unproven` lists, in words, where no value is comparable:

    - in no output at all: they are empty, or the original computes nothing finite;
    - in a non-empty output, if all samples with values for it have non-finite inputs;
    - in a sample with non-finite inputs, if the same outputs are comparable in other samples;
    - in every output that has values, as each is zero or constant, in the original or in the result;
    - in half of the outputs or more, while others were compared;
    - in an output that another run of the original alone has too far from the first;
    - in an output that is too far off, while float32 itself, optimised differently, is about as far off.

    Other infinities and NaN that both models have are not a failure: a mask may be an output, an image may
    have no detections, and non-finite inputs are valid if the original computes finite outputs from them.

    Examples:
        >>> from amp_rewrite import rewrite, verify
        >>> from amp_rewrite.demo import feeds, network
        >>> verdict = verify(network(), rewrite(network()).model, feeds())
        >>> verdict.ok, verdict.error < 1e-3, verdict.outputs[0].name
        (True, True, 'probabilities')
    """

    outputs: tuple[Output, ...]
    signature: tuple[str, ...]
    how: str
    samples: int
    blame: Blame | None = None
    inputs: InputSource = FROM_CALLER
    unproven: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    metrics: tuple[Measured, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    tried: tuple[Tried, ...] = ()
    witness: Device = Device.CPU
    failed_run: str = ""
    misfits: tuple[HalvedPort, ...] = ()
    changing: tuple[str, ...] = ()
    is_made_up: bool = False

    def __repr__(self) -> str:
        """A line: the verdict with the worst error, or with its first fault; what was run, and where."""
        first, *others = self.faults or (f"error {self.error:.1e}",)
        more = f" and {len(others):,} more" if others else ""
        told = f"{'PASS' if self.ok else 'FAIL'}: {first}{more}"
        size = f"{plural(len(self.outputs), 'output')} on {plural(self.samples, 'sample')}"
        return brief(f"Verdict({told}; {size}; {self.how})")

    @property
    def faults(self) -> tuple[str, ...]:
        """All reasons for a failure, one sentence each."""
        violated = (f"{output.name}: {bound}" for output in self.outputs for bound in output.broken)
        own = (metric.fault for metric in self.metrics if metric.fault)
        return (*self.signature, *violated, *own, *self.unproven)

    @property
    def ok(self) -> bool:
        """Whether the models were compared, and the comparison passed."""
        return not self.faults

    @property
    def is_far(self) -> bool:
        """Whether outputs or metrics violate bounds, while the signatures agree and both models run."""
        own = any(metric.fault and not metric.problem for metric in self.metrics)
        return not self.signature and (own or any(output.broken for output in self.outputs))

    def on_made_up_inputs(self) -> Verdict:
        """This as an open question: what is too far off on synthetic inputs counts as undecided.

        Examples:
            >>> from amp_rewrite import verify
            >>> from amp_rewrite.demo import feeds, network
            >>> verify(network(), network(seed=1), feeds()).on_made_up_inputs().unproven[-1]
            'inconclusive on made-up inputs (5.2e-01, limit 1e-02): give `samples`'
        """
        broken = max((output for output in self.outputs if output.broken), key=lambda each: each.error or 0.0)
        outputs = tuple(
            replace(output, broken=(), is_undecided=bool(output.broken) or output.is_undecided)
            for output in self.outputs
        )
        first = broken.broken[0]
        is_error, (_, number, *_, limit) = (
            first.startswith("error "),
            first.partition(" in channel ")[0].split(),
        )
        what = f"{float(number):.1e}, limit {_shortest(float(limit))}" if is_error else first
        question = f"inconclusive on made-up inputs ({what}): give `samples`"
        return replace(self, outputs=outputs, unproven=(*self.unproven, question), is_made_up=True)

    @property
    def error(self) -> float:
        """The error of the worst floating-point output; 0 without any."""
        return max((output.error for output in self.outputs if output.error is not None), default=0.0)

    @property
    def noise(self) -> float | None:
        """Float32's noise in the worst output; None if it was not measured."""
        return max((output.noise for output in self.outputs if output.noise is not None), default=None)

    @property
    def relative_l2_by_sample(self) -> tuple[float | None, ...]:
        """The relative L2 error of the worst floating-point output in each sample; None if it has none."""
        found = [output.by_sample for output in self.outputs if output.error is not None]
        errors = ([e for e in sample if e is not None] for sample in zip(*found, strict=True))
        return tuple(max(sample, default=None) for sample in errors)

    def to_json(self) -> dict[str, Any]:
        """This as JSON data.

        Examples:
            >>> from amp_rewrite import verify
            >>> from amp_rewrite.demo import feeds, network
            >>> verify(network(), network(), feeds()).to_json()["verified"]
            True
        """
        status = {"ok": self.ok, "verified": self.ok, "not_verified": "; ".join(self.faults) or None}
        own = {"inputs": self.inputs.to_json(), "witness": self.witness.value}
        return _plain(asdict(self) | own | status)


def _shortest(number: float) -> str:
    """A number with as few digits as it has."""
    return next(text for digits in range(18) if float(text := f"{number:.{digits}e}") == number)


def _plain(value: Any) -> Any:
    """`value` with infinities and NaN, which JSON lacks, as strings."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# Outputs of the original that change from run to run: no comparison of them proves anything.
#
# Most models that draw random numbers are made to draw the same in every run (`sessions.repeatable`). What
# is left are operators that draw at opsets without what that takes, and those of others.

Judge = Callable[[Sequence[SampleComparison]], Sequence[Output]]
"""The outputs of comparisons, with the bounds that they violate."""


def changing_outputs(before: Any, runs: Runs, judge: Judge) -> frozenset[str]:
    """The names of the outputs of which another run on the same sample is too far from the first itself.

    None where it cannot run once more: no time may be left.
    """
    try:
        again = sessions.run_session(before, runs.feeds)
    except AmpRewriteError:
        return frozenset()
    compared = comparison.compare(Runs(runs.feeds, runs.original, again), "")
    return frozenset(output.name for output in judge([compared]) if output.broken)


def without_changing(verdict: Verdict, names: Collection[str]) -> Verdict:
    """The verdict without judgement on these outputs, which says so."""
    kept = (_not_compared(output) if output.name in names else output for output in verdict.outputs)
    told = (f"{output.name}: {_WHY}" for output in verdict.outputs if output.name in names)
    return replace(
        verdict, outputs=tuple(kept), unproven=(*verdict.unproven, *told), changing=tuple(sorted(names))
    )


_WHY = (
    "not compared: another run of the original differs as much, as it draws random numbers; export it for "
    "inference, or at opset 15 or later"
)


def _not_compared(output: Output) -> Output:
    metrics = replace(output.metrics, compared=0)
    return replace(output, metrics=metrics, broken=(), error=None, floor=None, by_sample=())


# Outputs that float32 itself does not tell: it moves as far where it only rounds in another order.
#
# A constant image behind an InstanceNormalization is what rounding has left of it, divided by the root of
# an epsilon. An error of half says nothing there, and no plan is within a tolerance that float32 itself
# misses.

NEAR = 2.0
"""How many times farther than float32 is from itself a result is that may be as near to what is exact."""

BEYOND = 16.0
"""The same where float32 itself is beyond the bounds: two sessions have most kernels in common, and differ by
a part of what float32 loses, for constant images by a fourteenth of it and more.
"""


class Undecided:
    """Looks at outputs that are too far off, sample by sample: what float32 tells in one is decided."""

    def __init__(self, noise: Float32Noise, judge: Judge) -> None:
        self._noise, self._judge = noise, judge
        self._decided: set[str] = set()
        self._told: dict[str, tuple[float, str]] = {}

    @property
    def why(self) -> Mapping[str, str]:
        """The outputs that float32 does not tell in any sample in which they are too far off, and why."""
        return {name: said for name, (_, said) in self._told.items() if name not in self._decided}

    def look(self, runs: Runs, outputs: Sequence[Output]) -> None:
        """Takes what is too far off in a sample."""
        far = [output for output in outputs if output.broken and output.name not in self._decided]
        own = self._own(runs) if far else {}
        for output in far:
            beside = own.get(output.name)
            if beside is None or not _is_within(output, beside):
                self._decided.add(output.name)
            else:
                self._tell(output, beside)

    def _own(self, runs: Runs) -> Mapping[str, Output]:
        """What float32 itself comes to in the place of the result."""
        plain = self._noise.outputs(runs.feeds)
        if plain is None:
            return {}
        compared = comparison.compare(Runs(runs.feeds, runs.original, plain), "")
        return {output.name: output for output in self._judge([compared])}

    def _tell(self, output: Output, own: Output) -> None:
        known = self._told.get(output.name)
        if known is None or known[0] < _distance(output):
            self._told[output.name] = _distance(output), _said(output, own)


def without_undecided(verdict: Verdict, why: Mapping[str, str]) -> Verdict:
    """The verdict without judgement on these outputs, which says so."""
    far = {output.name for output in verdict.outputs if output.broken and output.name in why}
    outputs = (
        replace(output, broken=(), is_undecided=True) if output.name in far else output
        for output in verdict.outputs
    )
    told = tuple(f"{name}: {said}" for name, said in why.items() if name in far)
    return replace(verdict, outputs=tuple(outputs), unproven=(*verdict.unproven, *told))


def _is_within(output: Output, own: Output) -> bool:
    """Whether a result is about as far off as float32 is from itself; never where it loses a value."""
    if output.metrics.non_finite:
        return False
    return _distance(output) <= (BEYOND if own.broken else NEAR) * _distance(own)


def _distance(output: Output) -> float:
    """How far an output is off: the share of values that differ where it is not float."""
    if output.error is not None:
        return output.error
    return 1.0 - (1.0 if output.metrics.agreement is None else output.metrics.agreement)


def _said(output: Output, own: Output) -> str:
    by = f"{own.error:.3g}" if own.error is not None else f"{_distance(own):.1%} of its values"
    return (
        f"{' and '.join(output.broken)}, but float32 itself differs by {by} when it is optimised differently"
    )
