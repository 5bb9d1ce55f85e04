"""The flags that decide what becomes half, from the fields of `Options`."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import click

from amp_rewrite import pipeline
from amp_rewrite.cli.flags import PATH, Record, command, written
from amp_rewrite.cli.records import SizeFlags, assignments, holds_ranges, quantity
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy import named_policies, operator_lists
from amp_rewrite.policy.flags import Flag, Need
from amp_rewrite.policy.named_policies import FLOAT32, Policy
from amp_rewrite.policy.operator_lists import Kind, OpLists
from amp_rewrite.policy.option_fields import STORAGE_ONLY
from amp_rewrite.policy.options import (
    CASTING,
    DECLARED,
    SHIPPED_FOR,
    Beside,
    ExternalData,
    Level,
    Options,
    Pins,
)
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs.feeds import Data

_OBSERVED = "Ranges that --save observed=FILE wrote (.json): what left half's range stays float32."
_SAMPLES = (
    "Record value ranges by running the float32 model on these samples; what leaves half's range stays "
    "float32: .npz files, directories of them, or ONNX test_data_set_* directories; or ranges that --save "
    "observed=FILE wrote (.json)."
)
_KERAS = (
    "The half type; or a precision policy under its Keras name: under a mixed one a final softmax stays "
    "float32, and float32 leaves the whole model in float32."
)
_CASTING = "With casting, every layer that is not denied."
_PLAN = Flag(
    name="--plan",
    about="Apply a saved plan; no other decision flag is allowed.",
    metavar="FILE",
    kind=PATH,
    rare=True,
)
VERIFY, REPAIR, ENGINE = "verify", "repair", "tensorrt"
"""The values of `--skip` and `--require` for the comparison of the result with the model, for the attempts
after a failed one, and for a result that TensorRT compiles.
"""
_REQUIREMENTS = {
    "half": "exit with code 1, after writing it, if nothing in it is half",
    VERIFY: "fail if the comparison could not run, or failed on synthetic inputs",
    ENGINE: "TensorRT compiles it, without a GPU; a result that it refuses is not written",
}
_REQUIRE_NEEDS = (
    Need("--skip verify", "compares nothing", word=VERIFY),
    Need("--dry-run", "makes no result", word=VERIFY),
    Need("--dry-run", "makes no result", word=ENGINE),
)
_FORCED = Level.UNSAFE_FORCE_ALL.value
_NO_PLAN = Need("--plan", "decides everything")
_NO_KERAS = (Need(f"--to {FLOAT32}", "leaves everything in float32"),)
_NEEDS = {
    "--keep-io": (Need("--io half", unless=("--io state",)),),
    **dict.fromkeys(("--list", "--allow", "--deny"), _NO_KERAS),
}
"""What flags need besides that no plan decides."""
_IN_PLAN = tuple(name for name, declared in DECLARED.items() if declared.in_plan)
_STEPS = frozenset(DECLARED[name].step for name in _IN_PLAN) - {""}


@dataclass(frozen=True)
class DecisionFlags(Record, title="What becomes half", argument="asked"):
    """The decisions of the flags; `decided` is true if any of them was written.

    `seen` holds the ranges observed earlier, `policy` the precision policy; None without one. `samples` are
    those to observe, `skipped` the steps of `--skip`, and `required` the words of `--require`, and
    `level` that of `--level`.
    """

    result: ClassVar[tuple[str, ...]] = ()
    """The fields of Options about the result that the command lets users choose."""
    steps: ClassVar[Mapping[str, str]] = {}
    """The steps of the command itself that `--skip` names, and what skipping them means."""
    requirements: ClassVar[tuple[str, ...]] = ()
    takes_plan: ClassVar[bool] = True
    takes_samples: ClassVar[bool] = False
    is_of_step: ClassVar[bool] = False

    options: Options
    replay: plan_files.SavedPlan | None
    decided: bool
    seen: Observed | None = None
    policy: Policy | None = None
    samples: tuple[Path, ...] = ()
    skipped: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    level: str = Level.DEFAULT.value

    @classmethod
    def flags(cls) -> Mapping[str, Flag]:
        """Return the flags of the fields of Options, `--calibrate`, `--skip`, `--require` and `--plan`."""
        flags = {
            argument(flag): replace(
                flag,
                default=_default(name, flag),
                needs=(*((_NO_PLAN,) if name in _IN_PLAN else ()), *_NEEDS.get(flag.name, ())),
            )
            for name in (*_IN_PLAN, *cls.result)
            for flag in DECLARED[name].flags
        }
        if cls.is_of_step:
            flags["to"] = replace(flags["to"], about=_KERAS, values=(*halves.BY_NAME, *named_policies.NAMES))
            level = flags["level"]
            flags["level"] = replace(
                level, about=f"{level.about} {_CASTING}", values=(*level.values, CASTING)
            )
        about = _SAMPLES if cls.takes_samples else _OBSERVED
        flags["calibrate"] = Flag(
            name="--calibrate",
            about=about,
            short="Keep what leaves half's range on these in float32.",
            metavar="PATH",
            kind=PATH,
            repeats=True,
            needs=(_NO_PLAN, Need(f"--level {_FORCED}", "decides all, whatever is observed")),
        )
        steps = {DECLARED[name].step: DECLARED[name] for name in (*cls.result, *_IN_PLAN)}
        meanings = {step: declared.skipping for step, declared in steps.items() if step}
        flags["skip"] = Flag(
            name="--skip",
            about="Skip steps:",
            short="Skip steps, such as verify.",
            words={**cls.steps, **meanings},
            rare_values=tuple(meanings),
            rare=not cls.steps,
            needs=(
                Need("--skip verify", "compares nothing", word=REPAIR),
                *(replace(_NO_PLAN, word=step) for step in sorted(_STEPS)),
            ),
        )
        if cls.requirements:
            flags["require"] = Flag(
                name="--require",
                about="What the result must be:",
                short=f"What the result must be: {', '.join(cls.requirements)}.",
                words={word: _REQUIREMENTS[word] for word in cls.requirements},
                needs=_REQUIRE_NEEDS,
            )
        return {**flags, **({"plan": _PLAN} if cls.takes_plan else {})}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> DecisionFlags:
        """Return the decisions; raise OptionError for flags that contradict each other."""
        skipped: tuple[str, ...] = values["skip"]
        samples = tuple(path for path in values["calibrate"] if not holds_ranges(path))
        ranges = tuple(path for path in values["calibrate"] if holds_ranges(path))
        if samples and not cls.takes_samples:
            problem = f"--calibrate {samples[0]}: this command runs no samples first"
            raise OptionError(problem, remedy="give ranges that amp-rewrite MODEL --save observed=FILE wrote")
        of_result = {argument(flag) for name in cls.result for flag in DECLARED[name].flags}
        others = of_result | {"skip", "require"} | (set() if ranges else {"calibrate"})
        deciding = written(click.get_current_context(), (name for name in values if name not in others))
        is_decided = bool(deciding) or not _STEPS.isdisjoint(skipped)
        result = _fields(values, cls.result, skipped)
        more: dict[str, Any] = {
            "samples": samples,
            "skipped": skipped,
            "required": values.get("require", ()),
            "level": values["level"],
        }
        if values.get("plan"):
            replay = plan_files.load(str(values["plan"]))
            return cls(replay.over(Options(**result)), replay, decided=True, **more)
        policy = named_policies.of(values["to"])
        options = Options(**result, **_fields(values, _IN_PLAN, skipped))
        options = options if policy is None else policy.options(options)
        return cls(options, None, is_decided, seen=_observed(ranges), policy=policy, **more)

    def analyze(self, model: Path, progress: Progress | None = None) -> Analysis:
        """Analyze a model under these flags; raise as `pipeline.analyze`."""
        return pipeline.analyze(
            model, self.options, replay=self.replay, observed=self.seen, progress=progress
        )


def argument(flag: Flag) -> str:
    """Return the name of a flag's value in Python."""
    name = flag.name.strip("-").replace("-", "_")
    return f"{name}_" if name == "list" else name


