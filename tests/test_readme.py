"""The README's blocks, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from amp_rewrite import lists

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI_BLOCK = re.compile(r"<!-- ci: \w+ -->\n```sh\n.*?```", re.DOTALL)


def blocks(language):
    """The fenced blocks of a language, but for the two that CI runs itself."""
    return re.findall(rf"```{language}\n(.*?)```", CI_BLOCK.sub("", README), re.DOTALL)


def run(*command, folder):
    """Runs a command in a folder, with this checkout's package."""
    return subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_block_runs(block, tmp_path):
    """Every Python block runs as it stands, with warnings as errors."""
    run(sys.executable, "-W", "error", "-c", block, folder=tmp_path)


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


def test_the_demo_prints_the_numbers_that_the_readme_shows(tmp_path):
    """Nodes, Casts, size and masks of the demo are those in the README."""
    printed = run(sys.executable, "-m", "amp_rewrite", "demo", folder=tmp_path).stdout
    for line in printed.splitlines()[:6]:
        assert line.strip() in README


@pytest.mark.parametrize("block", blocks("yaml"))
def test_a_list_in_the_readme_loads(block, tmp_path):
    """A list that the README shows is a list that loads, and says what it seems to say."""
    (tmp_path / "ours.yaml").write_text(block)
    loaded = lists.load(tmp_path / "ours.yaml")
    for kind in lists.Kind:
        for operator in yaml.safe_load(block).get(kind.value, {}):
            domain, _, name = operator.rpartition(":")
            assert loaded.find(domain, name).kind is kind
