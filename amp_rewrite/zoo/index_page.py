"""The page of a zoo: a table with links to the pages, reports and results of its models, without scripts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from amp_rewrite import version
from amp_rewrite.text import plural, visible
from amp_rewrite.zoo.row import Row

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
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>amp-rewrite: {count}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ padding: .3rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884; }}
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2), td.why {{ text-align: left; }}
td.why {{ white-space: normal; border-bottom: 1px solid #8884; padding-left: 2rem; }}
.PASS, .unchanged {{ color: #1f6fb2; }}
.FAIL, .failed {{ color: #c62828; font-weight: 600; }}
</style>
</head>
<body>
<h1>{count}</h1>
<p>{summary}. Made by amp-rewrite {version}.</p>
<div class="wide"><table>
<thead><tr>{header}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<p>The error is the largest of any output (RMS of the difference over the scale of the output), the speed-up
that which is predicted for a GPU, and the sizes are those of the result and of the original.</p>
</body>
</html>
"""


def render(rows: Sequence[Row], counts: Mapping[str, int]) -> str:
    """Render the page; all text from models is escaped."""
    return _PAGE.format(
        count=plural(len(rows), "model"),
        summary=", ".join(f"{count} {name}" for name, count in counts.items()),
        version=_text(version.installed()),
        header="".join(f"<th>{name}</th>" for name in (*HEADER, "files")),
        rows="\n".join(map(_row, rows)),
    )


def _row(row: Row) -> str:
    name, status, *numbers = map(_text, cells(row))
    first = _link(row.page or row.report, name) if row.page or row.report else name
    links = {"report": row.report, "model": row.result}
    files = " ".join(_link(path, kind) for kind, path in links.items() if path)
    others = "".join(f"<td>{number}</td>" for number in (*numbers, files))
    colour = row.status.value.replace(" ", "-")
    line = f'<tr><td>{first}</td><td class="{colour}">{status}</td>{others}</tr>'
    if not row.why:
        return line
    return f'{line}\n<tr><td class="why" colspan="{len(HEADER) + 1}">{_text(row.why)}</td></tr>'


def _link(path: str, text: str) -> str:
    return f'<a href="{_text(quote(path))}">{text}</a>'


def _text(text: str) -> str:
    return html.escape(visible(text))
