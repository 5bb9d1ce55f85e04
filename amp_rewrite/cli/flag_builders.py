"""Flags: types of paths, builders, groups passed as one value, and the sections of `--help`."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from amp_rewrite.errors import OptionError
from amp_rewrite.policy.options import DECLARED, Beside, ExternalData
from amp_rewrite.process import executors
from amp_rewrite.text import understood

T = TypeVar("T")
Command = Callable[..., Any]
Flag = Callable[[Command], Command]


class _ReadPath(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; raise OptionError for a text that cannot be one."""
        if "\0" in str(value):
            raise OptionError(f"{value} is not a path: it has a null character", remedy="check the path")
        return super().convert(value, param, ctx)


PATH = _ReadPath(path_type=Path)
"""The type of arguments and flags that name a file or folder to read."""


class WrittenFile(click.Path):
    """The type of a file to write; with `takes_folder` also of a folder, which ends in a slash or exists."""

    def __init__(self, *, takes_folder: bool = False) -> None:
        super().__init__(path_type=Path)
        self._takes_folder = takes_folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; raise OptionError for a folder, an empty text, or `-` where it is not for JSON."""
        if str(value) == str(STANDARD_OUTPUT) and param is not None and param.name == "json_":
            return STANDARD_OUTPUT
        is_folder = str(value).endswith("/")
        if self._takes_folder and ctx is not None and (is_folder or os.path.isdir(value)):  # noqa: PTH112
            ctx.meta[FOLDER] = True
            return super().convert(value, param, ctx)
        problem = _NOT_A_FILE.get(str(value)) or ("is a folder's name" if is_folder else "")
        if problem:
            by = max(param.opts, key=len) if param is not None else "the output"
            raise OptionError(f"{by} {value}".strip() + f" {problem}", remedy="name a file")
        return super().convert(value, param, ctx)


FOLDER = "amp_rewrite.folder"
"""The key of a context whose output is a folder."""
STANDARD_OUTPUT = Path("-")
_NOT_A_FILE = {"": "is empty", "-": "is not a file: only --json writes to standard output"}

WRITTEN = WrittenFile()
"""The type of flags that name a file to write."""


def repeatable(name: str, metavar: str, help_: str, **settings: Any) -> Flag:
    """Build a flag that may be given several times, as its help then says."""
    return click.option(name, multiple=True, metavar=metavar, help=f"{help_} May be repeated.", **settings)


def switch(name: str, help_: str, *argument: str) -> Flag:
    """Build a flag without a value; `argument` is its parameter name in the command, if not its own."""
    return click.option(name, *argument, is_flag=True, help=help_)


def choice(
    name: str, values: Iterable[str], help_: str, default: str | None = None, *, figures: str = ""
) -> Flag:
    """Build a flag that takes one of these values, case-insensitive, or with `figures` a text with commas."""
    kind = (_ChoiceOrFigures if figures else Choice)(list(values), case_sensitive=False)
    metavar = f"[{'|'.join(values)}|{figures}]" if figures else None
    return click.option(name, type=kind, metavar=metavar, default=default, show_default=True, help=help_)


def words(name: str, meanings: Mapping[str, str], help_: str) -> Flag:
    """Build a flag that takes words, joined by commas or repeated; its help ends in their meanings."""

    def parse(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
        values = tuple(dict.fromkeys(word.strip().lower() for text in texts for word in text.split(",")))
        if unknown := next((word for word in values if word not in meanings), None):
            raise OptionError(f"{name} {unknown} is not a choice", remedy=f"it can be {', '.join(meanings)}")
        return values

    about = "; ".join(f"{word}: {meaning}" for word, meaning in meanings.items())
    return repeatable(name, f"[{'|'.join(meanings)}]", f"{help_} {about}.", callback=parse)


class Choice(click.Choice[str]):
    """One of several words; other names that the same thing has are understood."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word that is meant."""
        return super().convert(understood(str(value).lower(), self.choices), param, ctx)


