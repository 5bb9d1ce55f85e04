"""Files take their places in one step, and nothing that is not ours is touched on the way."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

from amp_rewrite import Options, many, rewrite
from amp_rewrite.arguments import Beside, ExternalData
from amp_rewrite.errors import OutputError
from amp_rewrite.files import staging
from tests import text
from tests.commands import refusal
from tests.model_files import BESIDE, content, names, saved, weight

__all__ = ["saved"]

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write to all files")
def test_a_write_protected_file_stays(saved, tmp_path):
    """Who took away the right to write meant it; both doors say so."""
    (tmp_path / "out").write_bytes(b"old")
    (tmp_path / "out").chmod(0o444)
    assert "is write-protected" in refusal(staging.write, b"new", tmp_path / "out")
    assert "is write-protected" in refusal(rewrite, saved, output=tmp_path / "out")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root alone gives files away")
def test_a_file_that_is_replaced_keeps_its_owner(saved):
    """So do its weights, which were inside."""
    os.chown(saved, 12345, 23456)
    rewrite(saved, BESIDE, in_place=True)
    for path in (saved, saved.with_name("m.onnx.data")):
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


@pytest.mark.parametrize("name", ["n" * 250 + ".onnx", "é" * 125 + ".onnx", "n" * 255])
def test_the_longest_names(saved, tmp_path, name):
    """A name of 255 bytes is written, with weights under a name that fits; one byte more is refused."""
    out = tmp_path / name
    for _ in range(2):
        rewrite(saved, BESIDE, output=out)
        (data,) = onnx.load(out, load_external_data=False).graph.initializer[0].external_data[:1]
        assert (tmp_path / data.value).is_file()
        assert len(names(tmp_path)) == 3
    assert "File name too long" in refusal(staging.write, b"new", tmp_path / f"{name}n")
    assert "is longer than a path can be" in refusal(rewrite, saved, output=tmp_path / ("n" * 256))


def test_eight_threads_write_one_output(saved, tmp_path):
    """Each of many calls at once succeeds, and what stands in the end is whole."""
    out, errors = tmp_path / "out.onnx", []

    def run():
        try:
            for _ in range(6):
                rewrite(saved, BESIDE, output=out)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert weight(out).dtype == np.float16
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_a_stage_that_is_in_use_stays(tmp_path):
    """Of two runs on one target the last wins, whole."""
    target = tmp_path / "out"
    with staging.beside(target) as first:
        (first.files / "out").write_bytes(b"first")
        staging.write(b"second", target)
        first.publish()
    assert target.read_bytes() == b"first"
    assert names(tmp_path) == ["out"]


def test_a_stranger_takes_the_name_meanwhile(saved, tmp_path, monkeypatch):
    """Data never replaces a file that appeared after its name was chosen: an error, and both stand."""
    publish = staging.Stage.publish

    def late(stage, data, *source):
        (tmp_path / data[0]).write_bytes(b"stranger")
        publish(stage, data, *source)

    monkeypatch.setattr(staging.Stage, "publish", late)
    with pytest.raises(OutputError, match="File exists"):
        rewrite(saved, BESIDE, output=tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_bytes() == b"stranger"
    assert names(tmp_path) == ["m.onnx", "out.onnx.data"]


def test_a_stop_after_the_model_keeps_its_data(saved, tmp_path, monkeypatch):
    """An interrupt right behind the last step does not take the data from a model that stands already."""
    replace = Path.replace

    def interrupted(self, target):
        made = replace(self, target)
        if target == tmp_path / "out.onnx":
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rewrite(saved, BESIDE, output=tmp_path / "out.onnx")
    assert weight(tmp_path / "out.onnx").size


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_new_folder_of_several_files(tmp_path, is_committed):
    """It stays with what is moved there, and goes with what is not; one that was there stays."""
    folder = tmp_path / "new" / "deep"
    places = [folder / "a", folder / "b", folder.parent / "c"]
    with staging.transaction(places) as files:
        for place in places:
            staging.write(b"new", place)
        assert not any(place.exists() for place in places)
        if is_committed:
            files.commit()
    assert all(place.exists() is is_committed for place in places)
    assert (tmp_path / "new").exists() is is_committed
    assert tmp_path.exists()


# ---- runs that are killed, or find the disk full, at each of their steps


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["always", "never", "in place"])
def test_killed_before_each_step(tmp_path, kind):
    """The old result or the new one stands whole, and so does what lies beside it."""
    code = f"from tests import test_staging as t; t.kill_at_each_step({kind!r})"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True)


STEPS = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.chmod", "os.rmdir", "shutil.rmtree"}
"""What a run does to files; besides it opens some to write."""
KILLED, REFUSED = 7, 2


def kill_at_each_step(kind):
    """Forks runs that end before their first step, their second, and so on, until one ends well."""
    place = Path(sys.argv[1])
    is_in_place = kind == "in place"
    options = Options(check=False, external_data=ExternalData(Beside.NEVER if is_in_place else Beside(kind)))
    output = None if is_in_place else place / "work" / "out.onnx"
    _prepare(place / "before", options)
    decoys = {path.name: path.read_bytes() for path in (place / "before").glob("*notes*")}

    def run():
        rewrite(place / "work" / "m.onnx", options, output=output, in_place=is_in_place, force=True)

    for step in itertools.count():
        ended = _forked(place, lambda step=step: _die_before(step), run)
        for path in (place / "work").glob("*.onnx"):
            assert len({float(np.float16(number)) for number in weight(path).flat}) == 1
        left = [name for name in names(place / "work") if name.endswith(staging.UNFINISHED)]
        assert len(left) <= 2  # one of them is a decoy
        assert {path.name for path in many.models_in(place / "work", None)} <= {"m.onnx", "out.onnx"}
        assert {name: (place / "work" / name).read_bytes() for name in decoys} == decoys
        if ended != KILLED:
            break
    assert ended == 0
    assert step > 6
    for most in (0, 100, 1500):
        assert _forked(place, lambda most=most: _limit(most), run) == REFUSED
        assert {path.name for path in content(place / "work")} == {
            path.name for path in content(place / "before")
        }


def _prepare(folder, options):
    """A model, an older result beside it, and decoys: a stage of somebody else leads to notes."""
    folder.mkdir()
    source = folder / "m.onnx"
    for number in (0.5, 0.125):
        onnx.save(
            text.model(
                "g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { y = MatMul(x, w) }",
                {"w": np.full((32, 32), number, np.float32)},
            ),
            source,
        )
        if number == 0.5:
            rewrite(source, options, output=folder / "out.onnx")
    for name in ("out.onnx.notes.data", ".out.onnx.notes", "notes"):
        (folder / name).write_text(name)
    (folder / f".out.onnx.{staging.UNFINISHED}").symlink_to("notes")


def _forked(place, prepare, run):
    """The exit code of a run on a fresh copy, in a process of its own."""
    shutil.rmtree(place / "work", ignore_errors=True)
    shutil.copytree(place / "before", place / "work", symlinks=True)
    process = os.fork()
    if not process:
        prepare()
        try:
            run()
        except OutputError:
            os._exit(REFUSED)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _die_before(step):
    steps = itertools.count()

    def die(event, arguments):
        is_written = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax")
        if (event in STEPS or is_written) and next(steps) == step:
            os._exit(KILLED)

    sys.addaudithook(die)


def _limit(most):
    import resource  # noqa: PLC0415 - which not every system has

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
