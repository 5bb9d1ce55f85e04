"""A flag that has no effect with another is refused, and says which."""

import click
import onnx
import pytest

from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from amp_rewrite.cli.file_conflicts import INEFFECTIVE
from tests import text
from tests.commands import rows, run


@pytest.fixture
def model(tmp_path):
    """A product, alone in a folder."""
    path = tmp_path / "model.onnx"
    proto = text.model("g (float[n,4] x) => (float[n,4] y) <float[4,4] w> { y = MatMul (x, w) }")
    onnx.save(proto, path)
    return path


def refusal(model, *flags):
    """The one line of a command that must end with exit code 2, before it reads the model or writes."""
    done = run(*flags) if flags[0] in main.commands else run(model, *flags)
    assert (done.exit_code, done.stdout) == (2, "")
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]
    (line,) = done.stderr.splitlines()
    return line


VALUES = {
    "--custom-ops": ["none.so"],
    "--output": ["out.onnx"],
    "--in-place": [],
    "--external-data": ["auto"],
    "--metric": ["operator:add"],
    "--tolerance": ["relative_l2=0.5"],
    "--per-node": [],
    "--provider": ["cpu"],
    "--require verify": [],
    "--require tensorrt": [],
    "--skip repair": [],
    "--data": ["a.npz"],
    "--seed": ["0"],
    "--samples": ["1"],
    "--steps": ["1"],
    "--timeout": ["1"],
    "--dim": ["n=4"],
}
PAIRS = [
    (rule, flag)
    for rule in INEFFECTIVE
    for flag in rule.flags
    if rule.beside in ("--skip verify", "--dry-run") and not rule.command
]


@pytest.mark.parametrize(("rule", "flag"), PAIRS, ids=lambda part: getattr(part, "beside", part))
def test_beside_a_rewrite_that_does_less(model, rule, flag):
    """Both flags are named, and why; asking for what is the default is asking as well."""
    said = refusal(model, *rule.beside.split(), *flag.split(), *VALUES[flag])
    assert f"{flag} has no effect with {rule.beside}, which {rule.does}; leave out {flag}" in said


LINES = """
--skip verify --samples 2 --seed 3 | --seed and --samples have no effect with
--skip verify --data a.npz         | leave out --data, or --skip verify
--data a.npz --dim n=4           | --dim has no effect with --data, which supplies the inputs
verify a b --data c --samples 2  | --samples has no effect with --data
bench a --data c --seed 2        | --seed has no effect with --data
"""


@pytest.mark.parametrize(("flags", "message"), rows(LINES))
def test_what_a_line_says(model, flags, message):
    """Flags of one kind are named together, and what would give them something to do."""
    assert message in refusal(model, *flags.split())


@pytest.mark.parametrize(
    "flags",
    [
        ("--skip=verify", "--dim", "n=4", "--html", "{folder}/r.html"),
        ("--dry-run", "--dim", "n=4", "--html", "{folder}/r.html"),
        ("--dry-run", "--skip=verify", "--skip=check", "--skip=metadata"),
        ("--dry-run", "-o", "{folder}/out.onnx", "--tolerance", "cosine=0.9", "--per-node", "--samples", "2"),
    ],
)
def test_what_has_something_to_do_is_taken(model, flags):
    """A size for the arithmetic of a report, less of what is not done anyway, and a usual line on trial."""
    assert run(model, *(flag.format(folder=model.parent) for flag in flags)).exit_code == 0


@pytest.mark.parametrize("rule", INEFFECTIVE, ids=lambda rule: f"{rule.beside} {rule.flags[0]}")
def test_every_flag_of_the_table_is_one(rule):
    """A flag that is renamed takes the table with it: some command has all that a rule names."""
    named = {flag.split()[0] for flag in (rule.beside, *rule.flags, *rule.unless)}
    assert any(named <= _spellings(command) for command in map(loaded, main.commands.values()))


def _spellings(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}
