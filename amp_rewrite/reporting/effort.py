"""What a rewrite was done with, and how long it took: what `--verbose` prints."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from amp_rewrite import version
from amp_rewrite.reporting.summary import SummaryLine
from amp_rewrite.rewriting.report import Report

_PACKAGES = ("onnx", "onnx-ir", "numpy", "onnxruntime", "onnxruntime-gpu")


def versions() -> Iterator[SummaryLine]:
    """The versions of amp-rewrite, Python and the packages that decide about a result."""
    found = (f"{name} {number}" for name in _PACKAGES if (number := _version(name)))
    yield SummaryLine(
        "versions",
        f"amp-rewrite {version.installed()}, Python {platform.python_version()}, {', '.join(found)}",
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def seconds(report: Report) -> Iterator[SummaryLine]:
    """The wall time of every stage of the last rewrite."""
    told = ", ".join(f"{stage} {taken:.2f}" for stage, taken in report.seconds)
    yield SummaryLine("seconds", f"{told}; {sum(taken for _, taken in report.seconds):.2f} in all")
