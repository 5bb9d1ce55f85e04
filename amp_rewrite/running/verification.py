"""Numerical verification of a rewritten model against the original: on CUDA, or on the CPU with half
emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike
from amp_rewrite.errors import AmpRewriteError, FeedError, ModelError
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.options import IOTypes
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running import comparison, emulation, selections, sessions, tolerances
from amp_rewrite.running.comparison import RewrittenRunError, Runs, SampleComparison
from amp_rewrite.running.emulation import emulated
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import FROM_CALLER, Data, InputSource, Trial
from amp_rewrite.running.judging import (
    SMALLER,
    ComparedModels,
    Undecided,
    change_sample,
    find_failed_lengths,
    find_failed_stresses,
)
from amp_rewrite.running.selections import OtherSelection
from amp_rewrite.running.sessions import Device, Libraries, Runnable, Samples
from amp_rewrite.running.tolerances import Metric, MetricFunction, Tolerances
from amp_rewrite.running.verdict import FailedStress, NotJudged, Verdict

# From two open sessions to a verdict: runs on every sample, the bounds, and float32's own noise.


def judge(blank: Verdict, pair: ComparedModels, trials: Sequence[Trial]) -> Verdict:
    """Return the verdict on two sessions with the same signature, from the best-conditioned trial.

    For large models that pass, trials beyond the first and float32's noise are skipped.
    """
    first = _judge(blank, pair, trials[0])
    if first.verdict.ok and pair.is_large:
        return first.verdict
    others = (_judge(replace(blank, inputs=trial.source), pair, trial) for trial in trials[1:])
    judged = [first, *others]
    verdict = _best_conditioned([_completed(each, pair) for each in judged])
    if not (verdict.ok and pair.half):
        is_open = verdict.is_open and verdict.inputs.is_synthetic
        return replace(
            verdict, is_synthetic=is_open, smaller=_on_smaller_inputs(blank, pair, trials[0], first)
        )
    sample = next(each.first.feeds for each in judged if each.verdict.inputs == verdict.inputs)
    stressed = (
        *find_failed_stresses(pair, sample, trials[0].free),
        *find_failed_lengths(pair, verdict, trials[0].longer),
    )
    return replace(verdict, stressed=stressed)


def _on_smaller_inputs(blank: Verdict, pair: ComparedModels, trial: Trial, judged: _Judged) -> Verdict | None:
    """Return the verdict on a smaller copy of synthetic inputs, if half loses values and the copy passes."""
    names = trial.free | trial.images
    if not (names and any(output.metrics.non_finite for output in judged.verdict.outputs)):
        return None
    change = SMALLER
    source = replace(trial.source, change=change.change)
    sample = change_sample(judged.first.feeds, change, names)
    try:
        verdict = _judge(replace(blank, inputs=source), pair, Trial((sample,), source)).verdict
    except (AmpRewriteError, RewrittenRunError):
        return None
    lost = FailedStress("100 times as large as these", judged.verdict.error, loses_values=True)
    return replace(verdict, stressed=(lost,)) if verdict.ok else None


@dataclass(frozen=True, slots=True)
class _Judged:
    """A verdict without noise, its comparisons, the runs on the first sample, the runs on the first sample
    that violates a bound on its own (None without any), and the outputs that float32 does not determine, with
    reasons.
    """

    verdict: Verdict
    compared: Sequence[SampleComparison]
    first: Runs
    far: Runs | None
    undecided: Mapping[str, str]


def _judge(blank: Verdict, pair: ComparedModels, trial: Trial) -> _Judged:
    compared: list[SampleComparison] = []
    history: list[Runs] = []
    far: Runs | None = None
    choices: list[OtherSelection] = []
    doubt = Undecided(pair)
    for at, sample in enumerate(trial.samples):
        found = pair.compare(sample, blank.inputs.sample(at))
        compared += found.steps
        choices += found.choices
        if pair.metrics or not history:  # user-defined metrics need all samples
            history.append(found.runs)
        if found.is_far:
            far = far or found.runs
            doubt.look(found)
    if not history:
        raise FeedError("there is no sample to run", remedy="give one with `samples`")
    count = len(history[0].steps)
    outputs = pair.judge(compared)
    is_known = any(output.broken for output in outputs) or not pair.before.get_inputs()
    silent = {} if is_known else comparison.silent(compared)
    verdict = replace(
        blank,
        outputs=outputs,
        samples=len(compared) // count,
        steps=count,
        unproven=comparison.unproven(compared),
        metrics=tolerances.measure(pair.metrics, [step for runs in history for step in runs.steps]),
        choices=selections.worst(choices),
    )
    verdict = verdict.undecided({name: f"proves nothing: {why}" for name, why in silent.items()})
    return _Judged(verdict, compared, history[0], far, doubt.why)


def _completed(judged: _Judged, pair: ComparedModels) -> Verdict:
    """Return the verdict with float32's noise on the first sample, at the scale of all samples."""
    with_noise = pair.judge(judged.compared, pair.compare_float32(judged.first))
    pairs = zip(judged.verdict.outputs, with_noise, strict=True)
    outputs = tuple(replace(output, noise=other.noise) for output, other in pairs)
    verdict = replace(judged.verdict, outputs=outputs)
    if pair.half is not None and not pair.is_large:
        verdict = _unsaturated(verdict, judged.first, pair)
    return verdict if judged.far is None else _explained(verdict, judged.undecided, judged.far, pair)


