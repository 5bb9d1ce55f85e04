"""The blocks of the README and of the pages of the site, run as they are."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

import amp_rewrite
from amp_rewrite import demo
from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from amp_rewrite.policy import operator_lists
from tests import commands

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
SHELL = (README, PAGES["rewriting.md"], PAGES["decisions.md"])
"""The pages whose shell blocks run, one after another in one folder."""
CI_BLOCK = re.compile(r"<!-- ci: \w+ -->\n```sh\n.*?```", re.DOTALL)


def blocks(language, *pages):
    """The fenced blocks of a language in pages, except the two that CI runs itself."""
    return [
        block
        for page in pages
        for block in re.findall(rf"```{language}\n(.*?)```", CI_BLOCK.sub("", page), re.DOTALL)
    ]


def printed(line, exit_code=0):
    """What a command line prints here; behind it may stand a comment."""
    done = commands.run(*(word.strip("'") for word in re.split("  #| # ", line)[0].split()[1:]))
    assert done.exit_code == exit_code, f"{line}: {done.output}"
    return done.stdout


@pytest.mark.parametrize("block", blocks("python", README, PAGES["python.md"], PAGES["measurements.md"]))
def test_a_python_block_runs(block, tmp_path, monkeypatch):
    """Every Python block runs as it is, with warnings as errors."""
    monkeypatch.chdir(tmp_path)
    exec(block, {"__name__": "__main__"})


@pytest.mark.slow
def test_the_shell_blocks_run_in_order(tmp_path, monkeypatch):
    """Every command of the shell blocks succeeds, one after another in one folder."""
    monkeypatch.chdir(tmp_path)
    lines = [
        line
        for block in blocks("sh", *SHELL)
        for line in block.splitlines()
        if line.startswith("amp-rewrite ")
    ]
    assert len(lines) > 5
    for line in lines:
        printed(line)


MISSING = re.compile(r"needs the package|no Dask scheduler|matches no node|is no input of the model")
"""Packages that not every machine has, and names of a reader's own model."""


@pytest.fixture
def files_of_a_reader(tmp_path, monkeypatch):
    """A folder with the files that pages name."""
    monkeypatch.chdir(tmp_path)
    for name in ("model", "exported", "finetuned", "whisper_encoder", "models/model"):
        Path(name).parent.mkdir(exist_ok=True)
        onnx.save(demo.network(), f"{name}.onnx")
    half = amp_rewrite.rewrite(demo.network()).model
    for name in ("model_fp16", "broken_fp16"):
        onnx.save(half, f"{name}.onnx")
    for name in ("inputs", "models/inputs", "samples/a", "samples/b", "images/a"):
        Path(name).parent.mkdir(exist_ok=True)
        np.savez(name, **demo.feeds())
    onnx.save(demo.train_step(), "step.onnx")
    Path("evaluate.py").write_text("def mean_ap(*outputs):\n    return 0.5\n")


