"""What is packed, and that lists are found in a wheel, an editable install and a clone."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LISTS = sorted(path.name for path in (ROOT / "oplists").glob("*.yaml"))
PAGE = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "amp_rewrite" / "reporting" / "html").rglob("*")
    if path.is_file()
)
DATA = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "amp_rewrite").rglob("*.json"))

# Prints where the package was imported from, where its lists are, and each list that it can load.
PROBE = """
from pathlib import Path
import amp_rewrite
from amp_rewrite.policy import operator_lists
print(Path(amp_rewrite.__file__).parents[1])
print(operator_lists.folder())
print(*(f"{operator_lists.load(name).name}.yaml" for name in operator_lists.names()))
"""


def python(*arguments, cwd, path=()):
    """What Python prints, run from cwd with PYTHONPATH as given and no more."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind, folder):
    """A wheel of the checkout, `standard` or `editable`, unpacked in folder."""
    pytest.importorskip("hatchling", reason="the wheel is built by hatchling")
    hook = {"standard": "build_wheel", "editable": "build_editable"}[kind]
    python("-c", f"from hatchling import build; build.{hook}({str(folder)!r})", cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    shutil.unpack_archive(wheel, folder / "site", "zip")
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder into which the wheel was unpacked."""
    return built("standard", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_package_and_its_data(site):
    """Lists, tables, the page, the typing marker, the command and all licences; no tests."""
    inside = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert LISTS
    assert DATA
    assert "amp_rewrite/reporting/html/vendor/d3.min.js" in PAGE
    assert {
        *DATA,
        *PAGE,
        "amp_rewrite/py.typed",
        *(f"amp_rewrite/oplists/{name}" for name in LISTS),
    } <= inside
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"amp_rewrite"}
    (info,) = site.glob("*.dist-info")
    vendored = [path for path in PAGE if path.endswith(".LICENSE")]
    assert len(vendored) == 2
    for path in ("LICENSE", *vendored):
        assert (info / "licenses" / path).read_bytes() == (ROOT / path).read_bytes()
    assert "amp-rewrite = amp_rewrite.__main__:main" in (info / "entry_points.txt").read_text()


def probed(folder, path):
    """What PROBE prints, as (package's home, folder of lists, names of lists)."""
    home, lists, names = python("-c", PROBE, cwd=folder, path=path).splitlines()
    return Path(home), Path(lists), names.split()


def test_lists_are_found_in_a_wheel(site, tmp_path):
    """The installed package reads the lists that came with it."""
    assert probed(tmp_path, [site]) == (site, site / "amp_rewrite" / "oplists", LISTS)


@pytest.mark.slow
def test_lists_are_found_in_an_editable_install(tmp_path):
    """An editable install reads the lists of the checkout."""
    site = built("editable", tmp_path)
    (pointer,) = site.glob("*.pth")
    path = [site, pointer.read_text().strip()]
    assert probed(tmp_path, path) == (ROOT, ROOT / "oplists", LISTS)


@pytest.mark.slow
def test_a_bare_clone(tmp_path):
    """A checkout that nobody installed reads its own lists, and has two doors that open from anywhere."""
    assert probed(tmp_path, [ROOT]) == (ROOT, ROOT / "oplists", LISTS)
    assert "Usage" in python(ROOT / "cli.py", "--help", cwd=tmp_path)
    assert "Usage" in python("-m", "amp_rewrite", "--help", cwd=tmp_path, path=[ROOT])


# ---- the libraries that the HTML report carries are those of the record

VENDOR = ROOT / "amp_rewrite" / "reporting" / "html" / "vendor"
LIBRARIES = json.loads((VENDOR / "vendor.json").read_text())
VENDORED = [(name, file["sha256"]) for library in LIBRARIES for name, file in library["files"].items()]


@pytest.mark.parametrize(("name", "expected"), VENDORED)
def test_a_file_is_the_one_that_was_recorded(name, expected):
    """Nobody edited it, and no checkout changed its line ends."""
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == expected


def test_nothing_else_is_vendored():
    """Every file of the folder is on the record, and each library has its licence beside it."""
    assert {path.name for path in VENDOR.iterdir()} == {"vendor.json", *(name for name, _ in VENDORED)}
    for library in LIBRARIES:
        assert library["integrity"].startswith("sha512-")
        assert any(name.endswith(".LICENSE") for name in library["files"])
