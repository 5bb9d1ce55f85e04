"""The sections in which `--help` lists the options of a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "What to print": ("all_", "why_cast", "ranges", "advice", "device_capability", "against", "run"),
    "The measurement": ("rounds", "warmup", "seconds", "tf32"),
    "Files": (
        *("output", "out_dir", "in_place", "dry_run", "external_data", "json_", "html", "plots", "placement"),
        *("latency", "markdown_", "junit_", "github", "chart", "save_plan", "save_observed", "force"),
    ),
    "What becomes half": (
        *("to", "policy", "target", "list_", "allow", "infer", "clear", "deny", "keep_full", "force_half"),
        *("level", "no_follow", "io", "keep_io", "plan", "device", "gate"),
    ),
    "Value ranges": (*("range", "no_free", "observe", "observed", "calibrate", "executor"),),
    "Changes to the graph": ("keep_functions", "no_fold", "keep_opset", "no_metadata"),
    "The train step": (
        "loss",
        "seed_value",
        "state",
        "state_suffix",
        "gradient",
        "implementation",
        "explain",
    ),
    "The loss scale": (*("loss_scale", "initial_scale", "increment_period", "multiplier", "skip_nonfinite"),),
    "The search": ("max_error", "prefer", "budget"),
    "Inputs": ("data", "dim", "seed", "samples"),
    "The comparison": (
        *(
            "no_verify",
            "require_verify",
            "require_half",
            "provider",
            "accumulate",
            "custom_ops",
            "tolerance",
            "metric",
        ),
        *("per_node", "timeout"),
    ),
    "Rules": (
        *("file", "min_flops", "min_nodes", "min_weights", "require", "forbid_half", "max_casts"),
        *("baseline", "update"),
    ),
    "Checks": ("no_check", "no_certify"),
}
"""The options of each section, by the names of arguments, in their order; all others are in the last one."""

_OTHERS = "Options"


class SectionedCommand(click.Command):
    """A command whose options are listed in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections that the command has options of."""
        for title, rows in self._sections(ctx):
            with formatter.section(title):
                formatter.write_dl(rows)

    def _sections(self, ctx: click.Context) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        left = {str(option.name): row for option in options if (row := option.get_help_record(ctx))}
        if len(left) > _FEW:
            for title, names in SECTIONS.items():
                if rows := [left.pop(name) for name in names if name in left]:
                    yield title, rows
        yield _OTHERS, list(left.values())


_FEW = 8
"""Options that need no sections."""
