"""The flags that decide what becomes half, shared by all commands that rewrite or analyse a model."""

from __future__ import annotations

import enum
import math
import shlex
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from amp_rewrite import pipeline
from amp_rewrite.cli.flag_builders import (
    PATH,
    Flag,
    assignments,
    choice,
    external_data_flag,
    grouped,
    op_types,
    read_path,
    repeatable,
    switch,
    words,
    written,
)
from amp_rewrite.cli.input_flags import counted_flags, holds_ranges
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy import named_policies, operator_lists
from amp_rewrite.policy.named_policies import FLOAT32, Policy
from amp_rewrite.policy.operator_lists import Kind, OpLists
from amp_rewrite.policy.options import DECLARED, SHIPPED_FOR, DeclaredFlag, IOTypes, Level, Options, Pins
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs.feeds import Data


def _flag(field: str, flag: DeclaredFlag) -> Flag:
    """Build a flag of a field, with the field's default."""
    default = getattr(Options(), field)
    if flag.values:
        word = default.value if isinstance(default, enum.Enum) else default.name
        return choice(flag.name, flag.values, flag.about, word, figures=flag.metavar)
    if field == "external_data":
        return external_data_flag
    if not flag.metavar:
        return switch(flag.name, flag.about)
    about = f"{flag.about} May be repeated." if flag.repeats else flag.about
    return click.option(flag.name, flag.argument, metavar=flag.metavar, multiple=True, help=about)


def skip_flag(steps: Mapping[str, str]) -> Flag:
    """Build the flag `--skip`, whose values are steps; `steps` says of each what skipping it means."""
    return words("--skip", steps, "Skip steps:")


def _steps_of(*fields: str) -> dict[str, str]:
    return {step: DECLARED[field].skipping for field in fields if (step := DECLARED[field].step)}


def _flags_of(*fields: str) -> tuple[Flag, ...]:
    return tuple(_flag(field, flag) for field in fields for flag in DECLARED[field].flags)


_IN_PLAN = tuple(name for name, declared in DECLARED.items() if declared.in_plan)
_TO = (
    "The half type; or a precision policy under its Keras name: under a mixed one a final softmax stays "
    "float32, and float32 leaves the whole model in float32."
)
_FLAGS = (
    choice("--to", (*halves.BY_NAME, *named_policies.NAMES), _TO, halves.FLOAT16.name),
    *_flags_of(*(name for name in _IN_PLAN if name != "half")),
)
_STEPS = _steps_of(*_IN_PLAN)
_PLAN = read_path("--plan", "FILE", "Apply a saved plan; no other decision flag is allowed.")
_OBSERVED = "Ranges that --save-observed wrote (.json): what left half's range stays float32."
_SAMPLES = (
    "Run the float32 model on these samples first, and keep in float32 what leaves half's range on them: "
    ".npz files, directories of them, or ONNX test_data_set_* directories; or ranges that --save-observed "
    "wrote (.json)."
)


@dataclass(frozen=True, slots=True)
class DecisionFlags:
    """The decisions that the flags make; `decided` is true if any of them was written.

    `seen` holds the ranges observed earlier, `policy` the precision policy; None without one. `samples` are
    those to observe, and `skipped` the steps of `--skip`.
    """

    options: Options
    replay: plan_files.SavedPlan | None
    decided: bool
    seen: Observed | None = None
    policy: Policy | None = None
    samples: tuple[Path, ...] = ()
    skipped: tuple[str, ...] = ()

    def analyze(self, model: Path, progress: Progress | None = None) -> Analysis:
        """Analyze a model under these flags; raise as `pipeline.analyze`."""
        return pipeline.analyze(
            model, self.options, replay=self.replay, observed=self.seen, progress=progress
        )


