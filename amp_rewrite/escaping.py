"""Text that others wrote -> text that may be printed: it moves no cursor, ends no line, and is no command.

Names, paths and messages come from files and command lines. What is printed of them goes through here: all
errors of ours (`errors`), every line of a terminal (`reporting.console`), what click says (`cli.group`), and
the files that a CI shows (`coverage`). JSON keeps names as they are, in its own escapes.
"""

from __future__ import annotations

import re

LONGEST_NAME = 200
"""Characters of a name that are shown: names that exporters make of module paths have up to about 150."""


def visible(text: str) -> str:
    """The text on one line, what cannot be printed as itself in Python's escapes (`\\n`, `\\x1b`, `\\u202e`).

    That is all of Unicode's categories C and Z but a space: controls, line ends, marks of direction, lone
    surrogates, characters of no width. What a CI's log takes for a command is broken by an escape as well.
    Backslashes stay, so that what is visible already remains the same.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return _COMMAND.sub(lambda found: f"{found[0][:-1]}\\x{ord(found[0][-1]):02x}", text)


_COMMAND = re.compile(r"^ *:(?=:)|#(?=#\w*\[)")
"""The runner of GitHub Actions reads `::error::` at the start of a line, after any white space, and
`##[error]` anywhere in it; that of Azure Pipelines `##vso[...]`, TeamCity `##teamcity[...]`.
"""


def brief(text: str) -> str:
    """The visible text, with every word and every quotation that is too long for a name cut in its middle."""
    shown = visible(text)
    return _LONG.sub(lambda found: shortened(found[0]), shown) if len(shown) > LONGEST_NAME else shown


_LONG = re.compile(rf"'[^']{{{LONGEST_NAME},}}'|[^ ]{{{LONGEST_NAME + 1},}}")


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """The text, or its beginning and its end with an ellipsis between them, if it has more characters."""
    if len(text) <= longest:
        return text
    kept = longest - len(_ELLIPSIS)
    return text[: kept - kept // 2] + _ELLIPSIS + text[-(kept // 2) :]


_ELLIPSIS = "..."
