"""The coverage documentation: the workflow's commands run, the rules load, the Python blocks run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import yaml

from amp_rewrite.coverage import coverage_rules
from amp_rewrite.demo import network

DOCS = Path(__file__).parents[1] / "docs"
WORKFLOW = yaml.safe_load((DOCS / "coverage-workflow.yml").read_text(encoding="utf-8"))
PAGE = (DOCS / "ci.md").read_text(encoding="utf-8")


@pytest.fixture
def checkout(tmp_path):
    """A repository with a model and rules where the workflow wants them, and the command in PATH."""
    for folder in ("models", ".github", "bin"):
        (tmp_path / folder).mkdir()
    onnx.save(network(), tmp_path / "models" / "model.onnx")
    (tmp_path / ".github" / "coverage-rules.yaml").write_bytes((DOCS / "coverage-rules.yaml").read_bytes())
    command = tmp_path / "bin" / "amp-rewrite"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m amp_rewrite "$@"\n')
    command.chmod(0o755)
    return tmp_path


def test_the_steps_of_the_workflow_run(checkout):
    """All steps but the installation run in order, as on a runner; the summary is a page."""
    steps = [step for step in WORKFLOW["jobs"]["coverage"]["steps"] if "run" in step]
    assert [step["name"] for step in steps] == ["Install", "Rewrite", "Precision coverage", "Summary"]
    environment = {
        "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(DOCS.parent),
        "GITHUB_STEP_SUMMARY": str(checkout / "summary.md"),
        **WORKFLOW["env"],
    }
    for step in steps[1:]:
        done = subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    summary = (checkout / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("```text\nPrecision coverage of model_half.onnx\nkept ")


def test_every_key_of_a_rule_file_is_in_the_page():
    """The table has every key."""
    for name in coverage_rules.NAMES:
        assert f"`{name}: " in PAGE


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_a_python_block_runs(block):
    """Each block runs as it is."""
    exec(compile(block, "block", "exec"), {})
