"""The flags that decide what becomes half, shared by all commands that rewrite or analyse a model."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from amp_rewrite import pipeline
from amp_rewrite.cli.flag_builders import PATH, Flag, choice, grouped, read_path, repeatable, switch, written
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.numerics import half as halves
from amp_rewrite.policy import named_policies, operator_lists
from amp_rewrite.policy.named_policies import FLOAT32, Policy
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import DECLARED, SHIPPED_FOR, Declared, IOTypes, Level, Options, Pins
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.observations import Observed

_MEAN = {
    "allow": "it becomes half",
    "infer": "half between half nodes, unless its inputs come from a denied one",
    "clear": "it does no arithmetic, and takes the type of its neighbours",
    "deny": "it stays float32, and so do nodes that its results make doubtful",
}
_KINDS = tuple(_MEAN)
_REGEX = "Node names, or regular expressions that match a whole name."


def _one_list(list_names: tuple[str, ...]) -> str | None:
    """Return the name of the list; raise OptionError for two, one of which would win silently."""
    if len(list_names) > 1:
        remedy = "name one, which may extend another: extends: tensorflow"
        raise OptionError(f"--list names two: {list_names[0]} and {list_names[1]}", remedy=remedy)
    return list_names[0] if list_names else None


def _flag(name: str, declared: Declared) -> Flag:
    """Build the flag of a field, with the field's default."""
    if declared.values:
        default = getattr(Options(), name)
        word = default.value if isinstance(default, enum.Enum) else default.name
        return choice(declared.flag, declared.values, declared.about, word)
    if declared.metavar:
        return repeatable(declared.flag, declared.metavar, declared.about)
    return switch(declared.flag, declared.about)


def _argument(declared: Declared, flags: Mapping[str, Any]) -> Any:
    """Return the value of a field from the values of the flags."""
    value = flags[declared.flag.removeprefix("--").replace("-", "_")]
    return not value if declared.flag.startswith("--no-") else value


_OF_FIELDS = {name: declared for name, declared in DECLARED.items() if declared.flag}
_FLAGS = (
    _flag("half", DECLARED["half"]),
    choice(
        "--policy",
        named_policies.NAMES,
        "A precision policy under its Keras name, in place of --to: a final softmax stays float32, and "
        "float32 leaves the whole model in float32.",
    ),
    _flag("target", DECLARED["target"]),
    click.option(
        "--list",
        "list_",
        metavar="NAME|FILE",
        multiple=True,
        help="Operator lists: a shipped one (default, bfloat16, tensorflow) or a YAML file.",
    ),
    *(
        repeatable(f"--{kind}", "OP", f"Put an operator on the {kind} list: {_MEAN[kind]}.")
        for kind in _KINDS
    ),
    repeatable("--keep-full", "REGEX", f"Keep these nodes in float32. {_REGEX}"),
    repeatable("--force-half", "REGEX", f"Put these nodes in half. {_REGEX}"),
    *(_flag(name, each) for name, each in _OF_FIELDS.items() if name not in ("half", "target")),
    repeatable(
        "--range",
        "NAME=LO:HI",
        "The smallest and the largest value of an input, from which bounds of all other values follow.",
    ),
    repeatable(
        "--observed",
        "FILE",
        "Ranges that --save-observed wrote: what left half's range stays float32.",
        type=PATH,
    ),
)

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


def _resolve_flags(flags: Mapping[str, Any]) -> DecisionFlags:
    explicit = list(written(click.get_current_context(), flags).values())
    _refuse_contradictions(flags, explicit)
    if flags["plan"]:
        replay = plan_files.load(str(flags["plan"]))
        return DecisionFlags(replay.over(Options()), replay, decided=True)
    policy = named_policies.of(flags["policy"])
    half = (policy and policy.compute) or halves.named(flags["to"])
    operator_list = operator_lists.load(_one_list(flags["list_"]) or SHIPPED_FOR[half.name])
    for kind in _KINDS:
        operator_list = operator_list.override(Kind(kind), flags[kind])
    fields: dict[str, Any] = {name: _argument(declared, flags) for name, declared in _OF_FIELDS.items()}
    fields["half"] = half
    options = Options(
        **fields,
        lists=operator_list,
        pins=Pins(tuple(flags["keep_full"]), tuple(flags["force_half"])),
        ranges=_ranges(flags["range"]),
    )
    return DecisionFlags(
        options if policy is None else policy.options(options),
        None,
        decided=bool(explicit),
        seen=_observed(flags["observed"]),
        policy=policy,
    )


