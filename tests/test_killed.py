"""Runs that are killed, or find the disk full, at any moment: no file is lost, and none is half there."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from amp_rewrite.cli import main
from amp_rewrite.files import staging
from tests import text

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")]

ROOT = Path(__file__).parents[1]
KINDS = {
    "inside": (),
    "beside": ("--external-data", "always"),
    "several": ("--external-data", "600kB"),
    "in place": ("--in-place",),
}
KILLED, FULL = 7, 2
"""Runs of each kind."""


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random_moments(tmp_path, kind):
    """After each of a hundred kills the old result or the new one stands whole, and decoys as they were."""
    done = subprocess.run(
        [sys.executable, "-c", f"from tests import test_killed as t; t.kill_runs({kind!r})", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    counts = json.loads(done.stdout)
    assert counts["killed"] == KILLED, "runs end before they are killed"


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_fills_up(tmp_path, kind):
    """Each of twenty runs that can write only so many bytes leaves the old result, and nothing more."""
    done = subprocess.run(
        [sys.executable, "-c", f"from tests import test_killed as t; t.fill_disks({kind!r})", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def kill_runs(kind):
    """Forks runs and kills each of them at a random moment; asserts what must hold after every one."""
    folder, flags = _prepared(kind)
    began = time.monotonic()
    assert _forked(folder, flags) == 0
    lasts, chance, killed = time.monotonic() - began, random.Random(kind), 0
    for _ in range(4 * KILLED):
        if killed == KILLED:
            break
        _renew(folder, chance)
        process = os.fork()
        if not process:
            _run(folder, flags)
        time.sleep(chance.uniform(0.3, 1.05) * lasts)
        os.kill(process, signal.SIGKILL)
        is_killed = os.WIFSIGNALED(os.waitpid(process, 0)[1])
        killed += is_killed
        lasts *= 1.02 if is_killed else 0.9  # the machine is not as fast or slow all the time
        _check(folder)
    assert _forked(folder, flags) == 0
    left = [path for path in folder.iterdir() if path.name.endswith(staging.UNFINISHED)]
    assert len(left) <= killed + 1, "a killed run leaves one folder at most, beside the decoy"
    _check(folder)
    sys.stdout.write(json.dumps({"killed": killed}))


def fill_disks(kind):
    """Forks runs that may write files of random sizes at most."""
    folder, flags = _prepared(kind)
    chance = random.Random(kind)
    for _ in range(FULL):
        _renew(folder, chance)
        before = _content(folder)
        assert _forked(folder, flags, largest=chance.randrange(0, 300_000)) == 2
        assert _content(folder) == before
        _check(folder)


def _prepared(kind):
    folder = Path(sys.argv[1])
    (folder / "work").mkdir()
    proto = _model(4, np.float32(0.1))
    onnx.save(proto, folder / "work" / "m.onnx")
    _plant_decoys(folder / "work")
    shutil.copytree(folder / "work", folder / "pristine", symlinks=True)
    flags = KINDS[kind]
    return folder / "work", flags if "--in-place" in flags else ("-o", "out.onnx", "--force", *flags)


def _model(products, value):
    weights = {f"w{i}": np.full((400, 400), value, np.float32) for i in range(products)}
    kinds = ", ".join(f"float[400,400] {name}" for name in weights)
    nodes = " ".join(f"h{i + 1} = MatMul(h{i}, w{i})" for i in range(products))
    return text.model(f"g (float[1,400] h0) => (float[1,400] h{products}) <{kinds}> {{ {nodes} }}", weights)


DECOYS = (
    ".out.onnx.part",
    ".out.onnx.7.amp-rewrite-unfinished",
    "out.onnx.notes.data",
    "out.onnx.bak",
    "out.onnx.00001-of-00009.dat",
    "m.onnx.notes.data",
    "m.onnx~",
)


def _plant_decoys(folder):
    for name in DECOYS:
        (folder / name).write_bytes(f"{name} is out.onnx.data's and m.onnx.data's neighbour".encode())
    inside = folder / ".out.onnx.1.amp-rewrite-unfinished"
    inside.mkdir()
    (inside / "notes").write_bytes(b"in a folder that has the name of a stage")


def _renew(folder, chance):
    """The input as it was, and, most times, an old result."""
    shutil.copyfile(folder.with_name("pristine") / "m.onnx", folder / "m.onnx")
    if chance.random() < 0.5:
        for old in (*folder.glob("out.onnx"), *folder.glob("out.onnx*.data")):
            if old.name not in DECOYS:
                old.unlink()
        onnx.save(
            _model(1, np.float32(0.5)),
            folder / "out.onnx",
            save_as_external_data=chance.random() < 0.5,
            location="out.onnx.data",
        )


def _run(folder, flags):
    """The command in this process, which it ends."""
    os.chdir(folder)
    try:
        main(["m.onnx", *flags, "--skip=verify", "--skip=check", "-q"], standalone_mode=True)
    except SystemExit as stop:
        os._exit(stop.code or 0)
    os._exit(70)


def _forked(folder, flags, largest=None):
    """The exit code of a run in a process of its own."""
    process = os.fork()
    if not process:
        if largest is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        _run(folder, flags)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _check(folder):
    """Whatever model stands is whole, and every decoy is what it was."""
    for name in ("m.onnx", "out.onnx"):
        if (folder / name).exists():
            stored = [
                (t.data_type, numpy_helper.to_array(t)) for t in onnx.load(folder / name).graph.initializer
            ]
            assert len(stored) in (1, 4)
            for kind, array in stored:
                whole = np.float32(0.5 if len(stored) == 1 else 0.1)
                assert (array == (whole if kind == TensorProto.FLOAT else np.float16(whole))).all()
    pristine = folder.with_name("pristine")
    for path in pristine.rglob("*"):
        if path.is_file() and path.name != "m.onnx":
            assert (folder / path.relative_to(pristine)).read_bytes() == path.read_bytes()