def _resolved(flags: Mapping[str, Any], result: Mapping[str, Any], skipped: tuple[str, ...]) -> DecisionFlags:
    """Return the decisions of the flags; `result` are the fields of Options that no plan has."""
    steps = [f"--skip {step}" for step in dict.fromkeys(skipped) if step in _STEPS]
    samples = tuple(path for path in flags["calibrate"] if not holds_ranges(path))
    observed = tuple(path for path in flags["calibrate"] if holds_ranges(path))
    decides = [name for name in flags if name != "calibrate" or observed]
    explicit = [*written(click.get_current_context(), decides).values(), *steps]
    _refuse_contradictions(flags, explicit, observed)
    if flags.get("plan"):
        replay = plan_files.load(str(flags["plan"]))
        options = replay.over(Options(**result))
        return DecisionFlags(options, replay, decided=True, samples=samples, skipped=skipped)
    policy = named_policies.of(flags["to"])
    decided = _fields(flags) | _of_steps(skipped, _IN_PLAN)
    options = Options(**result, **decided, keep_opset=_keeps_opset(flags))
    return DecisionFlags(
        options if policy is None else policy.options(options),
        None,
        decided=bool(explicit),
        seen=_observed(observed),
        policy=policy,
        samples=samples,
        skipped=skipped,
    )


def _of_steps(skipped: Container[str], fields: Iterable[str]) -> dict[str, Any]:
    """Return the fields of Options that skipping these steps reverses."""
    defaults = Options()
    return {name: not getattr(defaults, name) for name in fields if DECLARED[name].step in skipped}


