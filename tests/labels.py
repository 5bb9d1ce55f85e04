"""Names of test cases: the same in every process, so that several can share the work."""

import re


def label(value):
    """A short name of a case; where an object lies in memory is left out."""
    named = getattr(value, "__name__", None) or str(value)
    return re.sub(r" at 0x[0-9a-f]+|[^ -~]", "", named)[:40]
