"""`amp-rewrite zoo SOURCE -o FOLDER`: rewrite many models, each as `amp-rewrite MODEL`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import click

from amp_rewrite.cli import exit_codes, many_models
from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.cli.flag_builders import (
    PATH,
    SectionedCommand,
    check_groups,
    executor_flag,
    number,
    opened,
    quiet_flag,
    switch,
    written,
)
from amp_rewrite.cli.progress import counting, shown_progress, tell
from amp_rewrite.cli.rewrite_command import rewrite
from amp_rewrite.console import Console, Styled
from amp_rewrite.errors import OptionError
from amp_rewrite.reporting import terminal
from amp_rewrite.zoo import index_page, model_entries, run
from amp_rewrite.zoo.row import Row, Status
from amp_rewrite.zoo.run import Zoo


@click.command(cls=SectionedCommand)
@click.argument("source", type=PATH)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    metavar="FOLDER",
    help="The folder for models, reports, zoo.json and index.html. Models that are already done there are "
    "skipped.",
)
@executor_flag("What rewrites the models, each one at a time")
@number(
    "--timeout",
    click.FloatRange(min=0, min_open=True),
    "Stop a rewrite that takes longer, and go on with the next model.",
    metavar="SECONDS",
)
@switch("--html", "Write the HTML report of each model, which index.html links to.")
@quiet_flag
def zoo(
    source: Path,
    flags: tuple[str, ...],
    output: Path,
    executor: str | None,
    timeout: float | None,
    html: bool,
    quiet: bool,
) -> None:
    """Rewrite, compare and report on all models of SOURCE.

    SOURCE is a folder, or a manifest in YAML or JSON. FLAGS are those of amp-rewrite MODEL, for every model,
    after two dashes: amp-rewrite zoo models -o half -- --to bfloat16. A model that fails, or whose process
    dies, does not stop the others. Exit code 2 if any model has no result (it is broken, or its process
    died); otherwise 1 if any result is too far from its original, or not valid.
    """
    zoo_entries = model_entries.find(source.absolute(), output.absolute())
    contexts = {entry.name: _context((*flags, *entry.flags), entry.model) for entry in zoo_entries}
    for context in {_of_all(context): context for context in contexts.values()}.values():
        check_groups(context)
    with shown_progress(quiet=quiet) as progress, opened(executor, run.here) as workers:
        tell(progress, "zoo")
        count, rows = counting(progress, len(zoo_entries)), list[Row]()

        def on_row(row: Row) -> None:
            rows.append(row)
            count(len(rows))

        result = run.rewrite_zoo(
            source, output, flags, executor=workers, pages=html, timeout=timeout, on_row=on_row
        )
    console = Console(quiet=quiet)
    _print_zoo(console, result)
    console.print(f"see {output / 'index.html'}")
    far = (row for row in result.rows if row.status is Status.FAR and row.result and row.name in contexts)
    hints = (
        f"amp-rewrite tune {as_argument(contexts[row.name].params['model'][0])} "
        f"-o {as_argument(output / str(row.result))}"
        for row in itertools.islice(far, 1)
    )
    terminal.print_hints(console, hints)
    if quiet:
        _print_failures(Console(stderr=True), result)
    exit_codes.end_many(is_complete=not result.has_failed, is_ok=result.ok)


def _context(flags: Sequence[str], model: Path) -> click.Context:
    """Parse the flags for a model; raise OptionError for output files, which the zoo names."""
    context = rewrite.make_context("amp-rewrite", [*flags, str(model)])
    for flag in written(context, _NAMED_HERE).values():
        raise OptionError(f"{flag} is for one model", remedy="leave it out: the zoo has files of its own")
    return context


def _of_all(context: click.Context) -> tuple[object, ...]:
    """Return the flags without model and data, which are checked once for all models that share them."""
    return tuple(value for name, value in context.params.items() if name not in ("model", "data"))


_NAMED_HERE = (*many_models.OF_ONE, "output", "in_place", "dry_run")
"""The flags that name outputs of the command, suppress them or redirect them."""


def _print_zoo(console: Console, zoo: Zoo) -> None:
    """Print a table of the models, the problems below it, and the counts."""
    rows = ([row.name, _status(row), *index_page.cells(row)[2:]] for row in zoo.rows)
    console.numbers(index_page.HEADER, rows, texts=2)
    console.print()
    for row in zoo.rows:
        if row.why:
            console.print(Styled(row.name, "bold"), f": {row.why}")
    again = f"; {zoo.reused} of them from an earlier run" if zoo.reused else ""
    console.print(", ".join(f"{count} {name}" for name, count in zoo.counts.items()), again)


def _print_failures(console: Console, zoo: Zoo) -> None:
    """Print a line for each model that failed or exceeds its tolerance."""
    for row in zoo.rows:
        if not row.status.is_good:
            console.print(_status(row), f" {row.name}: {row.why}")


def _status(row: Row) -> Styled:
    return Styled(row.status.value, "" if row.status.is_good else "red")
