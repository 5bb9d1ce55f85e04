"""For Python-Markdown: lines like `<!-- help: rewrite -->` become what `generated_docs` makes."""

from __future__ import annotations

import re

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

from tools.generated_docs import MADE

_ASKS = re.compile(rf"<!-- ({'|'.join(MADE)}): ?([\w.-]*) ?-->")
_BEFORE_FENCES = 28
"""A priority between those of Python-Markdown's `normalize_whitespace` (30) and of fences (25)."""


class _Made(Preprocessor):
    """Replaces each line that asks for something."""

    def run(self, lines: list[str]) -> list[str]:
        """The lines of a page, with what was asked for."""
        return [made for line in lines for made in _made(line)]


def _made(line: str) -> list[str]:
    asked = _ASKS.fullmatch(line.strip())
    return MADE[asked[1]](asked[2]).splitlines() if asked else [line]


class SitePages(Extension):
    """The extension."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Puts itself before everything that reads Markdown."""
        md.preprocessors.register(_Made(md), "amp_rewrite", _BEFORE_FENCES)


def makeExtension(**options: object) -> SitePages:  # noqa: N802
    """What mkdocs calls."""
    return SitePages(**options)