def _default(field: str, flag: Flag) -> Any:
    """Return the default of a choice: that of the field, as a word."""
    if not flag.values:
        return flag.default
    default = getattr(Options(), field)
    return default.value if isinstance(default, enum.Enum) else default.name


def _fields(flags: Mapping[str, Any], names: Iterable[str], skipped: Container[str]) -> dict[str, Any]:
    """Return the values of these fields of Options that the flags decide."""
    defaults, fields = Options(), dict[str, Any]()
    for name in names:
        declared = DECLARED[name]
        if declared.step:
            fields[name] = getattr(defaults, name) is not (declared.step in skipped)
        elif read := _READ.get(name):
            fields[name] = read(flags)
        elif declared.flags:
            fields[name] = flags[argument(declared.flags[0])]
    return fields


def _half(flags: Mapping[str, Any]) -> Half:
    policy = named_policies.of(flags["to"])
    return policy.compute or halves.FLOAT16 if policy else halves.named(flags["to"])


def _lists(flags: Mapping[str, Any]) -> OpLists:
    """Return the list with the moved operators; raise OptionError for two: one would win silently."""
    list_names = [text for text in flags["list_"] if _move(text) is None]
    if len(list_names) > 1:
        remedy = "name one, which may extend another: extends: tensorflow"
        raise OptionError(f"--list names two: {list_names[0]} and {list_names[1]}", remedy=remedy)
    operator_list = operator_lists.load(list_names[0] if list_names else SHIPPED_FOR[_half(flags).name])
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