def _unsaturated(verdict: Verdict, runs: Runs, pair: ComparedModels) -> Verdict:
    """Return the verdict with what saturated outputs are computed from on a sample, and its name, in their
    place; undecided where that violates a bound, as the outputs themselves do not.
    """
    arrays = dict(comparison.arrays(runs.original))
    passing = [
        each for each in verdict.outputs if each.is_compared and not (each.broken or each.is_undecided)
    ]
    names = [
        output.name
        for output in passing
        if output.name in arrays and output.error is not None
        if selections.is_suspect(arrays[output.name], output.error)
    ]
    if len(names) == sum(output.error is not None for output in passing):  # no float output proves anything
        names += [output.name for output in passing if output.error is None]
    hidden = selections.hidden(*pair.instrumented(), names, runs.feeds) if names else {}
    expected = {name: value.expected for name, value in hidden.items()}
    actual = {name: value.actual for name, value in hidden.items()}
    found = {output.name: output for output in pair.judge_runs(Runs(runs.feeds, expected, actual))}
    outputs, why = list(verdict.outputs), dict[str, str]()
    for at, output in enumerate(outputs):
        if output.name not in found:
            continue
        value, before = hidden[output.name].name, found[output.name]
        outputs[at] = replace(before, broken=(), by_sample=output.by_sample, saturated=value)
        for bound in before.broken[:1]:
            why[output.name] = f"proves nothing: it is saturated, and before it, in '{value}', {bound}"
    return replace(verdict, outputs=tuple(outputs)).undecided(why)


def _explained(verdict: Verdict, undecided: Mapping[str, str], far: Runs, pair: ComparedModels) -> Verdict:
    """Return a verdict that fails on a sample, without outputs that change between runs or that float32 does
    not determine, or with the misfit inputs and outputs.
    """

    def is_far(runs: Runs) -> bool:
        return any(output.broken for output in pair.judge_runs(runs))

    if names := pair.changing(far):
        return _without_changing(verdict, names)
    broken = {output.name for output in verdict.outputs if output.broken}
    verdict = verdict.undecided({name: why for name, why in undecided.items() if name in broken})
    if not verdict.is_far:
        return verdict
    misfits = comparison.misfits(pair.before, pair.after, far, pair.half, is_far)
    return replace(verdict, misfits=misfits)


def _without_changing(verdict: Verdict, names: Collection[str]) -> Verdict:
    """Return the verdict without judgement on these outputs, which `unproven` then lists."""
    outputs = list(verdict.outputs)
    for at, output in enumerate(outputs):
        if output.name in names:
            nothing = replace(output.metrics, compared=0)
            outputs[at] = replace(output, metrics=nothing, broken=(), error=None, floor=None, by_sample=())
    reasons = (f"{output.name}: {_CHANGING}" for output in outputs if output.name in names)
    return replace(
        verdict, outputs=tuple(outputs), unproven=(*verdict.unproven, *reasons), changing=tuple(sorted(names))
    )


_CHANGING = (
    "not compared: another run of the original differs as much, as it draws random numbers; export it for "
    "inference, or at opset 15 or later"
)


BETTER = 2.0
"""The ratio of float32 noise from which on inputs count as better conditioned."""

ALIVE = 2.0**-27
"""An eighth of float32's unit roundoff: less noise indicates outputs that are saturated (clipped, say) by
inputs out of range.
"""


