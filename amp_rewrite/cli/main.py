"""The command `amp-rewrite`."""

from __future__ import annotations

import click

from amp_rewrite.cli.bench import bench
from amp_rewrite.cli.demo import demo
from amp_rewrite.cli.explain import explain
from amp_rewrite.cli.group import DefaultGroup
from amp_rewrite.cli.rewrite import rewrite
from amp_rewrite.cli.verify import verify


@click.group(cls=DefaultGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="amp-rewrite")
def main() -> None:
    """Rewrite ONNX models from float32 to mixed precision.

    A first argument that is no command means rewrite: amp-rewrite model.onnx -o model_fp16.onnx
    """


for command in (rewrite, verify, bench, explain, demo):
    main.add_command(command)
