"""The verdict of a comparison, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from amp_rewrite.model import writing
from amp_rewrite.rewriting.report import Counts
from amp_rewrite.running.blame import Blame
from amp_rewrite.running.comparison import HalvedPort
from amp_rewrite.running.inputs.feeds import FROM_CALLER, InputSource
from amp_rewrite.running.metrics import Metrics
from amp_rewrite.running.selections import OtherSelection
from amp_rewrite.running.sessions import Device, Feeds
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
    (metrics.spread); if channels are normalised separately, of the worst one, `channel`; infinite if more
    values are lost (infinite or NaN) than the bounds allow. `floor` is the error
    from rounding this output alone, relative to its spread even if small; infinite if a value overflows half.
    `noise` is float32's own error: of the original without onnxruntime's optimisation, on the first sample.
    None if not applicable or not measured. `by_sample` is the relative L2 error of each step of each sample,
    None if it lacks this output. `is_undecided` holds if the output violates a bound but float32 noise is of
    similar size, so that no bound counts as violated, or if all outputs are vacuous. `limit` is the bound on
    the error, for an output that is not float on the share of different values; `unbounded` names removed
    bounds. Where the output is saturated (`selections.hidden`), `saturated` is the value before it on the
    first sample, and all numbers but `by_sample` are about that.
    """

    name: str
    metrics: Metrics
    broken: tuple[str, ...]
    error: float | None = None
    limit: float | None = None
    floor: float | None = None
    noise: float | None = None
    spread: float | None = None
    channel: Channel | None = None
    by_sample: tuple[float | None, ...] = ()
    is_undecided: bool = False
    unbounded: tuple[str, ...] = ()
    saturated: str = ""

    @property
    def is_compared(self) -> bool:
        """Whether the original has at least one comparable value."""
        return self.metrics.compared > 0


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A disregarded comparison: the range of its images, its error and noise, and whether it passes."""

    images: str
    error: float
    noise: float | None
    ok: bool


@dataclass(frozen=True, slots=True)
class FailedStress:
    """A change of synthetic inputs, in words, that makes the comparison fail, and the largest violating
    error; `loses_values` if only half has infinities or NaN. `feeds` is the changed sample, on which a repair
    may insure the result; the user is warned of the change if it `warns`.
    """

    change: str
    error: float
    loses_values: bool
    warns: bool = True
    feeds: Feeds | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial of other options after a failed comparison, and the outcome of its own comparison.

    `keep_full` are the added pins, `level` the new level; None if unchanged. `nodes` counts the half nodes of
    the result; None if unknown. `keep_io` are inputs and outputs that stayed float32.
    """

    keep_full: tuple[str, ...]
    level: str | None
    error: float
    ok: bool
    nodes: Counts | None = None
    keep_io: tuple[str, ...] = ()

    @property
    def mends(self) -> bool:
        """Whether it passed, and something is half in its result."""
        return self.ok and (self.nodes is None or self.nodes.half + self.nodes.mixed > 0)


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """The verdict of a comparison between a rewritten model and the original.

    `signature` lists unexpected differences in the names, types and shapes of inputs and outputs, or the
    error that keeps the rewritten model from running, which is `failed_run` too, else empty. `how` tells the
    devices, `samples` is the number of samples, of `steps` each, `inputs` their source; `blame` is None
    unless requested.
    `warnings` are about outputs with a wrong declared shape in both models; these are compared all the same.
    `metrics` are user-defined. `device` is that of the rewritten model: on the CPU half is emulated.
    `not_judged` are comparisons on images of other ranges, on which float32 is less accurate itself.
    `tried` are trials of options that might mend a failed comparison, in order.
    `misfits` are the inputs and outputs for which half is insufficient: rounding one alone fails the
    comparison. `changing` are the outputs that differ between two runs of the original; these are not
    compared. `is_synthetic`: synthetic inputs decide nothing, as outputs violate bounds or prove nothing.
    `stressed` are changes of synthetic inputs, such as a larger scale, that would turn a pass into a failure.
    `choices` are nodes that select otherwise in the result, between close scores: the outputs behind them are
    compared with the selections of the original.
    `smaller` is the verdict on smaller synthetic inputs where that passes and this one loses values.

    A verdict without evidence does not pass. A value is comparable if it is finite in the original, or not
    float. `unproven` lists, in words, where evidence is missing:

    - in all outputs: they are empty, or the original computes nothing finite;
    - in a non-empty output without comparable values, if all its samples have non-finite inputs;
    - in a sample without comparable values but with non-finite inputs, if other samples have such values;
    - in every output that has values, as each is zero or constant, in the original or in the result;
    - in half of the outputs or more, while others were compared;
    - in an output for which another run of the original violates a bound;
    - in an output that violates a bound, but no more than float32 itself if optimised differently.

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
    steps: int = 1
    blame: Blame | None = None
    inputs: InputSource = FROM_CALLER
    unproven: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    metrics: tuple[Measured, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    tried: tuple[Tried, ...] = ()
    device: Device = Device.CPU
    failed_run: str = ""
    misfits: tuple[HalvedPort, ...] = ()
    changing: tuple[str, ...] = ()
    is_synthetic: bool = False
    stressed: tuple[FailedStress, ...] = ()
    choices: tuple[OtherSelection, ...] = ()
    smaller: Verdict | None = None

    def __repr__(self) -> str:
        """Return a line: the verdict with the worst error or the first fault, the samples and the devices."""
        first, *others = self.faults or (error_in_words(self.error),)
        more = f" and {len(others):,} more" if others else ""
        summary = f"{'PASS' if self.ok else 'FAIL'}: {first}{more}"
        size = f"{plural(len(self.outputs), 'output')} on {plural(self.samples, 'sample')}"
        return brief(f"Verdict({summary}; {size}; {self.how})")

    def __bool__(self) -> bool:
        """Return `ok`, so that `if verify(...)` means what it reads."""
        return self.ok

    @property
    def faults(self) -> tuple[str, ...]:
        """All reasons for a failure, one sentence each."""
        violated = (f"{output.name}: {bound}" for output in self.outputs for bound in output.broken)
        own = (metric.fault for metric in self.metrics if metric.fault)
        return (*self.signature, *violated, *own, *self.unproven)

    @property
    def ok(self) -> bool:
        """True if the models were compared, and the comparison passed."""
        return not self.faults

    @property
    def is_far(self) -> bool:
        """Whether outputs or metrics violate bounds, while the signatures agree and both models run."""
        own = any(metric.fault and not metric.problem for metric in self.metrics)
        return not self.signature and (own or any(output.broken for output in self.outputs))

    @property
    def is_open(self) -> bool:
        """Whether evidence is missing that other inputs might give, and nothing speaks against the result."""
        is_judged = self.ok or self.is_far or bool(self.signature or self.changing)
        return not is_judged and not any(metric.fault for metric in self.metrics)

    def on_synthetic_inputs(self) -> Verdict:
        """Return the verdict with bound violations on synthetic inputs as undecided outputs.

        Examples:
            >>> from amp_rewrite import verify
            >>> from amp_rewrite.demo import feeds, network
            >>> verify(network(), network(seed=1), feeds()).on_synthetic_inputs().unproven[-1]
            'inconclusive on synthetic inputs (5.2e-01, limit 1e-02): give `samples`'
        """
        broken = max((output for output in self.outputs if output.broken), key=lambda each: each.error or 0.0)
        outputs = tuple(
            replace(output, broken=(), is_undecided=bool(output.broken) or output.is_undecided)
            for output in self.outputs
        )
        what = broken.broken[0]
        if what.startswith("error ") and broken.error is not None and broken.limit is not None:
            what = f"{broken.error:.1e}, limit {shortest(broken.limit)}"
        question = f"inconclusive on synthetic inputs ({what}): give `samples`"
        return replace(self, outputs=outputs, unproven=(*self.unproven, question), is_synthetic=True)

    def undecided(self, why: Mapping[str, str]) -> Verdict:
        """Return the verdict without judgement on these outputs, for reasons that `unproven` then lists.

        Examples:
            >>> from amp_rewrite import verify
            >>> from amp_rewrite.demo import feeds, network
            >>> far = verify(network(), network(seed=1), feeds())
            >>> far.undecided({far.outputs[0].name: "it is constant"}).unproven[-1]
            'probabilities: it is constant'
        """
        outputs = tuple(
            replace(output, broken=(), is_undecided=True) if output.name in why else output
            for output in self.outputs
        )
        reasons = (f"{name}: {reason}" for name, reason in why.items())
        return replace(self, outputs=outputs, unproven=(*self.unproven, *reasons))

    @property
    def error(self) -> float:
        """The error of the worst floating-point output; 0 without any, infinity if nothing was compared."""
        nothing = math.inf if self.signature else 0.0
        return max((output.error for output in self.outputs if output.error is not None), default=nothing)

    @property
    def noise(self) -> float | None:
        """Float32's noise in the worst output; None if it was not measured."""
        return max((output.noise for output in self.outputs if output.noise is not None), default=None)

    @property
    def relative_l2_by_sample(self) -> tuple[float | None, ...]:
        """The relative L2 error of the worst floating-point output in each step of each sample; None without
        any.
        """
        series = [output.by_sample for output in self.outputs if output.error is not None]
        errors = ([e for e in sample if e is not None] for sample in zip(*series, strict=True))
        return tuple(max(sample, default=None) for sample in errors)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data.

        Examples:
            >>> from amp_rewrite import verify
            >>> from amp_rewrite.demo import feeds, network
            >>> verify(network(), network(), feeds()).to_json()["verified"]
            True
        """
        status = {"ok": self.ok, "verified": self.ok, "not_verified": "; ".join(self.faults) or None}
        own = {"inputs": self.inputs.to_json(), "device": self.device.value}
        stressed = tuple(replace(failed, feeds=None) for failed in self.stressed)
        fields = asdict(replace(self, smaller=None, stressed=stressed))
        del fields["smaller"]
        for failed in fields["stressed"]:
            del failed["feeds"]
        return writing.plain(fields | own | status)


def error_in_words(error: float) -> str:
    """Return an error with that word, or what the result has if the error is not finite."""
    return f"error {error:.1e}" if math.isfinite(error) else "infinities or NaN"


def shortest(number: float) -> str:
    """Return a number with an exponent and the fewest digits that read the same."""
    texts = (f"{number:.{digits}e}" for digits in range(18))
    return next((text for text in texts if float(text) == number), str(number))


def distance(output: Output) -> float:
    """Return the error of an output, or the share of different values if it is not float."""
    if output.error is not None:
        return output.error
    return 1.0 - (1.0 if output.metrics.agreement is None else output.metrics.agreement)
