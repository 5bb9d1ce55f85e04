"""The names by which pins refer to nodes, and the patterns that match them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import onnx
import onnx_ir as ir
import re2

from amp_rewrite.errors import OptionError


def pinned_as(node: ir.Node | onnx.NodeProto) -> str:
    """Return the name of a node; for one without, that of its first output."""
    names = (value.name for value in node.outputs) if isinstance(node, ir.Node) else node.output
    return node.name or next(filter(None, names), "")


def pattern_for(name: str, names: Collection[str]) -> str:
    """Return the pattern that names a node and no other of `names`: the name itself where that will do."""
    if not _SPECIAL.isdisjoint(name):
        return re.escape(name)
    dotted = "." in name and re.compile(re.escape(name).replace(r"\.", "."))
    return re.escape(name) if dotted and any(map(dotted.fullmatch, set(names) - {name})) else name


_SPECIAL = frozenset("\\^$*+?{}[]|()")
"""The metacharacters of a regular expression, besides the dot."""


def matcher(pattern: str, field: str, names: Collection[str]) -> Callable[[str], bool]:
    """Return a predicate for names that match a pattern; the pattern as a whole may be one of `names`.

    Raises OptionError, which names the `field`, for a pattern that is neither a name nor valid.
    """
    literal = re.sub(r"\\(\W)", r"\1", pattern)
    if pattern == re.escape(literal):  # lists of names can be long: no expression is needed for these
        return frozenset((pattern, literal)).__contains__
    quiet = re2.Options()
    quiet.log_errors = False  # they would go to standard error
    try:
        expression = re2.compile(_encoded(pattern), quiet)
    except re2.error as error:
        if pattern in names:
            return pattern.__eq__
        raise OptionError(
            f"{field} {pattern} is not a valid regular expression: {error.args[0].decode(errors='replace')}",
            remedy="give a node's name, escape it with a backslash, or do without look-around and "
            "back-references: patterns are those of RE2, which takes no more time for one than for another",
        ) from error
    return lambda name: name == pattern or expression.fullmatch(_encoded(name)) is not None


def _encoded(text: str) -> bytes:
    """Encode text for RE2, lone surrogates from undecodable bytes included."""
    return text.encode(errors="surrogatepass")
