"""A hook of mkdocs: the pages that are made from the code alone (Python API, command line, operators)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from amp_rewrite.cli.commands import main

if TYPE_CHECKING:  # tests read this module without mkdocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

MODULES = ("", ".options", ".half", ".testing", ".demo", ".training", ".errors")
"""The public modules, in the order of the page."""

OF_RESULTS = ("amp_rewrite.rewriting.report.Report", "amp_rewrite.cli.decisions.options_of")
"""What results have and parsers need, beside what is imported by name."""

PYTHON = """# Python reference

Everything public, from its docstrings. What is not named here is internal and may change. [Python and
pipelines](python.md) is a guide to it.
"""

COMMAND_LINE = """# Command line

Every command with its options, as `amp-rewrite COMMAND --help-all` prints them (`--help` has the common
ones). A first argument that is not a command means `rewrite`: `amp-rewrite model.onnx` is `amp-rewrite
rewrite model.onnx`.

A shell completes commands, flags and models after `eval "$(_AMP_REWRITE_COMPLETE=bash_source amp-rewrite)"`
(`zsh_source`, `fish_source`).

Exit codes of all commands: 0 success; 1 the result is not valid, a rule is broken, or the verdict is FAIL
or [inconclusive](verification.md#when-a-comparison-is-inconclusive); 2 bad input or usage, with one line
that says what would help; 130 interrupted (Ctrl-C). With the environment variable `AMP_REWRITE_TRACEBACK`
set, an error prints its traceback.

With `--json -`, JSON is the only thing on standard output, and all else is on standard error: `amp-rewrite
coverage model.onnx --json - | jq .nodes`.
"""

OPERATORS = """# What is known of operators

Beyond the schemas of ONNX and onnxruntime, each fact about an operator stands once, in
`amp_rewrite/operators`: the analyses, the predictions and [the proof](certificate.md) read it there. What
is left out has the cautious default: its outputs are values of their own, at exponent 0, with one FLOP for
each element. Which operators become half is another matter: [the lists](lists.md) say so.

"Inputs" says what an input is, by its position: coordinates in pixels stay float32, a mask ends at the scores
of a softmax, and synthetic inputs get values that fit. "Scales" says that there are equations for what a
factor of its inputs does to its outputs: a value beyond float16 is stored times a power of two through these,
and the gradients of a train step are linear in their seed through them.

<!-- operators: -->
"""


def public_names() -> dict[str, Any]:
    """Every public name with its value, by the place that it is imported from."""
    names = {}
    for suffix in MODULES:
        module = importlib.import_module(f"amp_rewrite{suffix}")
        listed = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if name[0] != "_" and getattr(value, "__module__", "") == module.__name__
        ]
        names.update({f"{module.__name__}.{name}": getattr(module, name) for name in listed})
    return names


def python_page() -> str:
    """The Python API: each name once, below the first module that has it."""
    parts, module, known = [PYTHON], "", set()
    for name in (*public_names(), *OF_RESULTS):
        place, _, last = name.rpartition(".")
        if last in known:
            continue
        known.add(last)
        if place != module and name not in OF_RESULTS:
            parts.append(f"## {place}\n")
            module = place
        parts.append(f"::: {name}\n")
    return "\n".join(parts)


def command_line_page() -> str:
    """All commands, with what `tools/generated_docs.py` replaces by their help."""
    return COMMAND_LINE + "".join(f"\n## {name}\n\n<!-- help: {name} -->\n" for name in main.commands)


PAGES = {"api.md": python_page, "command-line.md": command_line_page, "operators.md": lambda: OPERATORS}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """The files of the site with these pages; mkdocs calls this."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - tests read this module without mkdocs

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files
