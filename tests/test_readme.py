"""The README's blocks, run as they are."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from amp_rewrite.demo import feeds
from amp_rewrite.policy import operator_lists

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI_BLOCK = re.compile(r"<!-- ci: \w+ -->\n```sh\n.*?```", re.DOTALL)


def blocks(language):
    """The fenced blocks of a language, except the two that CI runs itself."""
    return re.findall(rf"```{language}\n(.*?)```", CI_BLOCK.sub("", README), re.DOTALL)


def run(*command, folder, check=True):
    """Runs a command in a folder, with this checkout's package."""
    return subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=check,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_block_runs(block, tmp_path):
    """Every Python block runs as it is, with warnings as errors."""
    run(sys.executable, "-W", "error", "-c", block, folder=tmp_path)


@pytest.mark.slow
def test_the_shell_blocks_run_in_order(tmp_path):
    """Every command of the shell blocks succeeds, one after another in one folder."""
    commands = [
        line for block in blocks("sh") for line in block.splitlines() if line.startswith("amp-rewrite ")
    ]
    assert len(commands) > 5
    for command in commands:
        words = [word.strip("'") for word in command.split("  #")[0].split()]
        run(sys.executable, "-m", "amp_rewrite", *words[1:], folder=tmp_path)


def test_explain_prints_what_the_readme_shows(tmp_path):
    """The chain of causes in the README is what the command prints."""
    run(sys.executable, "-m", "amp_rewrite", "demo", "-o", "work", folder=tmp_path)
    shown = run(sys.executable, "-m", "amp_rewrite", "explain", "work/demo.onnx", "rms_sqrt", folder=tmp_path)
    assert shown.stdout.strip() in README


def test_explain_lists_the_causes_that_the_readme_shows(tmp_path):
    """The list of what keeps nodes in float32 is what the command prints."""
    run(sys.executable, "-m", "amp_rewrite", "demo", "-o", "work", folder=tmp_path)
    shown = run(sys.executable, "-m", "amp_rewrite", "explain", "work/demo.onnx", folder=tmp_path)
    causes = shown.stdout.split("open dimensions")[0]
    assert causes.count("to allow:") == 2
    assert causes in README


def test_the_demo_prints_the_numbers_that_the_readme_shows(tmp_path):
    """Nodes, Casts, size and masks of the demo are those in the README."""
    printed = run(sys.executable, "-m", "amp_rewrite", "demo", folder=tmp_path).stdout
    for line in printed.splitlines()[:6]:
        assert line.strip() in README


def test_a_verdict_that_fails_is_the_one_that_the_readme_shows(tmp_path):
    """The README's command ends with exit code 1 and prints what is shown, apart from numbers."""
    (command,) = re.findall(r"^amp-rewrite .*bright\.npz$", README, re.MULTILINE)
    np.savez(tmp_path / "bright.npz", image=1000 * feeds()["image"])
    run(sys.executable, "-m", "amp_rewrite", "demo", "-o", "work", folder=tmp_path)
    words = command.split()[1:]
    printed = run(sys.executable, "-m", "amp_rewrite", *words, folder=tmp_path, check=False)
    assert printed.returncode == 1
    lines = printed.stdout.splitlines()
    verdict = lines[next(i for i, line in enumerate(lines) if line.startswith("compared")) :]
    assert len(verdict) > 5
    shown = [without_numbers(line) for line in README.splitlines()]
    assert [line for line in verdict if without_numbers(line) not in shown] == []


def without_numbers(line):
    """A line with its numbers and spaces taken out: they differ between machines."""
    return re.sub(r"-?\d[\d.,]*(e[+-]\d+)?|\s+", "", line)


def test_the_main_job_stands_near_the_top():
    """The first command rewrites the reader's own file."""
    (first, *_) = re.findall(r"^amp-rewrite .*", README, re.MULTILINE)
    assert first == "amp-rewrite model.onnx -o model_fp16.onnx"
    assert README.index(first) < 1000


def test_the_readme_names_every_flag():
    """The README mentions each command and each of its flags."""
    flags = {
        max(p.opts, key=len)
        for c in map(loaded, main.commands.values())
        for p in c.params
        if p.opts[0][0] == "-"
    }
    assert len(flags) > 20
    short = {"--output": "-o", "--quiet": "-q"}
    assert {flag for flag in flags if not re.search(rf"{short.get(flag, flag)}\b", README)} == set()
    assert {name for name in main.commands if f"amp-rewrite {name}" not in README} == {"rewrite"}


@pytest.mark.parametrize("block", blocks("yaml"))
def test_a_list_in_the_readme_loads(block, tmp_path):
    """A list in the README loads, with the kinds that it shows."""
    (tmp_path / "ours.yaml").write_text(block)
    loaded = operator_lists.load(tmp_path / "ours.yaml")
    for kind in operator_lists.Kind:
        for operator in yaml.safe_load(block).get(kind.value, {}):
            domain, _, name = operator.rpartition(":")
            assert loaded.find(domain, name).kind is kind