class _ChoiceOrFigures(Choice):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a text with commas as it is, and anything else as a choice."""
        return value if "," in str(value) else super().convert(value, param, ctx)


def number(name: str, kind: Any, help_: str, default: float | None = None, *, metavar: str = "N") -> Flag:
    """Build a flag that takes a number of this kind."""
    return click.option(name, type=kind, metavar=metavar, default=default, show_default=True, help=help_)


def read_path(name: str, metavar: str, help_: str, *argument: str) -> Flag:
    """Build a flag that names a file or folder."""
    return click.option(name, *argument, type=PATH, metavar=metavar, help=help_)


def written_file(name: str, help_: str, *argument: str) -> Flag:
    """Build a flag that names a file to write."""
    return click.option(name, *argument, type=WRITTEN, metavar="FILE", help=help_)


def assignments(
    flag: str, texts: Iterable[str], metavar: str, parse: Callable[[str, str], T], what: str, example: str
) -> dict[str, T]:
    """Parse the texts NAME=VALUE of a flag, split at the last =, as a name may have one.

    `parse` takes a name and its value, and raises ValueError for a malformed one. Raises OptionError for
    that, and for a name with two different values (`what`).
    """
    values: dict[str, T] = {}
    for text in texts:
        name, _, word = text.rpartition("=")
        name = name.strip()
        try:
            value = parse(name, word) if name else None
        except ValueError:
            value = None
        if value is None:
            raise OptionError(f"{flag} {text} is not {metavar}", remedy=f"write it as in {flag} {example}")
        if values.setdefault(name, value) != value:
            raise OptionError(f"{flag} gives {name} two {what}", remedy="give it once")
    return values


def op_types(texts: Iterable[str]) -> dict[str, str]:
    """Parse the texts OPERATOR=TYPES of --op-type; raises as `assignments`."""
    return assignments(
        "--op-type", texts, OP_TYPE, lambda _, types: types, "declarations", "autoware:Op=float16"
    )


OP_TYPE = "DOMAIN:OP=TYPES"


def quantity(text: str, units: Mapping[str, float]) -> float:
    """Return a number with a unit, such as 2gb, in the base unit; 0 for any other text."""
    match = _QUANTITY.fullmatch(text)
    return float(match[1]) * units.get(match[2], 0) if match else 0.0


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)")


def grouped(flags: Sequence[Flag], argument: str, build: Callable[[Mapping[str, Any]], Any]) -> Flag:
    """Return a decorator that adds flags to a command and passes it the value of `build` as `argument`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def collected(**arguments: Any) -> Any:
            own = {name: arguments.pop(name) for name in names}
            return command(**{argument: build(own)}, **arguments)

        earlier: list[click.Parameter] = vars(command).get("__click_params__", [])
        parameters = vars(collected)["__click_params__"] = list(earlier)
        for flag in reversed(flags):
            flag(collected)
        names = [str(parameter.name) for parameter in reversed(parameters[len(earlier) :])]
        vars(collected)[_GROUPS] = [*vars(command).get(_GROUPS, ()), (names, build)]
        return collected

    return decorate


_GROUPS = "flag_groups"


def check_groups(context: click.Context) -> None:
    """Raise the errors in the flag groups of a command once, before it runs on many models."""
    with context.scope(cleanup=False):
        for names, build in vars(context.command.callback).get(_GROUPS, ()):
            build({name: context.params[name] for name in names})


def given_flags() -> str:
    """Return the flags of the current command as they were given; empty outside of a command."""
    context = click.get_current_context(silent=True)
    if context is None:
        return ""
    flags = written(context, (str(p.name) for p in context.command.params if isinstance(p, click.Option)))
    return " ".join(_flag(flag, context.params.get(name)) for name, flag in flags.items())


def _flag(flag: str, value: object) -> str:
    if value is True:
        return flag
    values: tuple[object, ...] = value if isinstance(value, tuple) else (value,)
    public_values = [each for each in values if isinstance(each, _PLAIN)]
    return " ".join(f"{flag} {_text(each)}" for each in public_values) or flag


def _text(value: object) -> str:
    if isinstance(value, Path):
        return value.name
    return f"{value:.12g}" if isinstance(value, float) else str(value)


_PLAIN = (str, int, float, Path)
"""The types whose values may be printed; of a path only the name, as its folder may be private."""


