"""Renders an HTML report as one self-contained file.

What comes from a model is embedded as JSON, which cannot end a script or begin a comment, and inserted into
the document as text. A content security policy forbids all other scripts and all loading.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from amp_rewrite.reporting import html_json
from amp_rewrite.reporting.html_report import HtmlReport

_FOLDER = Path(__file__).parent / "html"
_VENDORED = ("d3", "dagre")
_OURS = (
    *("dom", "layout", "drawing", "view", "step", "histogram", "details"),
    *("search", "pictures", "execution", "export", "overview", "main"),
)
"""The scripts; each uses only those before it."""


def render(report: HtmlReport) -> bytes:
    """The whole file in UTF-8; equal reports give equal bytes."""
    style, script = _text("page.css"), "\n".join(_text(f"{name}.js") for name in _OURS)
    libraries = "\n".join(_text(f"vendor/{name}.min.js") for name in _VENDORED)
    vendored = re.sub(r"^//# sourceMappingURL=.*$", "", libraries, flags=re.MULTILINE)
    parts = {
        "policy": _policy(style, vendored, script),
        "style": style,
        "data": embedded(html_json.plain(report)),
        "licences": "\n".join(_text(f"vendor/{name}.LICENSE") for name in _VENDORED),
        "vendored": vendored,
        "script": script,
    }
    # the substituted text is not scanned for placeholders again
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _text("page.html")).encode()


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element: ASCII without `<`, `>` and `&`."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_UNSAFE = re.compile("[<>&]")


def _policy(style: str, *scripts: str) -> str:
    allowed = " ".join(map(_hash, scripts))
    nothing = "default-src 'none'; base-uri 'none'; form-action 'none'"
    return f"{nothing}; script-src {allowed}; style-src {_hash(style)}"


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


@functools.cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
