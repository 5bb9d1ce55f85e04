"""Text for users: escaped and shortened names, plurals, and suggestions for misspelt words.

Escaped text moves no cursor, ends no line, and is not a command to a CI log.

Names, paths and messages come from files and command lines. They are escaped for output here:
errors (`errors`), every line of a terminal (`console`), click's own messages (`cli.exit_codes`), and the
files that a CI shows (`coverage`). JSON keeps names as they are, with its own escapes.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence

LONGEST_NAME = 200
"""The most characters of a name that are shown; names derived from module paths have up to about 150."""


def visible(text: str) -> str:
    """Return the text on one line, with Python's escapes (`\\n`, `\\x1b`) for unprintable characters.

    These are Unicode's categories C and Z except the space: controls, line ends, directional marks, lone
    surrogates, zero-width characters. An escape also disables commands to a CI log.
    Backslashes stay, so that escaping twice changes nothing.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return _COMMAND.sub(lambda match: f"{match[0][:-1]}\\x{ord(match[0][-1]):02x}", text)


_COMMAND = re.compile(r"^ *:(?=:)|#(?=#\w*\[)")
"""The runner of GitHub Actions reads `::error::` at the start of a line, after any white space, and
`##[error]` anywhere in it; that of Azure Pipelines `##vso[...]`, TeamCity `##teamcity[...]`.
"""


def brief(text: str) -> str:
    """Return the visible text, with the middle cut out of words and quotations too long for a name."""
    line = visible(text)
    return _LONG.sub(lambda found: shortened(found[0]), line) if len(line) > LONGEST_NAME else line


_LONG = re.compile(rf"'[^']{{{LONGEST_NAME},}}'|[^ ]{{{LONGEST_NAME + 1},}}")


def names_cut(text: str, longest: int) -> str:
    """Return the visible text, with the middle cut out of quotations beyond `longest`."""
    return re.sub(rf"'[^']{{{longest},}}'", lambda found: shortened(found[0], longest), visible(text))


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """Return the text; beyond `longest`, its beginning and its end with an ellipsis between them."""
    if len(text) <= longest:
        return text
    room = longest - len(_ELLIPSIS)
    return text[: room - room // 2] + _ELLIPSIS + text[-(room // 2) :]


_ELLIPSIS = "..."


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `3 launches`, `4 copies`."""
    several = f"{noun[:-1]}ies" if noun.endswith("py") else f"{noun}{'es' if noun.endswith('ch') else 's'}"
    return f"{count:,} {noun if count == 1 else several}"


_MEANINGS = {
    **dict.fromkeys(("fp16", "f16", "half"), ("float16",)),
    **dict.fromkeys(("bf16", "bfp16"), ("bfloat16",)),
    **dict.fromkeys(("fp32", "f32", "float", "full"), ("float32",)),
    "trt": ("tensorrt",),
    **dict.fromkeys(("cuda", "gpu", "ort", "onnxruntime"), ("onnxruntime-cuda", "cuda")),
    **dict.fromkeys(("web", "webgpu"), ("onnxruntime-webgpu", "webgpu")),
}
"""What other names of types, targets and providers mean."""


def understood(word: str, candidates: Iterable[str]) -> str:
    """Return the candidate of which `word` is another name, else the word."""
    names = set(candidates)
    return next((name for name in (word, *_MEANINGS.get(word, ())) if name in names), word)


_CUTOFF = 0.8
"""The similarity (difflib's ratio) from which a word counts as a misspelling of another."""


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate of which `word` is an alias, a misspelling or an unambiguous prefix; else None.

    Upper and lower case are one. None for what is too long for a name.
    """
    folded, key = {each.lower(): each for each in candidates}, word.lower()
    if len(key) > LONGEST_NAME:  # comparison is quadratic in its length
        return None
    if (name := understood(key, folded)) in folded:
        return folded[name]
    close = difflib.get_close_matches(key, folded, n=1, cutoff=_CUTOFF)
    longer = [name for name in folded if key and name.startswith(key)]
    return folded[close[0]] if close else folded[longer[0]] if len(longer) == 1 else None


def suggestion(word: str, candidates: Iterable[str]) -> str:
    """Return the likely meaning of a misspelt word, as advice, or what it can be."""
    names = list(candidates)
    near = nearest(word, names)
    return f"did you mean {near}?" if near else one_of(names)


def one_of(words: Iterable[str]) -> str:
    """Return the valid words, as advice."""
    return f"it can be {', '.join(words)}"


def share(part: float) -> str:
    """Return a part of 1 as a percentage; below one percent with a decimal. Only all is 100%, and none 0%."""
    if _NEARLY <= part < 1:
        return "over 99%"
    return f"{part:.0%}" if part >= 0.01 or part == 0 else "under 0.1%" if part < 0.001 else f"{part:.1%}"


_NEARLY = 0.995
"""The least share that would be rounded to 100%."""


def size(count: int) -> str:
    """Format a number of bytes: 512 B, 1.2 kB, 3.4 MB, 5.6 GB (powers of 1000)."""
    if count < 1000:
        return f"{count} B"
    power = min(int(math.log10(count)) // 3, 4)
    return f"{count / 1000**power:.1f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


NAMED = 5
"""The most nodes or dimensions named in one line; the others are only counted."""


def some(words: Sequence[str], limit: int = NAMED) -> str:
    """Return the first words, and the number of the others."""
    more = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {more:,} more" if more > 0 else "")
