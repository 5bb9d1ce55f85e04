"""Flags from records: the options of a command, the groups of its `--help`, and flags without effect.

A record is a dataclass whose fields have a `Flag` in their metadata. A command that is declared with records
gets an instance of each, read from the flags.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import click
from click.core import ParameterSource

from amp_rewrite.errors import OptionError
from amp_rewrite.text import understood

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What a flag, or only this `word` of it, needs: that another `flag` is given, or, where that `does`
    something, that it is not, unless one of `unless` is given. Else it is refused, as it has no effect.
    """

    flag: str
    does: str = ""
    unless: tuple[str, ...] = ()
    word: str = ""


class Flag(click.Option):
    """A flag as an option of click, for an `argument` of the command, in a `group` of its help.

    It is `written` as in `--gate`, `--opset N`, or `--data PATH...`, which repeats. It takes one of some
    `values`, words that have meanings, a text like its metavar, or nothing. `about` is its help: `--help`
    prints the first sentence, or `short`, and `--help-all` everything. A `rare` flag is listed by
    `--help-all` alone, and `rare_values` are hidden. `kind` is the type of click that parses it. `sets` has
    the fields and arguments that messages of the library name, each with what follows the flag there.
    """

    def __init__(
        self,
        written: str,
        about: str,
        kind: Any = None,
        *,
        short: str = "",
        values: tuple[str, ...] = (),
        words: Mapping[str, str] | None = None,
        rare_values: tuple[str, ...] = (),
        rare: bool = False,
        default: Any = None,
        needs: tuple[Need, ...] = (),
        sets: Mapping[str, str] | None = None,
        argument: str = "",
        group: str = "",
    ) -> None:
        self.settings = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        self.flag, _, metavar = written.partition(" ")
        self.short, self.rare, self.values = short or about, rare, values
        self.words, self.needs, self.sets, self.group = words or {}, needs, sets or {}, group
        self.text = metavar.removesuffix("...")
        meanings = "; ".join(f"{word}: {meaning}" for word, meaning in self.words.items())
        is_multiple = metavar.endswith("...") or bool(self.words)
        parts = (about, f"{meanings}." if meanings else "", "May be repeated." if is_multiple else "")
        shown = [value for value in (*values, *self.words) if value not in rare_values]
        choices = "|".join(filter(None, (*shown, self.text)))
        settings: dict[str, Any] = {"is_flag": True}
        if values or self.words or metavar:
            settings = {
                "multiple": is_multiple,
                "metavar": f"[{choices}]" if shown else self.text or "WORD",
                "show_default": default not in (None, ()),
                "default": () if is_multiple else default,
                "callback": _words if self.words else None,
                "type": WordChoice(values, case_sensitive=False) if values and kind is None else kind,
            }
        names = [self.flag, *filter(None, [argument]), *_SHORT_NAMES.get(self.flag, ())]
        super().__init__(names, help=" ".join(filter(None, parts)), **settings)

    @property
    def empty(self) -> Any:
        """The value of a flag that is not given."""
        return () if self.multiple else False if self.is_flag else self.settings["default"]

    def other(self, **settings: Any) -> Flag:
        """Return the flag with some other settings."""
        return Flag(**{**self.settings, **settings})

    @property
    def brief(self) -> tuple[str, str] | None:
        """The row of `--help`: on one line, with the first sentence; None for a rare flag."""
        if self.rare:
            return None
        names = ", ".join(sorted(self.opts, key=len))
        metavar = "" if self.is_flag else str(self.metavar or "")
        if len(metavar) > _WIDEST:
            metavar = self.text or ("WORD" if self.words else "NAME")
        about = re.split(r"(?<=[.])\s", self.short)[0]
        if about.endswith(":"):
            about = f"{about} {', '.join(self.words)}." if metavar == "WORD" else f"{about[:-1]}."
        return f"{names} {metavar}".strip(), about


_SHORT_NAMES = {"--output": ("-o",), "--quiet": ("-q",), "--verbose": ("-v",)}
_WIDEST = 20
"""The characters of a list of values that `--help` shows on one line."""


