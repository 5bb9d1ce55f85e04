"""The GitHub Action, the hooks of pre-commit and the workflow: their commands exist, and their steps run."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import pytest
import yaml

from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from amp_rewrite.demo import network

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


def commands():
    """Every call of amp-rewrite in the files: its command, and the flags that it has."""
    texts = [step["run"] for step in STEPS.values()] + [hook["entry"] for hook in HOOKS]
    texts += [step.get("run", "") for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    for text in texts:
        for call in re.findall(r"amp-rewrite ((?:[^\n;&|]|\\\n)+)", text.replace("\\\n", " ")):
            name, *words = call.split()
            if name in main.commands:
                yield name, [word for word in words if word.startswith("--")]


def test_the_commands_and_flags_exist():
    """Those of the Action, the hooks and the workflow are click's."""
    found = list(commands())
    assert {name for name, _ in found} == {"rewrite", "coverage", "certify", "demo"}
    for name, used in found:
        assert set(used) <= {flag for each in loaded(main.commands[name]).params for flag in each.opts}


def test_the_action_reads_what_it_declares():
    """Every input is used, and every input that is used is declared; so are those of our own workflow."""
    text = yaml.safe_dump(ACTION["runs"])
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    (used,) = [step["with"] for step in WORKFLOW["jobs"]["action"]["steps"] if step.get("uses") == "./"]
    assert set(used) <= set(ACTION["inputs"])
    page, _, _ = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8").partition("## The pre-commit hook")
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == set(ACTION["inputs"])


def test_the_workflow_runs_what_must_hold():
    """It calls .ci/run, which may be executed, on the lowest Python that is supported."""
    steps = WORKFLOW["jobs"]["everything"]["steps"]
    assert steps[-1] == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert WORKFLOW["jobs"]["everything"]["strategy"]["matrix"]["python"][0] == "3.11"
    assert PROJECT["requires-python"] == ">=3.11"


def test_the_repository_has_one_address():
    """pyproject.toml, the site, the citation and the pages name the same place."""
    home = PROJECT["urls"]["Repository"]
    for name in ("README.md", "mkdocs.yml", "CITATION.cff", "SECURITY.md", "docs/index.md", "docs/ci.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert home in text, name
        assert set(re.findall(r"https://github\.com/amp-rewrite/[\w-]+", text)) == {home}


def test_the_release_is_the_one_that_is_cited():
    """Version, changelog and citation agree."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(PROJECT['version'])}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)


@pytest.fixture
def runner(tmp_path):
    """A folder with a model, and the environment of a step: the command is in PATH."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "amp-rewrite"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m amp_rewrite "$@"\n')
    command.chmod(0o755)
    onnx.save(network(), tmp_path / "model.onnx")
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }


def run(script, folder, environment):
    """Runs a script as a runner does."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def step(name, folder, environment, values):
    """Runs a step of the Action, with values for its expressions."""
    filled = {key: values[text.strip("${} ")] for key, text in STEPS[name]["env"].items()}
    return run(STEPS[name]["run"], folder, {**environment, **filled})


@pytest.mark.slow
def test_the_action_rewrites_and_counts(runner, tmp_path):
    """The result is written and counted; a broken rule fails the job, and the summary is written anyway."""
    values = {
        "inputs.model": "model.onnx",
        "inputs.output": "half.onnx",
        "inputs.rewrite-args": "--skip verify\n--quiet",
        "inputs.report": "report",
    }
    done = step("Rewrite", tmp_path, runner, values)
    assert done.returncode == 0, done.stderr
    values["steps.model.outputs.path"] = (tmp_path / "output").read_text().strip().removeprefix("path=")
    assert values["steps.model.outputs.path"] == "half.onnx"
    for bound, status in (("0.9", 0), ("0.9999", 1)):
        values["inputs.coverage-args"] = f"--rules min-flops={bound}\n--rules max-casts=8"
        done = step("Precision coverage", tmp_path, runner, values)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Precision coverage" in (tmp_path / "summary.md").read_text()
        (tmp_path / "summary.md").unlink()
        assert {path.suffix for path in (tmp_path / "report").iterdir()} == {".json", ".md", ".xml"}


@pytest.mark.slow
def test_the_hook_counts_each_model_that_is_committed(runner, tmp_path):
    """pre-commit's call, with rules and two models: one that breaks them fails it."""
    onnx.save(network(), tmp_path / "second model.onnx")
    entry = shlex.split(HOOKS[0]["entry"])
    for bound, status in (("0", 0), ("0.5", 1)):
        call = shlex.join([*entry, "--rules", f"min-flops={bound}", "model.onnx", "second model.onnx"])
        assert run(call, tmp_path, runner).returncode == status