def _best_conditioned(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on the inputs that amplify rounding errors least, with the others as `not_judged`;
    passing verdicts come first.
    """
    best, *others = [verdict for verdict in verdicts if verdict.ok] or verdicts
    for verdict in others:
        noise, least = verdict.noise, best.noise
        if noise is not None and least is not None and not verdict.unproven:
            best = verdict if ALIVE <= noise <= least / BETTER else best
    rest = (verdict for verdict in verdicts if verdict is not best)
    return replace(
        best,
        not_judged=tuple(
            NotJudged(
                verdict.inputs.images.value if verdict.inputs.images else "",
                verdict.error,
                verdict.noise,
                not verdict.is_far,
            )
            for verdict in rest
        ),
    )


def verify(
    original: ModelSource,
    rewritten: ModelSource,
    samples: Samples | None = None,
    bounds: Tolerances | None = None,
    *,
    io: IOTypes | str = IOTypes.KEEP,
    device: Device | str | None = None,
    inputs: InputSource = FROM_CALLER,
    timeout: float | None = None,
    steps: int = 1,
    metrics: Metric | MetricFunction | Iterable[Metric | MetricFunction] = (),
    custom_ops: PathLike | Iterable[PathLike] = (),
) -> Verdict:
    """Run both models on all samples and compare their outputs.

    The models can be of any kind that `rewrite` takes. A sample is a mapping from input names to arrays;
    `samples` is one sample or an iterable of samples, and `inputs` is their source. Without samples, one is
    synthesised as by the command, which proves less than real data. With `io` "half", float32
    inputs and outputs may be half in the rewritten model. `device` is "cuda" or "cpu"; by default CUDA if it
    works.
    With `steps`, a sample is a sequence: each model runs that many, its state outputs go back into the inputs
    that they pair up with by name, other inputs are those of the next samples in turn, and the worst step
    counts. `metrics` are user-defined, functions or `Metric`s with bounds; one that raises or returns
    no number fails the verdict, with that reason. `custom_ops` are the libraries of the models' custom
    operators.

    The verdict fails if the rewritten model does not run, or has different inputs or outputs, and if the
    comparison proves nothing (see Verdict). Raises MissingPackageError without onnxruntime, ModelError and
    FeedError if the original does not run, or a model or sample is invalid, OptionError for other invalid
    arguments, and TimeLimitError after `timeout` seconds.

    Examples:
        >>> from amp_rewrite import rewrite, verify
        >>> from amp_rewrite.demo import feeds, network
        >>> verify(network(), rewrite(network()).model, [feeds()]).ok
        True
        >>> verify(network(), network(seed=1), feeds()).faults[0]
        'probabilities: error 0.524 is above 0.01'
        >>> verify(network(), rewrite(network()).model).inputs.is_synthetic
        True
    """
    bounds = Tolerances() if bounds is None else bounds
    arguments.instance("bounds", bounds, Tolerances, "write Tolerances(error=0.02)")
    io = arguments.choice("io", io, IOTypes)
    arguments.instance("inputs", inputs, InputSource, "omit it")
    own = tolerances.several(metrics)
    libraries = sessions.check_libraries(custom_ops)
    with TimeLimit(timeout).running():
        if samples is None:
            trials = feeds.trials(sessions.check_model("original", original), Data(steps=steps))
        else:
            trials = (Trial(sessions.check_samples(samples, original, steps), inputs),)
        return verify_trials(
            original,
            rewritten,
            trials,
            bounds,
            own,
            io=io,
            device=device,
            libraries=libraries,
        )


def verify_trials(
    original: ModelSource,
    rewritten: ModelSource,
    trials: Sequence[Trial],
    bounds: Tolerances,
    metrics: tuple[Metric, ...] = (),
    *,
    io: IOTypes = IOTypes.KEEP,
    device: Device | str | None = None,
    libraries: Libraries = (),
    on_step: Callable[[str], object] = lambda _: None,
) -> Verdict:
    """Return the verdict of `verify` on the best-conditioned trial; raise as `verify`.

    `on_step` is called with a description of each of the three steps, which take long for large models.
    """
    models = sessions.check_model("original", original), sessions.check_model("rewritten", rewritten)
    where = sessions.check_device(device)
    on_step("opening the original (1 of 3)")
    with emulation.reference(models[0], where, libraries) as reference:
        float32, before = reference.model, reference.session
        source = trials[0].source if before.get_inputs() else FROM_CALLER
        blank = Verdict(outputs=(), signature=(), how=_HOW[where], samples=0, inputs=source, device=where)
        try:
            on_step("opening the result (2 of 3)")
            with emulated(models[1], where, late=True) as runnable:
                after = _open_rewritten(runnable, where, libraries)
                differences, warnings = comparison.borders((float32, models[1]), before, after, io)
                notes = (*filter(None, [reference.note]), *warnings)
                blank = replace(blank, signature=differences, warnings=notes)
                half = emulation.half_of(runnable)
                if (effective := bounds.of(half)) != bounds and half is not None:
                    how = f"{blank.how}; an error of at most {effective.error:g}, as of {half.name}"
                    bounds, blank = effective, replace(blank, how=how)
                pair = ComparedModels(
                    float32, runnable, before, after, half, bounds, metrics, where, libraries
                )
                on_step("running both (3 of 3)")
                return blank if differences else judge(blank, pair, trials)
        except RewrittenRunError as error:
            cause = str(error)
            return replace(blank, signature=(f"the rewritten model does not run: {cause}",), failed_run=cause)


def _open_rewritten(model: Runnable, device: Device, libraries: Libraries) -> Any:
    try:
        return sessions.open_session(model, device, libraries)
    except ModelError as error:
        raise RewrittenRunError(error) from error


_HOW = {
    Device.CUDA: "CUDA, float32 without TF32 against half",
    Device.CPU: "CPU, float32 against half emulated",
}
