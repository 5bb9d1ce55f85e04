"""The version of amp-rewrite."""

from __future__ import annotations

from importlib import metadata

UNKNOWN = "0+unknown"
"""The version of a clone that is not installed, in the notation of packaging tools."""


def installed() -> str:
    """Return the version of the installed package; UNKNOWN for a bare clone."""
    try:
        return metadata.version("amp-rewrite")
    except metadata.PackageNotFoundError:
        return UNKNOWN
