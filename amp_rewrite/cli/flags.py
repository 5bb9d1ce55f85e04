"""The flags that say how to rewrite, the same for every command that decides something."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from amp_rewrite import pipeline
from amp_rewrite.cli.grouping import grouped, written
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.analysis import Analysis
from amp_rewrite.numerics import half as halves
from amp_rewrite.policy import operator_lists, targets
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import SHIPPED_FOR, IOTypes, Level, Options, Pins
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.rewriting import plan_files

_REGEX = "Node names, or regular expressions that match a whole name."


def _choice(names: Sequence[str]) -> click.Choice[str]:
    return click.Choice(list(names), case_sensitive=False)


_FLAGS = (
    click.option(
        "--to",
        type=_choice(list(halves.BY_NAME)),
        default="float16",
        show_default=True,
        help="The half type.",
    ),
    click.option(
        "--target",
        type=_choice(list(targets.BY_NAME)),
        default=targets.ONNXRUNTIME_CUDA.name,
        show_default=True,
        help="The runtime that the model is for.",
    ),
    click.option(
        "--list",
        "list_",
        metavar="NAME|FILE",
        help="Operator lists: a shipped one (default, bfloat16, tensorflow) or a YAML file.",
    ),
    click.option("--allow", multiple=True, metavar="OP", help="Put an operator on the allow list."),
    click.option("--infer", multiple=True, metavar="OP", help="Put an operator on the infer list."),
    click.option("--clear", multiple=True, metavar="OP", help="Put an operator on the clear list."),
    click.option("--deny", multiple=True, metavar="OP", help="Put an operator on the deny list."),
    click.option(
        "--keep-full", multiple=True, metavar="REGEX", help=f"Keep these nodes in float32. {_REGEX}"
    ),
    click.option("--force-half", multiple=True, metavar="REGEX", help=f"Put these nodes in half. {_REGEX}"),
    click.option(
        "--level",
        type=_choice([level.value for level in Level]),
        default="default",
        show_default=True,
        help="How far to go.",
    ),
    click.option(
        "--no-follow",
        is_flag=True,
        help="Leave what leads to matrix products, and what follows them, in float32.",
    ),
    click.option(
        "--io",
        type=_choice([b.value for b in IOTypes]),
        default="keep",
        show_default=True,
        help="The type of the model's float32 inputs and outputs.",
    ),
    click.option(
        "--keep-io",
        multiple=True,
        metavar="NAME",
        help="With --io half: an input or output that stays float32.",
    ),
    click.option(
        "--keep-functions",
        is_flag=True,
        help="Leave calls of model-local functions alone, in float32.",
    ),
    click.option(
        "--plan",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Carry out a saved plan, which decides everything.",
    ),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the flags ask for; `decided` holds when any of them was written."""

    options: Options
    replay: plan_files.SavedPlan | None
    decided: bool

    def analyze(self, model: Path, progress: Progress | None = None) -> Analysis:
        """The analysis of a model as it is asked for."""
        return pipeline.analyze(model, self.options, replay=self.replay, progress=progress)


def _asked(flags: Mapping[str, Any]) -> Asked:
    _refuse_contradictions(flags)
    if flags["plan"]:
        replay = plan_files.load(str(flags["plan"]))
        return Asked(replay.over(Options()), replay, decided=True)
    half = halves.named(flags["to"])
    chosen = operator_lists.load(flags["list_"] or SHIPPED_FOR[half.name])
    for kind in (Kind.ALLOW, Kind.INFER, Kind.CLEAR, Kind.DENY):
        chosen = chosen.override(kind, flags[kind.value])
    options = Options(
        half=half,
        lists=chosen,
        target=targets.named(flags["target"]),
        level=Level(flags["level"]),
        follow=not flags["no_follow"],
        pins=Pins(tuple(flags["keep_full"]), tuple(flags["force_half"])),
        io=IOTypes(flags["io"]),
        keep_io=tuple(flags["keep_io"]),
        keep_functions=flags["keep_functions"],
    )
    return Asked(options, None, decided=bool(_written(flags)))


def _refuse_contradictions(flags: Mapping[str, Any]) -> None:
    _refuse_flags_beside_a_plan(flags)
    _refuse_two_lists(flags)
    if flags["keep_io"] and flags["io"] != IOTypes.HALF.value:
        raise OptionError("--keep-io is for --io half", remedy="add --io half, or leave out --keep-io")


def _refuse_flags_beside_a_plan(flags: Mapping[str, Any]) -> None:
    given = [flag for flag in _written(flags) if flag != "--plan"]
    if flags["plan"] and given:
        raise OptionError("--plan decides everything", remedy=f"leave out {' and '.join(given)}")


def _written(flags: Iterable[str]) -> list[str]:
    return list(written(click.get_current_context(), flags).values())


def _refuse_two_lists(flags: Mapping[str, Any]) -> None:
    seen: dict[str, str] = {}
    for kind in ("allow", "infer", "clear", "deny"):
        for operator in flags[kind]:
            if seen.setdefault(operator, kind) != kind:
                raise OptionError(
                    f"{operator} is in both --{seen[operator]} and --{kind}",
                    remedy="an operator can be on one list only",
                )


_NAMES = (
    "to target list_ allow infer clear deny keep_full force_half level no_follow io keep_io "
    "keep_functions plan"
).split()

decision_flags = grouped(_FLAGS, _NAMES, "asked", _asked)
"""Adds the flags of this module to a command; it gets them as `Asked` in `asked`."""