def _fields(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of Options that these flags decide."""
    return {
        name: _READ.get(name, _value)(flags, *declared.flags)
        for name, declared in DECLARED.items()
        if declared.flags and all(flag.argument in flags for flag in declared.flags)
    }


def _value(flags: Mapping[str, Any], flag: DeclaredFlag) -> Any:
    return flags[flag.argument]


def _half(flags: Mapping[str, Any], flag: DeclaredFlag) -> Half:
    policy = named_policies.of(flags[flag.argument])
    return policy.compute or halves.FLOAT16 if policy else halves.named(flags[flag.argument])


def _lists(flags: Mapping[str, Any], *_: DeclaredFlag) -> OpLists:
    """Return the list with the moved operators; raise OptionError for two: one would win silently."""
    list_names = [text for text in flags["list_"] if _move(text) is None]
    if len(list_names) > 1:
        remedy = "name one, which may extend another: extends: tensorflow"
        raise OptionError(f"--list names two: {list_names[0]} and {list_names[1]}", remedy=remedy)
    half = _half(flags, *DECLARED["half"].flags)
    operator_list = operator_lists.load(list_names[0] if list_names else SHIPPED_FOR[half.name])
    moves = _moves(flags)
    for kind in Kind:
        operators = [operator for operator, (of_operator, _) in moves.items() if of_operator is kind]
        operator_list = operator_list.override(kind, operators)
    return operator_list


def _moves(flags: Mapping[str, Any]) -> dict[str, tuple[Kind, str]]:
    """Return the kind of each operator that a flag moves, and the flag; OptionError for two kinds."""
    moves: dict[str, tuple[Kind, str]] = {}
    inline = [(*move, f"--list {move[0].value}") for text in flags["list_"] if (move := _move(text))]
    short = [(kind, each, f"--{kind.value}") for kind in _SHORT for each in flags[kind.value]]
    for kind, operator, flag in (*inline, *short):
        other_kind, other_flag = moves.setdefault(operator, (kind, flag))
        if other_kind is not kind:
            problem = f"{operator} is in both {other_flag} and {flag}"
            raise OptionError(problem, remedy="an operator can be on one list only")
    return moves


def _move(text: str) -> tuple[Kind, str] | None:
    """Return the kind and the operator of a text such as infer=Softmax; None for any other."""
    kind, _, operator = text.partition("=")
    return (_KINDS[kind], operator) if kind in _KINDS and operator else None


_KINDS = {kind.value: kind for kind in Kind if kind is not Kind.FIXED}
_SHORT = (Kind.ALLOW, Kind.DENY)
"""The kinds with a flag of their own."""


def _pins(flags: Mapping[str, Any], *pins: DeclaredFlag) -> Pins:
    return Pins(**{pin.argument: flags[pin.argument] for pin in pins})


def _ranges(flags: Mapping[str, Any], flag: DeclaredFlag) -> dict[str, tuple[float, float]]:
    return assignments(flag.name, flags[flag.argument], flag.metavar, _ends, "ranges", "pixels=0:255")


def _keeps_opset(flags: Mapping[str, Any]) -> bool:
    return "keep" in flags["opset"]


def _opset(flags: Mapping[str, Any], flag: DeclaredFlag) -> int | None:
    texts = flags[flag.argument]
    if len(texts) > 1 or not all(text.isdecimal() or text == "keep" for text in texts):
        problem = f"{flag.name} {' '.join(texts)} is not one number"
        raise OptionError(problem, remedy=f"write {flag.name} 17, or {flag.name} keep")
    return int(texts[0]) if texts and not _keeps_opset(flags) else None


def _ends(name: str, text: str) -> tuple[float, float]:
    """Parse a range; raise OptionError for an empty one and for NaN."""
    low, high = map(float, text.split(":"))
    problem = remedy = ""
    if math.isnan(low) or math.isnan(high):
        problem, remedy = "ends at NaN", "give two numbers, the lower one first"
    elif low > high:
        problem, remedy = "ends below where it begins", "give the lower number first"
    if problem:
        raise OptionError(f"--range {name}={text} {problem}", remedy=remedy)
    return low, high


_READ: Mapping[str, Callable[..., Any]] = {
    "half": _half,
    "lists": _lists,
    "pins": _pins,
    "ranges": _ranges,
    "op_types": lambda flags, flag: op_types(flags[flag.argument]),
    "opset": _opset,
}
"""The readers of fields that no single flag has as they are."""


def _observed(paths: Iterable[Path]) -> Observed | None:
    """Merge the observed ranges of all files; None without a file."""
    merged_ranges: Observed | None = None
    for path in paths:
        ranges = Observed.load(path)
        merged_ranges = ranges if merged_ranges is None else merged_ranges.merge(ranges)
    return merged_ranges


def _refuse_contradictions(
    flags: Mapping[str, Any], explicit: Iterable[str], observed: Iterable[Path]
) -> None:
    others = [flag for flag in explicit if flag != "--plan"]
    if flags.get("plan") and others:
        raise OptionError("--plan decides everything", remedy=f"leave out {' and '.join(others)}")
    idle = ("--list", *(f"--{kind.value}" for kind in _SHORT)) if flags["to"] == FLOAT32 else ()
    if beside := [flag for flag in explicit if flag in idle]:
        problem = f"--to {FLOAT32} decides what {' and '.join(beside)} would"
        raise OptionError(problem, remedy="leave out one of them")
    if observed and flags["level"] == Level.UNSAFE_FORCE_ALL.value:
        raise OptionError(
            f"--level {flags['level']} decides all, whatever is observed", remedy="leave out --calibrate"
        )
    if flags["keep_io"] and flags["io"] == IOTypes.KEEP.value:
        raise OptionError("--keep-io is for --io half or state", remedy="add one, or leave out --keep-io")


def options_of(flags: str) -> Options:
    """Return the options that the flags of a command line stand for, such as `--to bfloat16 --skip fold`.

    Raises OptionError and click.ClickException, as the command line does.

    Examples:
        >>> from amp_rewrite.cli.decision_flags import options_of
        >>> options_of("--to bfloat16 --skip fold").half.name
        'bfloat16'
    """

    @click.command()
    @counted_flags
    @decision_flags()
    def read(data: Data, asked: DecisionFlags) -> Options:
        return replace(asked.options, dims=data.dims)

    return read.main(shlex.split(flags), standalone_mode=False)


def decision_flags(
    *result: str,
    takes_plan: bool = True,
    takes_samples: bool = False,
    steps: Mapping[str, str] = MappingProxyType({}),
) -> Flag:
    """Return a decorator that adds these flags to a command and passes them as `DecisionFlags` in `asked`.

    `result` names the fields about the result that the command lets users choose, and `steps` those that the
    command itself can skip.
    """
    names = [flag.argument for field in result for flag in DECLARED[field].flags]

    def build(flags: Mapping[str, Any]) -> DecisionFlags:
        deciding = {name: value for name, value in flags.items() if name not in (*names, "skip")}
        of_result = _fields({name: flags[name] for name in names}) | _of_steps(flags["skip"], result)
        decisions = _resolved(deciding, of_result, flags["skip"])
        if decisions.samples and not takes_samples:
            problem = f"--calibrate {decisions.samples[0]}: this command runs no samples first"
            raise OptionError(problem, remedy="give ranges that amp-rewrite MODEL --save-observed wrote")
        return decisions

    about = _SAMPLES if takes_samples else _OBSERVED
    flags = (
        *_flags_of(*result),
        *_FLAGS,
        repeatable("--calibrate", "PATH", about, type=PATH),
        skip_flag({**steps, **_steps_of(*result), **_STEPS}),
        *([_PLAN] if takes_plan else []),
    )
    return grouped(flags, "asked", build)
