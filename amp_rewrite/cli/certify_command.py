"""`amp-rewrite certify ORIGINAL REWRITTEN`: prove that two models differ only in precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from amp_rewrite.certificate.certifying import certify as proved
from amp_rewrite.cli import exit_codes
from amp_rewrite.cli.decisions import op_types
from amp_rewrite.cli.fields_as_flags import in_flags
from amp_rewrite.cli.flags import PATH, Record, command, flag
from amp_rewrite.cli.next_steps import doubts
from amp_rewrite.cli.output_files import ReportFlags, WritingCommand
from amp_rewrite.console import Console
from amp_rewrite.reporting import terminal
from amp_rewrite.rewriting import result_checks
from amp_rewrite.rewriting.report import SummaryLine


@dataclass(frozen=True)
class Types(Record, title="The models", argument="types"):
    """What is known of custom operators."""

    op_type: tuple[str, ...] = flag(
        "--op-type DOMAIN:OP=TYPES...", "Types that are declared for a custom operator, as in a rewrite."
    )


@command(Types, ReportFlags, kind=WritingCommand)
@click.argument("original", type=PATH)
@click.argument("rewritten", type=PATH)
def certify(original: Path, rewritten: Path, types: Types, files: ReportFlags) -> None:
    """Prove that REWRITTEN and ORIGINAL differ only in precision.

    Nothing is run. Allowed are Casts between float32, float16 and bfloat16, stored values rounded to half,
    and a fixed list of other changes, each of which is proved on its own. Exit code 1 when there is no proof:
    the line names the first place where the two differ.
    """
    certificate = proved(original, rewritten, op_types=op_types(types.op_type))
    if not certificate.proved:
        terminal.print_lines(Console(), doubts("certify", original, rewritten))
    Console().print(in_flags(certificate))
    if certificate.proved:
        terminal.print_lines(Console(), _not_valid(original, rewritten, certificate.nodes))
    files.report(certificate.to_json())
    exit_codes.fail_unless(certificate.proved)


def _not_valid(original: Path, rewritten: Path, nodes: int) -> Iterator[SummaryLine]:
    """Yield a warning for each complaint that onnx's checker has about the rewritten model only.

    A certificate covers what is computed, not whether a runtime accepts the types.
    """
    for complaint in result_checks.validate(str(rewritten), lambda: str(original), nodes).broken:
        yield SummaryLine("warning", complaint)
