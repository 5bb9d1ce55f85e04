"""The runner of cases: what is read, what a wrong case says, and what an update writes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from amp_rewrite import rewrite
from amp_rewrite.explaining import cases
from tests import case_checks, case_files, commands, test_layers, text
from tools import reference_pages

ROOT = Path(__file__).parents[1]

LAYERS = """# A sentence about
# two layers. [--skip fold]
g (float[4,4] x) => (float[4,4] y) <float[4,4] w, float e = {1e-12}> {
  m = MatMul (x, w) ... y = MatMul (d, w) }
"""
GUARDED = "a = Max (m, e) d = Div (m, a)"
MERGED = """# A norm.
g (float[1,4,3,3] x) => (float[1,4,3,3] y) <float[4,4,1,1] w, float[4] s, float two = {2}> {
  t = Mul (two, two) a = Mul (x, t) [conv] c = Conv (a, w) [bn] y = BatchNormalization (c, s, s, s, s) }
"""
PAIR = """# Powers of two.
g (float[2] x) => (float[2] y) <float[2] w = {3, 5}/4> { m = Mul (x, w) y = Div (m, m) }
"""


def case_of(tmp_path, paragraph, row):
    """The only row of a paragraph in a file."""
    path = tmp_path / "one.cases"
    path.write_text(f"{paragraph}    a row | {row}\n")
    (case,) = case_files.read(path)
    return path, case


WRONG = [
    # the claim that is wrong, and what is found instead
    (LAYERS, f"{GUARDED} | a: 1e-12 in 'e' becomes 0", "d: 1e-12 in 'e' becomes 0"),
    (LAYERS, f"{GUARDED} | a d: 1e-11", "a d: 1e-12 in 'e' becomes 0"),
    (LAYERS, f"{GUARDED} | full a", "d: 1e-12 in 'e'"),
    (LAYERS, f"{GUARDED} | half m d y", "half m y"),
    (LAYERS, f"{GUARDED} | stores e 1", "stores e 9.99999996e-13"),
    (LAYERS, f"{GUARDED} | stores w float32", "stores w float16"),
    (LAYERS, f"{GUARDED} | stores w float16[4]", "stores w float16[4,4]"),
    (LAYERS, f"{GUARDED} | licences folded 1", "licences none"),
    (LAYERS, f"{GUARDED} | type m float", "type m float16"),
    (LAYERS, f"{GUARDED} | type m float16[4]", "type m float16[4,4]"),
    (LAYERS, f"{GUARDED} | saturated 1", "saturated 0"),
    (LAYERS, f"{GUARDED} | flushed 1", "flushed 0"),
    (LAYERS, f"{GUARDED} | casts 3", "casts 4"),
    (LAYERS, f"{GUARDED} | opset 18", "opset 17"),
    (MERGED, "folds bn into c", "folds bn into conv"),
    (MERGED, "computes", "computes t"),
    (MERGED, "forms square t", "forms"),
    (MERGED, "operators Conv", "operators Mul Cast Conv Cast"),
    (MERGED, "becomes g () => () {}", "becomes"),
    (MERGED, "unchanged", "unchanged not"),
    (MERGED, "refused for ever", "refused not"),
    (MERGED, "warns that", "warns"),
    (MERGED, "half y ; not proved: why", "it is proved"),
    (MERGED, "half y ; error 1e-9", "Not equal to tolerance rtol=1e-09"),
    (LAYERS, "d = Relu (m) | ", "half m d y"),
    (PAIR, "| | proved: 3 nodes", "proved: rescaled 1"),
    (PAIR, "| Div (m, m) -> Div (m, x) | proved", "not proved: the two are not the same"),
    (PAIR, "| | not proved: why", "proved: rescaled 1"),
    (PAIR, "| Div (m, m) -> Neg (m) | error: why", "not proved: the two are not the same"),
    (PAIR, "Div (m, m) -> Add (m, x) | 5 -> 6 | proved: rescaled 1 ; exact", "not exact: other bits"),
]


@pytest.mark.parametrize(("paragraph", "row", "instead"), WRONG, ids=[row for _, row, _ in WRONG])
def test_a_case_that_is_wrong_says_what_is_found(tmp_path, paragraph, row, instead):
    """Each verb, wrong on purpose: what holds instead is named."""
    _, case = case_of(tmp_path, paragraph, row)
    wrong, _ = case_checks.problems(case)
    assert instead in "\n".join(wrong)


def test_a_model_that_is_refused(tmp_path):
    """Its message is the claim; another claim fails with the message."""
    row = "[--range z=0:1] {} {}"
    for claim, is_wrong in (("| refused no input", False), ("| half m", True)):
        _, case = case_of(tmp_path, LAYERS, row.format("d = Relu (m)", claim))
        wrong, _ = case_checks.problems(case)
        assert bool(wrong) is is_wrong, wrong


def test_an_update_writes_what_is_found_and_keeps_what_holds(tmp_path):
    """The second time there is nothing to write; a reason that was shortened stays as it is."""
    path, case = case_of(tmp_path, LAYERS, f"{GUARDED} | a d: 1e-12 ; half y ; casts 9")
    case_files.update(path, [(case, case_checks.problems(case)[1])])
    text = path.read_text()
    assert text.endswith("| a d: 1e-12 ; half m y ; casts 4\n")
    (case,) = case_files.read(path)
    assert case_checks.problems(case) == ([], [*case.claims])
    assert (case.flags, case.title) == ("--skip fold", "A sentence about two layers. / a row")
    assert text.splitlines()[case.line - 1].startswith("    a row |")


def test_what_a_case_cannot_say(tmp_path):
    """A change of what is not there, an unknown verb, and a model without rows are errors."""
    with pytest.raises(AssertionError, match="the model has no 'k'"):
        case_of(tmp_path, LAYERS, "k -> l | half m")
    _, case = case_of(tmp_path, LAYERS, f"{GUARDED} | whole m")
    with pytest.raises(AssertionError, match="no such verb: whole m"):
        case_checks.problems(case)
    path = tmp_path / "rowless.cases"
    path.write_text(LAYERS)
    with pytest.raises(AssertionError, match="no rows"):
        list(case_files.read(path))


@pytest.mark.parametrize("flags", [(), ("--to", "bfloat16", "--keep-full", "before", "--skip", "fold")])
def test_explain_prints_a_case(tmp_path, flags):
    """`--show case` prints a case that holds, with the flags that were given."""
    onnx.save(text.model(text.DOWNSTREAM), tmp_path / "m.onnx")
    shown = commands.run("explain", tmp_path / "m.onnx", "--show", "case", *flags)
    assert shown.exit_code == 0, shown.output
    path = tmp_path / "one.cases"
    path.write_text(shown.stdout)
    (case,) = case_files.read(path)
    assert case.flags == " ".join(flags)
    assert case_checks.problems(case) == ([], [*case.claims])


def test_the_case_of_a_result_is_that_of_its_original(tmp_path):
    """A rewritten model carries its decisions, but not the model that they are about."""
    onnx.save(rewrite(text.model(text.DOWNSTREAM)).model, tmp_path / "m.onnx")
    assert "give the original" in commands.failure("explain", tmp_path / "m.onnx", "--show", "case")


def test_the_numbers_of_large_tensors_are_left_out():
    """A tensor of more than 64 elements is declared, in bodies too; metadata is left out."""
    proto = text.model(
        """g (float[4,65] x, bool c) => (float[4,65] y) <float[65] w, float[2] v> {
        y = If (c) <
            then_branch = t () => (float[4,65] p) <float[65] u> { p = Add (x, u) },
            else_branch = f () => (float[4,65] q) { q = Add (x, w) } >
    }"""
    )
    shown = cases.case(proto, "Two.", "half y")
    assert "<float[2] v =  {0.1,0.9}, float[65] w>" in shown
    assert "<float[65] u>" in shown


RUNNER = ("case_files.py", "case_checks.py", "certificate_pairs.py", "onnx_text.py")


def test_the_runner_knows_public_names_only():
    """What runs cases imports nothing of the package that the Python reference does not name."""
    public = set(re.findall(r"^::: (\S+)", reference_pages.python_page(), re.MULTILINE))
    trees = [ast.parse((ROOT / "tests" / name).read_text()) for name in RUNNER]
    names = {".".join(name) for tree in trees for name in test_layers.imported(ast.walk(tree))}
    used = {name for name in names if name.startswith("amp_rewrite.")}
    assert used
    assert used - public == set()


@pytest.mark.slow
def test_pytest_collects_cases_and_updates_them(tmp_path):
    """A wrong row fails with its sentence, its name and what was found; with --update it is written."""
    path, case = case_of(tmp_path, LAYERS, f"{GUARDED} | half m")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-c",
        ROOT / "pyproject.toml",
        path,
    ]
    failed = subprocess.run([*command, "-n0"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    told = f"{case.sentence}\nrow: a row\nclaimed: half m\nfound:   half m y\n"
    assert told in failed.stdout
    subprocess.run([*command, "--update"], cwd=ROOT, capture_output=True, check=True)
    assert path.read_text().endswith("| half m y\n")