def _opset(flags: Mapping[str, Any]) -> int | None:
    text = flags["opset"]
    if text in (None, "keep"):
        return None
    if not text.isdecimal():
        raise OptionError(f"--opset {text} is not a number", remedy="write --opset 17, or --opset keep")
    return int(text)


def _ends(_: str, text: str) -> tuple[float, float]:
    low, high = map(float, text.split(":"))
    return low, high


def op_types(texts: Iterable[str]) -> dict[str, str]:
    """Parse the texts OPERATOR=TYPES of --op-type; raises as `assignments`."""
    return assignments(
        "--op-type", texts, "DOMAIN:OP=TYPES", lambda _, types: types, "declarations", "autoware:Op=float16"
    )


def external_data(text: str) -> ExternalData:
    """Parse a word, or a size such as 2GB, which limits each data file."""
    if text.lower() in {beside.value for beside in Beside}:
        return ExternalData(text.lower())
    largest = int(quantity(text.lower(), _UNITS))
    if not largest:
        raise OptionError(
            f"--external-data {text} is not a valid value",
            remedy="say auto, always, never, or a size such as 2GB",
        )
    return ExternalData(Beside.ALWAYS, largest)


_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}

_READ: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "half": _half,
    "lists": _lists,
    "pins": lambda flags: Pins(**{argument(pin): flags[argument(pin)] for pin in DECLARED["pins"].flags}),
    "level": lambda flags: Level.DEFAULT if flags["level"] in (STORAGE_ONLY, CASTING) else flags["level"],
    "storage_only": lambda flags: flags["level"] == STORAGE_ONLY,
    "ranges": lambda flags: assignments(
        "--range", flags["range"], "NAME=LO:HI", _ends, "ranges", "pixels=0:255"
    ),
    "op_types": lambda flags: op_types(flags["op_type"]),
    "opset": _opset,
    "keep_opset": lambda flags: flags["opset"] == "keep",
    "external_data": lambda flags: external_data(flags["external_data"]),
}
"""The readers of fields that no single flag has as they are."""


def _observed(paths: Iterable[Path]) -> Observed | None:
    """Merge the observed ranges of all files; None without a file."""
    merged_ranges: Observed | None = None
    for path in paths:
        ranges = Observed.load(path)
        merged_ranges = ranges if merged_ranges is None else merged_ranges.merge(ranges)
    return merged_ranges


def options_of(flags: str) -> Options:
    """Return the options that the flags of a command line stand for, such as `--to bfloat16 --skip fold`.

    Raises OptionError and click.ClickException, as the command line does.

    Examples:
        >>> from amp_rewrite.cli.decisions import options_of
        >>> options_of("--to bfloat16 --skip fold").half.name
        'bfloat16'
    """

    @command(SizeFlags, DecisionFlags)
    def read(data: Data, asked: DecisionFlags) -> Options:
        return replace(asked.options, dims=data.dims)

    return read.main(shlex.split(flags), standalone_mode=False)


class RewriteDecisions(DecisionFlags):
    """The decisions of a rewrite."""

    result = ("check", "certify", "metadata", "external_data")
    steps: ClassVar[Mapping[str, str]] = {
        VERIFY: "the result is not compared with the model",
        REPAIR: "a failed comparison is not followed by a second attempt",
    }
    requirements = ("half", VERIFY, ENGINE)
    takes_samples = True


class TuneDecisions(DecisionFlags):
    """The decisions before a search."""

    result = ("external_data",)
    requirements = ("half",)
    takes_plan = False


class TrainDecisions(DecisionFlags):
    """The decisions on a train step."""

    result = ("external_data", "certify")
    steps: ClassVar[Mapping[str, str]] = {
        VERIFY: "three steps of the result are not compared with three of the model"
    }
    requirements = (VERIFY,)
    takes_plan = False
    is_of_step = True
