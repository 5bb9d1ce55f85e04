"""`amp-rewrite coverage MODEL`: measure how much of it runs in half, and check that against rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import click

from amp_rewrite import many
from amp_rewrite.cli import exit_codes
from amp_rewrite.cli.fields_as_flags import as_argument, in_flags
from amp_rewrite.cli.flags import PATH, Record, command, flag
from amp_rewrite.cli.many_models import models_argument
from amp_rewrite.cli.output_files import CoverageFiles, WritingCommand
from amp_rewrite.cli.records import Quiet, SizeFlags
from amp_rewrite.console import Console, Styled
from amp_rewrite.coverage import coverage_rules
from amp_rewrite.coverage.counts import measure
from amp_rewrite.coverage.coverage_rules import TOLERANCE, CoverageRules, check
from amp_rewrite.coverage.faces import (
    MeasuredModel,
    commands,
    junit,
    markdown,
    print_checks,
    print_coverage,
)
from amp_rewrite.errors import AmpRewriteError, OptionError
from amp_rewrite.files import staging
from amp_rewrite.reporting.terminal import print_hints
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data


def _write_baseline(measured: Sequence[MeasuredModel], path: Path) -> None:
    for coverage in (one.coverage for one in measured):
        assert coverage is not None, "the only model was measured"
        coverage_rules.save_baseline(coverage, path)


_BASELINE = "baseline"
_WRITERS: Mapping[str, Callable[[Sequence[MeasuredModel], Path], None]] = {
    "markdown": lambda measured, path: staging.write(markdown(measured), path),
    "junit": lambda measured, path: staging.write(junit(measured), path),
    _BASELINE: _write_baseline,
}


@dataclass(frozen=True)
class Rules(Record, title="Rules", argument="rules"):
    """The rules of a coverage; the command gets `CoverageRules`."""

    rules: tuple[Path, ...] = flag(
        "--rules FILE|RULE...",
        "Rules: a YAML file, see docs/ci.md, or a rule, which overrides the file's: min-flops=SHARE, "
        "min-nodes=SHARE, min-weights=SHARE (the least shares in half, 0 to 1), require=OP=SHARE (of an "
        "operator's nodes), if-present (an operator that the model lacks is no fault), forbid-half=OP, "
        "max-casts=N, baseline=FILE (an earlier coverage, below which no share may fall), "
        f"tolerance=SHARE (by more than this; {TOLERANCE}).",
        short="Rules, such as min-flops=0.9, or a YAML file of them.",
        kind=PATH,
    )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Any:
        """Return the rules; raises OptionError for a faulty one."""
        return coverage_rules.collect(values["rules"])


@dataclass(frozen=True)
class CoverageFlags(Quiet):
    """How much is printed."""

    show: tuple[str, ...] = flag(
        "--show", "Print more:", words={"github": "broken rules as annotations for GitHub Actions"}
    )


@command(Rules, SizeFlags, CoverageFiles, CoverageFlags, kind=WritingCommand)
@models_argument
def coverage(
    model: tuple[Path, ...], rules: CoverageRules, data: Data, files: CoverageFiles, printing: CoverageFlags
) -> None:
    """Count how much of MODEL is half: nodes, FLOPs, weights, Casts.

    Any ONNX model will do. Several models, folders of them and patterns are counted one by one; a baseline is
    for a single model. Exit code 1 when a rule is broken, and 2 when one of several models cannot be read;
    the files are still written.
    """
    entries = many.find(model)
    if len(entries) > 1 and (rules.baseline or any(each.format == _BASELINE for each in files.save)):
        raise OptionError("a baseline is for one model", remedy="leave it out, or name one model")
    sized = replace(data, dims={**rules.dims, **data.dims})
    measured = [_measured(each.model, rules, sized, is_single=len(entries) == 1) for each in entries]
    ok = all(one.ok for one in measured)
    all_ = [one.to_json() for one in measured]
    files.report(all_[0] if len(all_) == 1 else {"models": all_, "ok": ok})
    for each in files.save:
        if each.format == _BASELINE and not ok:  # which would pass what is broken from now on
            Console(stderr=True).print(f"{each.path} stays as it is: a rule is broken")
        else:
            _WRITERS[each.format](measured, each.path)
    for one in measured:
        _print(one, quiet=printing.quiet, titled=len(measured) > 1)
        for line in commands(one) if printing.show else ():
            Console().command(line)
    broken = (f"amp-rewrite explain {as_argument(Path(one.title))}" for one in measured if _is_explained(one))
    hints = (f"{line}   # what decided each node" for line in islice(broken, 1))
    print_hints(printing.console, hints)
    if any(one.coverage is None for one in measured):
        raise click.exceptions.Exit(exit_codes.BAD_INPUT)
    exit_codes.fail_unless(ok)


def _is_explained(one: MeasuredModel) -> bool:
    """Return whether nodes break a rule, which `explain` can say more of."""
    return one.coverage is not None and any(rule.nodes for rule in one.checks)


def _measured(model: Path, rules: CoverageRules, data: Data, *, is_single: bool) -> MeasuredModel:
    """Measure and check a model; raise the error of a single one that cannot be read."""
    try:
        measurement = measure(model, feeds.given_sizes(model, data).dims)
        return MeasuredModel(str(model), measurement, check(measurement, rules))
    except AmpRewriteError as error:
        if is_single:
            raise
        return MeasuredModel.unreadable(str(model), in_flags(error))


def _print(one: MeasuredModel, *, quiet: bool, titled: bool) -> None:
    console = Console()
    if titled and not (quiet and one.ok):
        console.print(Styled(one.title, "bold"))
    if not quiet and one.coverage is not None:
        print_coverage(console, one.coverage)
        console.print()
    print_checks(console, [rule for rule in one.checks if not (quiet and rule.ok)])