def _words(_: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words in these texts, joined by commas or repeated; raise OptionError for an unknown one."""
    assert isinstance(param, Flag), "it is a callback of these"
    values = tuple(dict.fromkeys(word.strip().lower() for text in texts for word in text.split(",")))
    if unknown := next((word for word in values if word not in param.words), None):
        remedy = f"it can be {', '.join(param.words)}"
        raise OptionError(f"{param.flag} {unknown} is not a choice", remedy=remedy)
    return values


class WordChoice(click.Choice[str]):
    """One of several words; other names that the same thing has are understood."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word that is meant."""
        return super().convert(understood(str(value).lower(), self.choices), param, ctx)


class Record:
    """Flags that belong together: `title` is their group in `--help`, `argument` what the command gets."""

    title: ClassVar[str]
    argument: ClassVar[str]

    def __init_subclass__(cls, *, title: str = "", argument: str = "") -> None:
        cls.title = title or cls.title
        cls.argument = argument or cls.argument

    @classmethod
    def flags(cls) -> Mapping[str, Flag]:
        """Return the flags by the names of their values in Python, those of a subclass first."""
        own = {each.name: each.metadata[_FLAG] for each in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
        names = (
            name for part in cls.__mro__ for name in vars(part).get("__annotations__", ()) if name in own
        )
        return {name: own[name] for name in dict.fromkeys(names)}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Return the record of the parsed flags; raises OptionError."""
        return cls(**values)


_FLAG = "flag"


def flag(written: str, about: str, kind: Any = None, **settings: Any) -> Any:
    """Return a field of a record that a flag sets, with the settings of `Flag`."""
    return as_field(Flag(written, about, kind, **settings))


def as_field(flag: Flag) -> Any:
    """Return the field of a record that a flag sets."""
    return dataclasses.field(default=flag.empty, metadata={_FLAG: flag})


# ---- types of values


class _ReadPath(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; raise OptionError for a text that cannot be one, on which click fails."""
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
        """Return the path; raise OptionError for a folder, or `-` where it is not for JSON."""
        if str(value) == str(STANDARD_OUTPUT) and param is not None and param.name == "json_":
            return STANDARD_OUTPUT
        is_folder = str(value).endswith("/")
        if self._takes_folder and ctx is not None and (is_folder or os.path.isdir(value)):  # noqa: PTH112
            ctx.meta[FOLDER] = True
            return super().convert(value, param, ctx)
        problem = _NO_STREAM if str(value) == "-" else "is a folder's name" if is_folder else ""
        if problem:
            by = max(param.opts, key=len) if param is not None else "the output"
            raise OptionError(f"{by} {value} {problem}", remedy="name a file")
        return super().convert(value, param, ctx)


FOLDER = "amp_rewrite.folder"
"""The key of a context whose output is a folder."""
STANDARD_OUTPUT = Path("-")
_NO_STREAM = "is not a file: only --json writes to standard output"
WRITTEN = WrittenFile()
"""The type of flags that name a file to write."""


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """A file of a format, as `--save FORMAT=FILE` names it."""

    format: str
    path: Path


class _SavedFile(WrittenFile):
    def __init__(self, formats: Iterable[str]) -> None:
        super().__init__()
        self._formats = tuple(formats)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Saved:
        """Return the file and its format; raise OptionError for another text."""
        format_, _, path = str(value).partition("=")
        if format_ not in self._formats or not path:
            remedy = f"write it as in --save {self._formats[0]}=FILE; it can be {', '.join(self._formats)}"
            raise OptionError(f"--save {value} is not FORMAT=FILE", remedy=remedy)
        return Saved(format_, super().convert(path, param, ctx))


def save(formats: Mapping[str, str], sets: Mapping[str, str], needs: tuple[Need, ...] = ()) -> Any:
    """Return the field of `--save`, with the meanings of these formats."""
    about = "; ".join(f"{name}: {meaning}" for name, meaning in formats.items())
    return flag(
        "--save FORMAT=FILE...",
        f"Write a further file. {about}.",
        _SavedFile(formats),
        rare=True,
        needs=needs,
        sets=sets,
    )


# ---- commands


class Command(click.Command):
    """A command whose function gets records: the common flags are listed by `--help`, all by `--help-all`."""

    records: tuple[type[Record], ...] = ()

    def read(self, ctx: click.Context) -> dict[str, Any]:
        """Return the arguments of the function, with its records; raises OptionError, also for flags without
        effect.
        """
        refuse_ineffective(ctx)
        arguments = dict(ctx.params)
        for record in self.records:
            values = {name: arguments.pop(name) for name in record.flags()}
            arguments[record.argument] = record.read(values)
        return arguments

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with its records; raise OptionError for what they refuse."""
        return ctx.invoke(self.callback, **self.read(ctx)) if self.callback else None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with `--help-all`, which is listed where `--help` does not list all."""
        parameters = super().get_params(ctx)
        has_rare = any(isinstance(each, Flag) and each.rare for each in parameters)
        return [*parameters, _help_all(is_hidden=not has_rare)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups of options, which are the records."""
        lists_all = bool(ctx.meta.get(ALL))
        groups: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if isinstance(each, Flag):
                row = each.get_help_record(ctx) if lists_all else each.brief
            else:
                row = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if row is not None:
                groups.setdefault(getattr(each, "group", _OTHERS), []).append(row)
        groups[_OTHERS] = groups.pop(_OTHERS)  # the last
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=_COLUMN)


ALL = "amp_rewrite.help_all"
"""The key of a context whose help lists all options."""
_OTHERS = "Help"
_COLUMN = 34


def command(*records: type[Record], kind: type[Command] = Command) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that makes a command whose flags are those of the records."""

    def decorate(function: Callable[..., Any]) -> Command:
        made = click.command(cls=kind, context_settings={"max_content_width": 100})(function)
        made.records = records
        made.params += [
            each.other(argument=name, group=record.title)
            for record in records
            for name, each in record.flags().items()
        ]
        return made

    return decorate


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


# ---- what was written on the command line


def written(context: click.Context, names: Iterable[str]) -> dict[str, str]:
    """Return the flags written on the command line, even with their default values, by argument name."""
    options = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    return {
        name: options.get(name, name)
        for name in names
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def given_flags(*, without: Iterable[str] = ()) -> str:
    """Return the flags of the current command as they were given, but for some arguments; empty outside of
    a command.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return ""
    options = (each.name for each in context.command.params if isinstance(each, Flag))
    flags = written(context, (name for name in options if name and name not in without))
    return " ".join(_as_given(flag, context.params.get(name)) for name, flag in flags.items())


def _as_given(flag: str, value: object) -> str:
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


def refuse_ineffective(context: click.Context) -> None:
    """Raise OptionError for a flag that lacks what it needs (`Flag.needs`).

    A flag, or one of its words or values, counts as `--skip` and `--skip verify`.
    """
    flags: dict[str, Flag] = {}
    explicit: set[str] = set()
    for each in context.command.params:
        if isinstance(each, Flag) and written(context, [str(each.name)]):
            value = context.params[str(each.name)]
            words = value if isinstance(value, tuple) else (value,)
            flags[each.flag] = each
            texts = (word.format if isinstance(word, Saved) else str(word) for word in ("", *words))
            explicit |= {f"{each.flag} {text}".strip() for text in texts}
    refused: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for name, flag in flags.items():
        for need in flag.needs:
            idle = f"{name} {need.word}".strip()
            is_met = (need.flag in explicit) is not bool(need.does)
            if idle in explicit and not is_met and explicit.isdisjoint(need.unless):
                refused.setdefault((need.flag, need.does, need.unless), []).append(idle)
    for (other, does, unless), names in refused.items():
        idle, verb = " and ".join(names), "have" if len(names) > 1 else "has"
        if not does:
            wanted = " or ".join((other, *unless))
            problem = f"{idle} {verb} no effect without {wanted}"
            raise OptionError(problem, remedy=f"add {wanted}, or leave out {idle}")
        instead = f", or add {' or '.join(unless)}" if unless else ""
        problem = f"{idle} {verb} no effect with {other}, which {does}"
        raise OptionError(problem, remedy=f"leave out {idle}, or {other}{instead}")
