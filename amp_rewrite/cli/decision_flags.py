"""The flags that decide what becomes half, shared by all commands that rewrite or analyse a model."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
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
    written,
)
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


def _flags_of(*fields: str) -> tuple[Flag, ...]:
    return tuple(_flag(field, flag) for field in fields for flag in DECLARED[field].flags)


_FLAGS = (
    *_flags_of(*(name for name, declared in DECLARED.items() if declared.in_plan)),
    choice(
        "--policy",
        named_policies.NAMES,
        "A precision policy under its Keras name, in place of --to: a final softmax stays float32, and "
        "float32 leaves the whole model in float32.",
    ),
    repeatable(
        "--observed",
        "FILE",
        "Ranges that --save-observed wrote: what left half's range stays float32.",
        type=PATH,
    ),
)
_KINDS = tuple(flag.name for flag in DECLARED["lists"].flags[1:])
_PLAN = read_path("--plan", "FILE", "Apply a saved plan; no other decision flag is allowed.")


@dataclass(frozen=True, slots=True)
class DecisionFlags:
    """The decisions that the flags make; `decided` is true if any of them was written.

    `seen` holds the ranges observed earlier, `policy` the precision policy; None without one.
    """

    options: Options
    replay: plan_files.SavedPlan | None
    decided: bool
    seen: Observed | None = None
    policy: Policy | None = None

    def analyze(self, model: Path, progress: Progress | None = None) -> Analysis:
        """Analyze a model under these flags; raise as `pipeline.analyze`."""
        return pipeline.analyze(
            model, self.options, replay=self.replay, observed=self.seen, progress=progress
        )


def _resolved(flags: Mapping[str, Any], result: Mapping[str, Any]) -> DecisionFlags:
    """Return the decisions of the flags; `result` are the fields of Options that no plan has."""
    explicit = list(written(click.get_current_context(), flags).values())
    _refuse_contradictions(flags, explicit)
    if flags.get("plan"):
        replay = plan_files.load(str(flags["plan"]))
        return DecisionFlags(replay.over(Options(**result)), replay, decided=True)
    policy = named_policies.of(flags["policy"])
    options = Options(**result, **_fields(flags))
    return DecisionFlags(
        options if policy is None else policy.options(options),
        None,
        decided=bool(explicit),
        seen=_observed(flags["observed"]),
        policy=policy,
    )


def _fields(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of Options that these flags decide."""
    return {
        name: _READ.get(name, _value)(flags, *declared.flags)
        for name, declared in DECLARED.items()
        if any(flag.argument in flags for flag in declared.flags)
    }


def _value(flags: Mapping[str, Any], flag: DeclaredFlag) -> Any:
    value = flags[flag.argument]
    return not value if flag.name.startswith("--no-") else value


def _half(flags: Mapping[str, Any], flag: DeclaredFlag) -> Half:
    policy = named_policies.of(flags["policy"])
    return (policy and policy.compute) or halves.named(flags[flag.argument])


def _lists(flags: Mapping[str, Any], names: DeclaredFlag, *kinds: DeclaredFlag) -> OpLists:
    """Return the list with the moved operators; raise OptionError for two: one would win silently."""
    list_names = flags[names.argument]
    if len(list_names) > 1:
        remedy = "name one, which may extend another: extends: tensorflow"
        raise OptionError(f"--list names two: {list_names[0]} and {list_names[1]}", remedy=remedy)
    half = _half(flags, *DECLARED["half"].flags)
    operator_list = operator_lists.load(list_names[0] if list_names else SHIPPED_FOR[half.name])
    for kind in kinds:
        operator_list = operator_list.override(Kind(kind.argument), flags[kind.argument])
    return operator_list


def _pins(flags: Mapping[str, Any], *pins: DeclaredFlag) -> Pins:
    return Pins(**{pin.argument: flags[pin.argument] for pin in pins})


def _ranges(flags: Mapping[str, Any], flag: DeclaredFlag) -> dict[str, tuple[float, float]]:
    return assignments(flag.name, flags[flag.argument], flag.metavar, _ends, "ranges", "pixels=0:255")


def _opset(flags: Mapping[str, Any], flag: DeclaredFlag) -> int | None:
    texts = flags[flag.argument]
    if len(texts) > 1 or not all(map(str.isdecimal, texts)):
        raise OptionError(f"{flag.name} {' '.join(texts)} is not one number", remedy=f"write {flag.name} 17")
    return int(texts[0]) if texts else None


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


def _refuse_contradictions(flags: Mapping[str, Any], explicit: Iterable[str]) -> None:
    others = [flag for flag in explicit if flag != "--plan"]
    if flags.get("plan") and others:
        raise OptionError("--plan decides everything", remedy=f"leave out {' and '.join(others)}")
    _refuse_two_lists(flags)
    _refuse_beside_policy(flags["policy"], explicit)
    if flags["observed"] and flags["level"] == Level.UNSAFE_FORCE_ALL.value:
        raise OptionError(
            f"--level {flags['level']} decides all, whatever is observed", remedy="leave out --observed"
        )
    if flags["keep_io"] and flags["io"] == IOTypes.KEEP.value:
        raise OptionError("--keep-io is for --io half or state", remedy="add one, or leave out --keep-io")


def _refuse_beside_policy(policy: str | None, explicit: Iterable[str]) -> None:
    if policy is None:
        return
    idle = ["--to", *(("--list", *_KINDS) if policy == FLOAT32 else ())]
    if beside := [flag for flag in explicit if flag in idle]:
        raise OptionError(
            f"--policy {policy} decides what {' and '.join(beside)} would", remedy="leave out one of them"
        )


def _refuse_two_lists(flags: Mapping[str, Any]) -> None:
    kind_of: dict[str, str] = {}
    for kind in _KINDS:
        for operator in flags[kind.removeprefix("--")]:
            if kind_of.setdefault(operator, kind) != kind:
                raise OptionError(
                    f"{operator} is in both {kind_of[operator]} and {kind}",
                    remedy="an operator can be on one list only",
                )


def decision_flags(*result: str, takes_plan: bool = True) -> Flag:
    """Return a decorator that adds these flags to a command and passes them as `DecisionFlags` in `asked`.

    `result` names the fields about the result that the command lets users choose.
    """
    names = [flag.argument for field in result for flag in DECLARED[field].flags]

    def build(flags: Mapping[str, Any]) -> DecisionFlags:
        deciding = {name: value for name, value in flags.items() if name not in names}
        return _resolved(deciding, _fields({name: flags[name] for name in names}))

    return grouped((*_flags_of(*result), *_FLAGS, *([_PLAN] if takes_plan else [])), "asked", build)
