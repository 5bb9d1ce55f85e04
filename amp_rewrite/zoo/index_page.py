"""The page of a zoo: a table with links to the pages, reports and results of its models, without scripts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from amp_rewrite import version
from amp_rewrite.reporting import html_file
from amp_rewrite.text import plural, visible
from amp_rewrite.zoo.row import Row, Status

# The columns of a zoo, in a terminal and on its page.

HEADER = ("model", "status", "half nodes", "Casts", "error", "predicted", "MB", "was", "seconds")


def cells(row: Row) -> list[str]:
    """Return the cells of a row; empty where a number is unknown."""
    before, after = row.sizes or (None, None)
    return [
        row.name,
        row.status.value,
        "" if row.half is None else f"{row.half:.0%}",
        "" if row.casts is None else f"{row.casts:,}",
        "" if row.error is None else f"{row.error:.1e}",
        "" if row.speedup is None else f"{row.speedup:.2f}x",
        _megabytes(after),
        _megabytes(before),
        f"{row.seconds:.1f}",
    ]


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.1f}"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{count} · amp-rewrite</title>
<style>{style}</style>
</head>
<body class="many">
<p class="brand">amp-rewrite {version}</p>
<h1>{count}</h1>
<p>{summary}</p>
<section><table class="counts models">
<thead><tr>{header}</tr></thead>
<tbody>
{rows}
</tbody>
</table></section>
<p class="note">The error is the largest of any output (RMS of the difference over the scale of the output),
the speed-up that which is predicted for a GPU, and the sizes are those of the result and of the original.</p>
</body>
</html>
"""


def render(rows: Sequence[Row], counts: Mapping[str, int]) -> str:
    """Render the page; all text from models is escaped."""
    style = html_file.asset("page.css")
    pills = (
        f'<span class="verdict {_colour(Status(name))}">{count} {name}</span>'
        for name, count in counts.items()
    )
    return _PAGE.format(
        style=style,
        policy=html_file.policy(style),
        count=plural(len(rows), "model"),
        summary=" ".join(pills),
        version=_text(version.installed()),
        header="".join(f"<th>{name}</th>" for name in (*HEADER, "files")),
        rows="\n".join(map(_row, rows)),
    )


def _row(row: Row) -> str:
    name, status, half, *numbers = map(_text, cells(row))
    bar = "" if row.half is None else _BAR.format(row.half * 100)
    first = _link(row.page or row.report, name) if row.page or row.report else name
    links = {"report": row.report, "model": row.result}
    files = " ".join(_link(path, kind) for kind, path in links.items() if path)
    others = "".join(f"<td>{number}</td>" for number in (*numbers, files))
    coloured = f'<td class="{_colour(row.status)}">{status}</td><td>{half}{bar}</td>'
    line = f"<tr><td>{first}</td>{coloured}{others}</tr>"
    if not row.why:
        return line
    return f'{line}\n<tr><td class="why" colspan="{len(HEADER) + 1}">{_text(row.why)}</td></tr>'


_BAR = """
<svg viewBox="0 0 100 10" aria-hidden="true"><rect class="fill full" width="100" height="10"/>
<rect class="fill half" width="{:.0f}" height="10"/></svg>"""
"""The share of half."""


def _colour(status: Status) -> str:
    if not status.is_good:
        return "bad"
    return "good" if status in (Status.CLOSE, Status.UNCHANGED) else "none"


def _link(path: str, text: str) -> str:
    return f'<a href="{_text(quote(path))}">{text}</a>'


def _text(text: str) -> str:
    return html.escape(visible(text))