def test_the_keys_of_the_json_report_are_there(tmp_path):
    """Every key in the table is one of a report, at the top or below the key of its row."""
    report = tmp_path / "r.json"
    assert commands.run("demo", "-o", tmp_path).exit_code == 0
    assert commands.run(tmp_path / "demo.onnx", "--json", report).exit_code == 0
    content = json.loads(report.read_text())
    table = PAGES["rewriting.md"].partition("| key | |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split(" | ", 1) for line in table.splitlines() if "`" in line]
    assert len(rows) > 8
    for keys, words in rows:
        names = re.findall(r"`(\w+)`", keys)
        assert set(names) <= set(content)
        inner = content[names[0]]
        if isinstance(inner, dict) and names[0] not in ("nodes", "advice"):
            below = json.dumps(inner)
            assert all(f'"{name}": ' in below for name in re.findall(r"`(\w+)`", words)), words


@pytest.mark.slow
@pytest.mark.usefixtures("files_of_a_reader")
def test_every_indented_command_runs():
    """Each succeeds, or says what this machine lacks, in the order of the pages."""
    lines = dict.fromkeys(
        line for page in PAGES.values() for line in re.findall(r"^    (amp-rewrite .*)", page, re.MULTILINE)
    )
    assert len(lines) > 40
    for line in lines:
        words = [word.strip("'") for word in line.split(" # ")[0].split()]
        done = commands.run(*words[1:])
        assert done.exit_code == 0 or MISSING.search(done.output), f"{line}: {done.output}"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder in which the demo has written its network, in `work`."""
    folder = tmp_path_factory.mktemp("documents")
    assert commands.run("demo", "-o", folder / "work").exit_code == 0
    return folder


def test_explain_prints_what_its_page_shows(work, monkeypatch):
    """The chain of causes on the page, and the list of what keeps nodes in float32, are what it prints."""
    monkeypatch.chdir(work)
    assert printed("amp-rewrite explain work/demo.onnx rms_sqrt").strip() in PAGES["explain.md"]
    causes = printed("amp-rewrite explain work/demo.onnx").split("open dimensions")[0]
    assert causes.count("to allow:") == 2
    assert causes in PAGES["explain.md"]


def test_the_demo_prints_what_the_readme_shows(tmp_path, monkeypatch):
    """The block of the README is what `demo` prints, apart from the numbers of the comparison."""
    monkeypatch.chdir(tmp_path)
    lines = printed("amp-rewrite demo").splitlines()
    (block,) = re.findall(r"```\n(output [^`]*amp_rewrite_demo/[^`]*)```", README)
    shown = block.splitlines()
    assert list(map(without_numbers, lines)) == list(map(without_numbers, shown))
    assert lines[-2:] == shown[-2:]


@pytest.mark.slow
def test_a_verdict_that_fails_is_the_one_that_its_page_shows(work, monkeypatch):
    """The command ends with exit code 1 and prints what is shown, apart from numbers."""
    monkeypatch.chdir(work)
    (command,) = re.findall(r"^amp-rewrite .*bright\.npz$", PAGES["verification.md"], re.MULTILINE)
    (script,) = blocks("python", PAGES["verification.md"])
    exec(script, {})
    lines = printed(command, exit_code=1).splitlines()
    verdict = [line for line in lines if not line.startswith("warning")]
    assert len(verdict) == 5
    shown = [without_numbers(line) for line in PAGES["verification.md"].splitlines()]
    assert [line for line in verdict if without_numbers(line) not in shown] == []


def without_numbers(line):
    """A line with its numbers and spaces taken out: they differ between machines."""
    return re.sub(r"-?\d[\d.,]*(e[+-]\d+)?|\s+", "", line)


def test_the_main_job_stands_near_the_top():
    """The first command rewrites the reader's own file."""
    (first, *_) = re.findall(r"^amp-rewrite .*", README, re.MULTILINE)
    assert first == "amp-rewrite model.onnx -o model_fp16.onnx"
    assert README.index(first) < 1000


def test_the_readme_names_every_command():
    """Whoever reads it knows what there is."""
    assert {name for name in main.commands if f"amp-rewrite {name}" not in README} == {"rewrite"}


def shown():
    """Every command line in a code block of a page, with its page."""
    for name, page in {"README.md": README, **PAGES}.items():
        for line in re.findall(r"^(?:    |\$ )?(amp-rewrite .*)", page, re.MULTILINE):
            yield pytest.param(line.split("  #")[0], id=f"{name}: {line[:60]}")


@pytest.mark.parametrize("line", list(shown()))
def test_a_command_that_is_shown_has_its_flags(line):
    """A page names no flag that its command does not know; what follows `--` is for rewrite."""
    _, *words = re.sub(r"'[^']*'", "TEXT", line).split()
    name = words[0] if words[0] in main.commands else "rewrite"
    own, _, others = " ".join(words).partition(" -- ")
    assert flags(own) <= known(name), line
    assert flags(others) <= known("rewrite"), line


def flags(words):
    """The flags among some words."""
    return {word.split("=")[0] for word in words.split() if re.match(r"--?[a-zA-Z]", word)}


def known(name):
    """The flags of a command."""
    command = loaded(main.commands[name])
    return {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("block", blocks("yaml", PAGES["lists.md"]))
def test_a_list_on_the_page_loads(block, tmp_path):
    """A list on the page loads, with the kinds that it shows."""
    (tmp_path / "ours.yaml").write_text(block)
    loaded = operator_lists.load(tmp_path / "ours.yaml")
    for kind in operator_lists.Kind:
        for operator in yaml.safe_load(block).get(kind.value, {}):
            domain, _, name = operator.rpartition(":")
            assert loaded.find(domain, name).kind is kind