def written(context: click.Context, names: Iterable[str]) -> dict[str, str]:
    """Return the flags written on the command line, even with their default values, by argument name."""
    flags = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    return {
        name: flags.get(name, name)
        for name in names
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def executor_flag(what: str) -> Flag:
    """Build the flag `--executor`, whose help describes the work of the workers."""
    return click.option(
        "--executor",
        metavar="WHERE",
        help=f"{what}: the workers of a Dask scheduler, dask://HOST:PORT.",
    )


@contextlib.contextmanager
def opened(where: str | None) -> Generator[Executor | None]:
    """Yield the executor of that name, or None; raise as `executors.named`."""
    if where is None:
        yield None
        return
    with executors.named(where, "--executor") as executor:
        yield executor


# ---- destinations of a result, its weights and a report

_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _external_data(_: click.Context, __: click.Parameter, text: str) -> ExternalData:
    """Parse a word, or a size such as 2GB, which limits each data file."""
    if text.lower() in {beside.value for beside in Beside}:
        return ExternalData(Beside(text.lower()))
    largest = int(quantity(text.lower(), _UNITS))
    if not largest:
        raise OptionError(
            f"--external-data {text} is not a valid value",
            remedy="say auto, always, never, or a size such as 2GB",
        )
    return ExternalData(Beside.ALWAYS, largest)


_DECLARED = DECLARED["external_data"].flags[0]
external_data_flag: Any = click.option(
    _DECLARED.name,
    metavar=_DECLARED.metavar,
    default="auto",
    show_default=True,
    callback=_external_data,
    help=_DECLARED.about,
)

_REQUIREMENTS = {
    "half": "exit with code 1, after writing it, also if nothing in it is half",
    "verify": "so also if it could not be compared, or on synthetic inputs alone and is too far off there",
    "tensorrt": "TensorRT compiles it, without a GPU; a result that it refuses is not written",
}


def require_flag(*values: str) -> Flag:
    """Build the flag `--require`, which takes these values."""
    meanings = {value: _REQUIREMENTS[value] for value in values}
    return words("--require", meanings, "What the result must be:")


verbose_flag: Any = click.option(
    "-v", "--verbose", is_flag=True, help="Print everything: versions, times, ranges, proofs, all outputs."
)
quiet_flag: Any = click.option("-q", "--quiet", is_flag=True, help="Print errors only.")


def json_flag(what: str) -> Flag:
    """Build the flag `--json FILE`; the command gets the path, or None, as `json_`.

    For standard output, WritingCommand passes a temporary file of the name STANDARD_OUTPUT.
    """
    return written_file("--json", f"Write the {what} as JSON; - is standard output.", "json_")


def output_flag(default: str, *, takes_folder: bool = False) -> Flag:
    """Build the flag `--output FILE`; `default` is the default name that its help states.

    With `takes_folder` it may be a folder, as FOLDER in the context's `meta` then says.
    """
    more = " In a folder, or of several models, each keeps its name and its place." if takes_folder else ""
    return click.option(
        "-o",
        "--output",
        type=WrittenFile(takes_folder=takes_folder),
        metavar="FILE|FOLDER" if takes_folder else "FILE",
        help=f"Where to write; {default} beside the model if not given.{more}",
    )


# ---- the sections in which `--help` lists the options of a command

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Common": ("output", "to", "io", "keep_io", "keep_full", "target", "data", "tolerance", "json_", "html"),
    "What to print": ("show", "run"),
    "The measurement": ("seconds", "tf32"),
    "Files": (
        *("output", "in_place", "dry_run", "external_data", "json_", "html"),
        *("reports", "save_plan", "save_observed", "force"),
    ),
    "What becomes half": (
        *("to", "target", "list_", "allow", "deny", "keep_full", "force_half"),
        *("only", "op_type", "storage_only"),
        *("level", "io", "keep_io", "plan", "device", "gate", "opset"),
    ),
    "Value ranges": ("range", "calibrate", "executor"),
    "The train step": ("loss", "seed_value", "state", "gradient", "loss_scale", "implementation"),
    "The search": ("prefer", "budget"),
    "Inputs": ("data", "dim", "seed", "samples"),
    "The comparison": (
        *(
            "skip",
            "require",
            "provider",
            "custom_ops",
            "steps",
            "tolerance",
            "metric",
        ),
        *("per_node", "timeout"),
    ),
    "Rules": ("rules",),
}
"""The options of each section by argument name, in order; the last section takes all others."""

_RARE = frozenset(
    (
        *("external_data", "save_plan", "save_observed", "plan"),
        *("list_", "op_type", "only", "level", "gate", "opset", "executor"),
        *("seed", "samples", "custom_ops", "metric", "per_node"),
    )
)
"""The options of a command with many that `--help-all` lists, and `--help` does not."""
_OTHERS = "Options"


class SectionedCommand(click.Command):
    """A command whose options are listed in sections: the common ones by `--help`, all by `--help-all`."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with `--help-all`, which is listed where `--help` does not list all."""
        parameters = super().get_params(ctx)
        return [*parameters, _help_all(is_hidden=not self._has_many(parameters))]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections that have options of the command."""
        for title, rows in self._sections(ctx):
            with formatter.section(title):
                formatter.write_dl(rows)

    def _has_many(self, parameters: Sequence[click.Parameter]) -> bool:
        return sum(isinstance(parameter, click.Option) for parameter in parameters) > _MANY

    def _sections(self, ctx: click.Context) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        parameters = self.get_params(ctx)
        hidden = _RARE if self._has_many(parameters) and not ctx.meta.get(ALL) else ()
        options = (each for each in parameters if isinstance(each, click.Option) and each.name not in hidden)
        remaining = {str(option.name): row for option in options if (row := option.get_help_record(ctx))}
        if len(remaining) > _FEW:
            for title, names in SECTIONS.items():
                if rows := [remaining.pop(name) for name in names if name in remaining]:
                    yield title, rows
        yield _OTHERS, list(remaining.values())


ALL = "amp_rewrite.help_all"
"""The key of a context whose help lists all options."""


def _help_all(*, is_hidden: bool) -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, is_requested: bool) -> None:
        if is_requested and not ctx.resilient_parsing:
            ctx.meta[ALL] = True
            click.echo(ctx.get_help())
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        hidden=is_hidden,
        help="List all options.",
    )


_MANY = 30
"""The number of options from which `--help` lists the common ones."""
_FEW = 8
"""The number of options up to which sections are omitted."""
