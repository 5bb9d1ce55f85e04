"""Flags of earlier versions and of other tools, which are understood as the flag that does the same today."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

_SAME = "{}"
"""The value is that of the earlier flag."""

_TODAY: Mapping[str, tuple[str, str]] = {
    # of other tools
    "--keep-fp32": ("--keep-full", _SAME),
    "--force-fp16": ("--force-half", _SAME),
    # of earlier versions
    "--no-verify": ("--skip", "verify"),
    "--no-certify": ("--skip", "certify"),
    "--no-check": ("--skip", "check"),
    "--no-metadata": ("--skip", "metadata"),
    "--no-fold": ("--skip", "fold"),
    "--no-follow": ("--skip", "follow"),
    "--no-free": ("--skip", "bounds"),
    "--no-rescale": ("--skip", "rescale"),
    "--keep-functions": ("--skip", "inline"),
    "--keep-opset": ("--opset", "keep"),
    "--policy": ("--to", _SAME),
    "--infer": ("--list", "infer={}"),
    "--clear": ("--list", "clear={}"),
    "--observed": ("--calibrate", _SAME),
    "--rescale": ("--observe", "always"),
    "--require-half": ("--require", "half"),
    "--require-verify": ("--require", "verify"),
    "--out-dir": ("--output", "{}/"),
    "--max-error": ("--tolerance", "error={}"),
    "--all": ("--show", "all"),
    "--ranges": ("--show", "ranges"),
    "--advice": ("--show", "advice"),
    "--min-flops": ("--rules", "min-flops={}"),
    "--min-nodes": ("--rules", "min-nodes={}"),
    "--min-weights": ("--rules", "min-weights={}"),
    "--max-casts": ("--rules", "max-casts={}"),
    "--forbid-half": ("--rules", "forbid-half={}"),
    "--require": ("--rules", "require={}"),
    "--if-present": ("--rules", "if-present"),
    "--markdown": ("--report", "markdown={}"),
    "--junit": ("--report", "junit={}"),
    "--github": ("--report", "github"),
    "--state-suffix": ("--state", _SAME),
    "--initial-scale": ("--loss-scale", "initial={}"),
    "--increment-period": ("--loss-scale", "period={}"),
    "--multiplier": ("--loss-scale", "multiplier={}"),
    "--skip-nonfinite": ("--loss-scale", "skip-nonfinite"),
    "--explain": ("--dry-run", ""),
}
"""For each flag the one of today, and its value, in which {} is the value of the earlier flag."""


def of_today(flag: str) -> str:
    """Return the flag of today, with its value, for one of an earlier version; any other as it is."""
    return " ".join(_TODAY.get(flag, (flag,))).replace(_SAME, "...").rstrip()


def translate(args: Sequence[str], own: Container[str]) -> Iterator[str]:
    """Yield the arguments of a command, earlier flags as those of today; `own` are the flags that it has."""
    rest = iter(args)
    for arg in rest:
        name, separator, text = arg.partition("=")
        flag, value = _TODAY.get(name, ("", ""))
        if arg == "--":
            yield from (arg, *rest)
        elif name in own or flag not in own or (separator and "{}" not in value):
            yield arg
        elif "{}" in value:
            text = text if separator else next(rest, "")
            yield f"{flag}={value.format(text)}"
        else:
            yield from filter(None, (flag, value))
