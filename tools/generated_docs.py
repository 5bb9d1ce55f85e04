"""A hook of mkdocs: parts of pages that come from the code (help, lists, targets) and from benchmarks."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import click

from amp_rewrite.cli import flags
from amp_rewrite.cli.commands import loaded, main
from amp_rewrite.explaining import rules
from amp_rewrite.explaining.rules import RULES
from amp_rewrite.numerics.half import BY_NAME
from amp_rewrite.operators import scaling
from amp_rewrite.operators.catalogue import CATALOGUE
from amp_rewrite.operators.record import Operator
from amp_rewrite.policy import kernel_table, operator_lists, targets
from amp_rewrite.policy.entries import Kind
from amp_rewrite.policy.evidence import Reason
from amp_rewrite.policy.targets import Target

_SPECIAL = re.compile(r"([\\`*_\[\]#])")
_FLAG = re.compile(r"(?<![\w-])(--?[a-z][\w-]*)")
_MEASURED = Path(__file__).parents[1] / "benchmarks" / "results"


class MarkdownFormatter(click.HelpFormatter):
    """Click's help, as it would be printed, in Markdown: sections are headings, and their entries tables."""

    def write_usage(self, prog: str, args: str = "", *_: object, **__: object) -> None:
        """The usage line as a block of its own."""
        self.write(f"```text\n{prog} {args}\n```\n\n")

    def write_heading(self, heading: str) -> None:
        """The name of a section in bold: the page's own headings are those of the commands."""
        self.write(f"**{prose(heading)}**\n\n")

    def write_text(self, text: str) -> None:
        """Paragraphs, without click's mark for text that keeps its lines."""
        self.write(prose(text.replace("\b\n", "")) + "\n\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], *_: object, **__: object) -> None:
        """The entries of a section: what is written, and what it does."""
        self.write("| | |\n|---|---|\n")
        for first, second in rows:
            self.write(f"| <code>{_cell(html.escape(first))}</code> | {_cell(prose(second))} |\n")
        self.write("\n")


def prose(text: str) -> str:
    """Plain text as Markdown, with flags as code."""
    escaped = html.escape(_SPECIAL.sub(r"\\\1", text), quote=False)
    return _FLAG.sub(r"<code>\1</code>", escaped)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "&#124;").split())


def command_help(name: str) -> str:
    """The help of a command of `amp-rewrite`; KeyError where there is none."""
    command = loaded(main.commands[name])
    top = click.Context(main, info_name="amp-rewrite", **main.context_settings)
    formatter = MarkdownFormatter()
    context = click.Context(command, info_name=name, parent=top)
    context.meta[flags.ALL] = True
    command.format_help(context, formatter)
    return formatter.getvalue()


def operator_list(name: str) -> str:
    """A shipped operator list: for each kind, the operators and why they have it."""
    found = operator_lists.load(name)
    return f"{prose(found.description)}\n\n" + "\n".join(_kinds(found))


def _kinds(found: operator_lists.OpLists) -> Iterator[str]:
    for kind in Kind:
        rows = sorted(
            (f"{domain}:{operator}" if domain else operator, entry.evidence.text, entry.follow)
            for (domain, operator), entry in found.entries.items()
            if entry.kind is kind
        )
        if rows:
            yield f"### {kind.value} {{ #{found.name}-{kind.value} }}\n\n| operator | why |\n|---|---|"
            for operator, why, follow in rows:
                more = " *(follow)*" if follow else ""
                yield f"| `{operator}` | {_cell(prose(why))}{more} |"
            yield ""


def known_targets(_: str) -> str:
    """The targets, with how many operators their tables of kernels have in each half type."""
    lines = "\n".join(map(_target, targets.BY_NAME.values()))
    head = " | ".join(half.name for half in BY_NAME.values())
    return f"| `--target` | operators with kernels | {head} |\n|---|--:|{'--:|' * len(BY_NAME)}\n{lines}"


def _target(target: Target) -> str:
    if target.table is None:
        return f"| `{target.name}` | whatever the schemas allow |{' |' * len(BY_NAME)}"
    table = kernel_table.load(target.table)
    taken = [
        {kind for span in spans for takes in span.takes for kinds in takes.values() for kind in kinds}
        for spans in table.values()
    ]
    counts = [str(sum(name in kinds for kinds in taken)) for name in BY_NAME]
    return f"| `{target.name}` | {len(table)} | {' | '.join(counts)} |"


def known_operators(_: str) -> str:
    """The operators of the catalogue, a row each, and what is known of them."""
    rows = sorted(CATALOGUE.items(), key=lambda row: (row[0][0], row[0][1]))
    lines = (f"| `{domain}:{name}` |" if domain else f"| `{name}` |" for (domain, name), _ in rows)
    facts = (" | ".join(map(_cell, _facts(record))) for _, record in rows)
    columns = ("what it does", "moves", "inputs", "scales", "norm", "limits", "FLOPs")
    head = f"| operator | {' | '.join(columns)} |\n|---|---|---|---|:-:|---|---|---|"
    return "\n".join((head, *(f"{line} {fact} |" for line, fact in zip(lines, facts, strict=True))))


def _facts(record: Operator) -> Iterator[str]:
    yield ", ".join(trait.name.lower().replace("_", " ") for trait in record.traits if trait.name)
    yield "" if record.move is None else record.move.value
    yield "; ".join(f"{port}: {role.value}" for port, role in record.roles.items())
    yield "" if record.scales is scaling.pinned else "yes"
    yield "" if record.norm is None else f"of input {record.norm.data[0]}, along {record.norm.along.value}"
    yield " ".join(f"{limit:g}" for limit in sorted(record.limits))
    is_number = isinstance(record.flops, int)
    yield f"{record.flops} an element" if is_number else "a formula" if record.flops else "unknown"


def known_rules(_: str) -> str:
    """What each rule keeps in float32, why, and an example; those that one module decides share its text."""
    named = {module: [reason for reason in RULES if RULES[reason] is module] for module in RULES.values()}
    return "\n\n".join(_rule(module, reasons) for module, reasons in named.items())


def _rule(module: ModuleType, reasons: Sequence[Reason]) -> str:
    first, *more = (inspect.getdoc(module) or "").split("\n\n")
    texts = (f"```text\n{inspect.cleandoc(text)}\n```" if text[0] == " " else prose(text) for text in more)
    names = "\n".join(f"* **{reason.value}**: {prose(rules.message(reason))}" for reason in reasons)
    return "\n\n".join((prose(first), *texts, names))


def measurement(name: str) -> str:
    """A table that a benchmark wrote, one level of headings below the page that has it."""
    return re.sub(r"^#", "##", (_MEASURED / f"{name}.md").read_text(encoding="utf-8"), flags=re.MULTILINE)


MADE: dict[str, Callable[[str], str]] = {
    "help": command_help,
    "list": operator_list,
    "targets": known_targets,
    "operators": known_operators,
    "rules": known_rules,
    "measured": measurement,
}
"""What a page asks for with `<!-- NAME: ARGUMENT -->` on a line of its own."""
_REQUEST = re.compile(rf"^<!-- ({'|'.join(MADE)}): ?([\w.-]*) ?-->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """A page with what it asks for; mkdocs calls this."""
    return _REQUEST.sub(lambda request: MADE[request[1]](request[2]), markdown)