_EXAMPLE = "write it as in --range pixels=0:255"


def _ranges(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Parse ranges by input name; raise OptionError for a malformed, empty, NaN or repeated one.

    An input name may contain = or a colon, so the text is split at the last =.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, _, ends = text.rpartition("=")
        low, _, high = ends.partition(":")
        if not name:
            raise OptionError(f"--range {text} is not NAME=LO:HI", remedy=_EXAMPLE)
        if name in ranges:
            raise OptionError(f"--range gives {name} two ranges", remedy="give it once")
        ranges[name] = _ends(text, low, high)
    return ranges


def _ends(text: str, low: str, high: str) -> tuple[float, float]:
    try:
        ends = float(low), float(high)
    except ValueError:
        raise OptionError(f"--range {text} is not NAME=LO:HI", remedy=_EXAMPLE) from None
    if any(map(math.isnan, ends)):
        raise OptionError(f"--range {text} ends at NaN", remedy="give two numbers, the lower one first")
    if ends[0] > ends[1]:
        raise OptionError(f"--range {text} ends below where it begins", remedy="give the lower number first")
    return ends


def _observed(paths: Iterable[Path]) -> Observed | None:
    """Merge the observed ranges of all files; None without a file."""
    merged_ranges: Observed | None = None
    for path in paths:
        ranges = Observed.load(path)
        merged_ranges = ranges if merged_ranges is None else merged_ranges.merge(ranges)
    return merged_ranges


def _refuse_contradictions(flags: Mapping[str, Any], explicit: Iterable[str]) -> None:
    others = [flag for flag in explicit if flag != "--plan"]
    if flags["plan"] and others:
        raise OptionError("--plan decides everything", remedy=f"leave out {' and '.join(others)}")
    _refuse_two_lists(flags)
    _refuse_beside_policy(flags["policy"], explicit)
    if flags["observed"] and flags["level"] == Level.UNSAFE_FORCE_ALL.value:
        raise OptionError(
            f"--level {flags['level']} decides all, whatever is observed", remedy="leave out --observed"
        )
    if flags["keep_io"] and flags["io"] != IOTypes.HALF.value:
        raise OptionError("--keep-io is for --io half", remedy="add --io half, or leave out --keep-io")


def _refuse_beside_policy(policy: str | None, explicit: Iterable[str]) -> None:
    if policy is None:
        return
    idle = ["--to", *(("--list", *(f"--{kind}" for kind in _KINDS)) if policy == FLOAT32 else ())]
    if beside := [flag for flag in explicit if flag in idle]:
        raise OptionError(
            f"--policy {policy} decides what {' and '.join(beside)} would", remedy="leave out one of them"
        )


def _refuse_two_lists(flags: Mapping[str, Any]) -> None:
    kind_of: dict[str, str] = {}
    for kind in _KINDS:
        for operator in flags[kind]:
            if kind_of.setdefault(operator, kind) != kind:
                raise OptionError(
                    f"{operator} is in both --{kind_of[operator]} and --{kind}",
                    remedy="an operator can be on one list only",
                )


decision_flags = grouped((*_FLAGS, _PLAN), "asked", _resolve_flags)
"""A decorator that adds these flags to a command and passes them as `DecisionFlags` in `asked`."""

free_decision_flags = grouped(_FLAGS, "asked", lambda flags: _resolve_flags({**flags, "plan": None}))
"""The same decorator for a command that takes no plan."""
