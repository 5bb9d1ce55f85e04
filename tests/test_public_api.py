"""What the package promises by name: its version, and the types that a type checker sees."""

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import amp_rewrite
from amp_rewrite import Options, version
from tests.commands import run

ROOT = Path(__file__).parents[1]


def missing(name):
    """What asks for the version where nothing is installed."""
    raise metadata.PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("asked", "found"), [({"amp-rewrite": "1.2.3"}.__getitem__, "1.2.3"), (missing, version.UNKNOWN)]
)
def test_the_version_is_that_of_the_command(monkeypatch, asked, found):
    """Both say the version that pip shows; in a bare clone one that packaging tools can read."""
    vars(amp_rewrite).pop("__version__", None)
    monkeypatch.setattr(metadata, "version", asked)
    assert amp_rewrite.__version__ == found
    assert run("--version").output == f"amp-rewrite, version {found}\n"
    vars(amp_rewrite).pop("__version__", None)
    assert version.UNKNOWN == "0+unknown"


def test_importing_the_package_does_not_look_up_its_version():
    """Who only imports the package does not pay for reading what is installed."""
    code = "import sys, amp_rewrite; assert 'importlib.metadata' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


TYPED = """# pyright: strict
from pathlib import Path
from typing import Any, assert_type

import onnx
import onnx_ir as ir

import amp_rewrite
from amp_rewrite import Options, Pins, Result, Tolerances
from amp_rewrite.half import Half
from amp_rewrite.options import ExternalData, IOTypes, Level
from amp_rewrite.running.inputs.feeds import Data

def results(proto: onnx.ModelProto, model: ir.Model, path: Path, unknown: Any) -> None:
    assert_type(amp_rewrite.rewrite(proto), Result[onnx.ModelProto])
    assert_type(amp_rewrite.rewrite(model).model, ir.Model)
    assert_type(amp_rewrite.rewrite(b"").model, bytes)
    assert_type(amp_rewrite.rewrite("m.onnx").model, Path)
    assert_type(amp_rewrite.rewrite(path, Options(), output="o.onnx").model, Path)
    assert_type(amp_rewrite.rewrite(unknown), Result[Any])
    kept: Result[object] = amp_rewrite.rewrite(proto)
    print(kept, amp_rewrite.__version__)

def options(path: Path) -> None:
    asked = Options(half="bfloat16", lists=path, target="any", level="default", io="half", keep_io="x")
    assert_type(asked.half, Half)
    assert_type(asked.level, Level)
    assert_type(asked.io, IOTypes)
    assert_type(asked.keep_io, tuple[str, ...])
    assert_type(asked.external_data, ExternalData)
    assert_type(Pins(keep_full="head_.*").keep_full, tuple[str, ...])
    assert_type(Data("in.npz", dims={"batch": 4}).paths, tuple[Path, ...])

def runs(proto: onnx.ModelProto, sample: dict[str, Any]) -> None:
    seen = amp_rewrite.observe(proto, sample, device="cpu")
    after = amp_rewrite.rewrite(proto, observed=seen).model
    assert_type(amp_rewrite.verify(proto, after, [sample], Tolerances(cosine=0.9), io="half").ok, bool)
"""

WRONG = {
    "Options(half=3)": '"half"',
    "Options(keep_io=3)": '"keep_io"',
    "Options(check='no')": '"check"',
    "Pins(keep_full=None)": '"keep_full"',
    "rewrite(b'', {'half': 'bfloat16'})": "rewrite",
    "rewrite(b'', observed=[1])": "rewrite",
    "verify(b'', b'', {}, 0.01)": '"bounds"',
}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_a_strict_type_checker_sees_what_is_taken_and_returned(tmp_path):
    """Short forms are taken, fields are exact, results of the kind that was given; slips are found."""
    file = tmp_path / "typed.py"
    wrong = [f"amp_rewrite.{call}" for call in WRONG]
    file.write_text("\n".join((TYPED, *wrong, "")))
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT}"]}}')
    checker = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", tmp_path]
    done = subprocess.run(checker, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert " error: " in done.stdout, done.stdout + done.stderr
    first = TYPED.count("\n") + 2
    said = {line.split(":")[1]: line for line in done.stdout.splitlines() if " error: " in line}
    assert list(said) == [str(first + at) for at in range(len(wrong))], done.stdout
    for line, named in zip(said.values(), WRONG.values(), strict=True):
        assert named in line


def test_options_say_what_they_take():
    """`help(Options)` shows a signature in which every field has its default."""
    assert Options() == Options(half="float16", io="keep", level="default", external_data="auto")
    assert "Raises OptionError" in (Options.__doc__ or "")
