"""What a transcript claims of printed text, and what it would say of another one."""

import difflib
import re

ANY = "..."
PATTERNS = {ANY: ".*", "{n}": r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"}
CODE = re.compile(r"\[(\d+)\]")


def squeezed(line: str) -> str:
    """A line with one blank for each run of them, but at its start."""
    start = len(line) - len(line.lstrip())
    return line[:start] + " ".join(line.split())


def pattern(text: str) -> str:
    """The regular expression of a line of a transcript."""
    parts = re.split(r"(\.\.\.|\{n\})", squeezed(text))
    return "".join(PATTERNS.get(part, re.escape(part)) for part in parts)


def fits(expected: list[str], found: list[str]) -> bool:
    """Whether lines are what a transcript says, all of them and in this order."""
    whole = "".join("(?:.*\n)*?" if line == ANY else f"{pattern(line)}\n" for line in expected)
    return re.fullmatch(whole, "".join(f"{squeezed(line)}\n" for line in found)) is not None


def holds(claim: str, found: list[str]) -> bool:
    """Whether lines contain what one claim says, do not contain it, or are it."""
    said = " ".join(" ".join(found).split())
    if claim.startswith("="):
        return re.fullmatch(pattern(claim[1:].strip()), said) is not None
    absent = claim.startswith("no: ")
    return (re.search(pattern(claim.removeprefix("no: ")), said) is None) == absent


def renewed(expected: list[str], found: list[str]) -> list[str]:
    """What a transcript says of these lines: what fits stays as it is, what was left out is left out."""
    texts = [squeezed(line) for line in found]
    fitting = [
        line if line == ANY else next((text for text in texts if re.fullmatch(pattern(line), text)), line)
        for line in expected
    ]
    made: list[str] = []
    for kind, start, end, first, last in difflib.SequenceMatcher(None, fitting, texts, False).get_opcodes():
        made += expected[start:end] if kind == "equal" else _gap(expected[start:end], found[first:last])
    return made


def _gap(expected: list[str], found: list[str]) -> list[str]:
    if ANY not in expected:
        return found
    made = []
    for line in expected:
        near = difflib.get_close_matches(line, found, 1, 0.4) if line != ANY else []
        made += near or ([ANY] if made[-1:] != [ANY] else [])
    return made if made[-1] == ANY or expected[-1] != ANY else [*made, ANY]


def renewed_claim(claim: str, found: list[str]) -> str:
    """The line that is nearest to a claim of a row which does not hold; nothing for one of absence."""
    lines = [" ".join(line.split()) for line in found]
    if claim.startswith("="):
        return f"= {' '.join(lines)}"
    near = [] if claim.startswith("no: ") else difflib.get_close_matches(claim, lines, 1, 0.0)
    return near[0] if near else ""
