"""Files take their places in one step, and nothing that is not ours is touched on the way."""

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import onnx
import pytest

from amp_rewrite import Options, many, rewrite
from amp_rewrite.errors import OptionError, OutputError
from amp_rewrite.files import staging
from amp_rewrite.policy.options import Beside, ExternalData
from tests import text
from tests.model_files import names

ROOT = Path(__file__).parents[1]
BESIDE = Options(check=False, external_data=ExternalData(Beside.ALWAYS))
GRAPH = "g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { y = MatMul(x, w) }"


@pytest.fixture
def model(tmp_path):
    """The path of a model with a weight that is large enough for a file of its own."""
    path = tmp_path / "m.onnx"
    onnx.save(text.model(GRAPH), path)
    return path


def refused(path, source):
    """The line with which a place is refused by both doors: a file of bytes, and a result."""
    with pytest.raises(OutputError) as file:
        staging.write(b"new", path)
    with pytest.raises(OutputError) as result:
        rewrite(source, Options(check=False), output=path)
    assert str(file.value) == str(result.value)
    return str(file.value)


def test_a_link_stays_and_its_target_is_replaced(model, tmp_path):
    """A link to a file, to a link, and to what is not there yet: what it leads to is written."""
    for target in ("real", "new"):
        (tmp_path / f"first-{target}").symlink_to(target)
        (tmp_path / f"second-{target}").symlink_to(f"first-{target}")
    (tmp_path / "real").write_bytes(b"old")
    for target in ("real", "new"):
        made = rewrite(model, Options(check=False), output=tmp_path / f"second-{target}", force=True).model
        assert made.readlink() == Path(f"first-{target}")
        assert onnx.load(tmp_path / target).graph.node
        assert not (tmp_path / target).is_symlink()


def test_in_place_behind_a_link(model, tmp_path):
    """The file that the link leads to is rewritten, and the link stays."""
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link.onnx"
    link.symlink_to(model)
    rewrite(link, Options(check=False), in_place=True)
    assert link.is_symlink()
    assert onnx.load(model).graph.initializer[0].data_type == onnx.TensorProto.FLOAT16


def test_weights_behind_a_link_to_another_folder(model, tmp_path):
    """Weights beside the target are not found by who follows the link: refused, and nothing is written."""
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link.onnx"
    link.symlink_to(tmp_path / "real.onnx")
    with pytest.raises(OutputError, match=r"is a link to .*real\.onnx, and the weights would lie"):
        rewrite(model, BESIDE, output=link)
    assert names(tmp_path) == ["folder", "m.onnx"]


def test_a_link_that_nobody_named_is_not_followed(model, tmp_path):
    """Where no output is named, a link at the default place leads to a file that nobody spoke of."""
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "m_fp16.onnx").symlink_to("victim")
    with pytest.raises(OutputError, match="is a link at the default output path"):
        rewrite(model, Options(check=False))
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_circle_of_links(model, tmp_path):
    """Links that lead to each other are named."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "its links are cyclic" in refused(tmp_path / "a", model)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_stays(model, tmp_path):
    """Pipes, sockets, devices, folders, and links to them are refused by both doors."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as opened:
        opened.bind(f"{short}/socket")
        for place in (tmp_path / "pipe", tmp_path / "link", Path(short, "socket"), Path(os.devnull)):
            assert "is a device, a pipe or a socket" in refused(place, model)
    assert "is a folder" in refused(tmp_path, model)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="this system has no such device")
@pytest.mark.parametrize("place", ["/dev/stdout", "link"])
def test_standard_output_is_no_file(model, tmp_path, place):
    """Also where standard output is a plain file, that is not replaced under the shell that writes it."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    caught = tmp_path / "caught"
    command = [sys.executable, ROOT / "cli.py", model, "--skip=verify", "-o", tmp_path / place]
    with caught.open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert b"is an open file of a process" in done.stderr
    assert caught.read_bytes() == b""


def test_the_mode_stays(model, tmp_path):
    """A file that is overwritten keeps its mode, and its weights, which were inside, get it as well."""
    out = tmp_path / "out.onnx"
    for mode in (0o600, 0o640, 0o666):
        out.write_bytes(b"old")
        out.chmod(mode)
        rewrite(model, BESIDE, output=out, force=True)
        assert stat.S_IMODE(out.stat().st_mode) == mode
        assert stat.S_IMODE(out.with_name("out.onnx.data").stat().st_mode) == mode
        out.with_name("out.onnx.data").unlink()


def test_a_new_file_gets_the_usual_mode(model, tmp_path):
    """What was not there before is as readable as whatever else this process makes."""
    (tmp_path / "usual").touch()
    made = rewrite(model, BESIDE, output=tmp_path / "out.onnx").model
    modes = {path.stat().st_mode for path in (tmp_path / "usual", made, made.with_name("out.onnx.data"))}
    assert len(modes) == 1


def test_a_result_is_no_more_open_than_its_model(model, tmp_path):
    """What others may not read of a model, they may not read of its result, weights included."""
    for mode in (0o600, 0o400):
        model.chmod(mode)
        made = rewrite(model, BESIDE, output=tmp_path / f"{mode:o}.onnx").model
        for path in (made, made.with_name(f"{mode:o}.onnx.data")):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_root_leaves_a_file_to_its_owner(model):
    """In place, by root, a file stays that of whose it was."""
    os.chown(model, 12345, 23456)
    rewrite(model, BESIDE, in_place=True)
    for path in (model, model.with_name("m.onnx.data")):
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write to all files")
def test_a_write_protected_file_stays(model, tmp_path):
    """Who took away the right to write meant it."""
    (tmp_path / "out").write_bytes(b"old")
    (tmp_path / "out").chmod(0o444)
    assert "is write-protected" in refused(tmp_path / "out", model)


@pytest.mark.parametrize("name", ["n" * 250 + ".onnx", "é" * 125 + ".onnx", "n" * 255])
def test_the_longest_names(model, tmp_path, name):
    """A name of 255 bytes is written, with weights beside it under a name that fits and is whole."""
    out = tmp_path / name
    for _ in range(2):
        rewrite(model, BESIDE, output=out)
        (data,) = onnx.load(out, load_external_data=False).graph.initializer[0].external_data[:1]
        assert (tmp_path / data.value).is_file()
        assert len(names(tmp_path)) == 3


def test_a_name_that_is_too_long(model, tmp_path):
    """One byte more is one line."""
    path = tmp_path / ("n" * 256)
    with pytest.raises(OutputError, match="File name too long"):
        staging.write(b"new", path)
    with pytest.raises(OptionError, match="is longer than a path can be"):
        rewrite(model, output=path)


def test_a_planted_link_is_not_followed(model, tmp_path):
    """Whatever stands in the folder under names such as ours, nothing is written through it."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    plants = [".out.onnx.amp-rewrite-unfinished", ".out.onnx.1.amp-rewrite-unfinished"]
    for name in plants:
        (tmp_path / name).symlink_to(victim)
    rewrite(model, Options(check=False), output=tmp_path / "out.onnx")
    assert victim.read_bytes() == b"precious"
    assert all((tmp_path / name).is_symlink() for name in plants)


def test_eight_threads_write_one_output(model, tmp_path):
    """Each of many calls at once succeeds, and what stands in the end is whole."""
    out, errors = tmp_path / "out.onnx", []

    def run():
        try:
            for _ in range(6):
                rewrite(model, BESIDE, output=out)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    (weights,) = onnx.load(out).graph.initializer
    assert weights.data_type == onnx.TensorProto.FLOAT16
    assert not [name for name in names(tmp_path) if name.startswith(".")]


KILLED = """
import os, pathlib, sys
from amp_rewrite.files import staging

target, moment, replace = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path.replace

def dying(file, place):
    if moment == "after":
        replace(file, place)
    os._exit(0)

with staging.beside(target) as stage:
    (stage.files / target.name).write_bytes(b"model")
    pathlib.Path.replace = dying
    stage.publish()
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_a_killed_run_leaves_is_one_folder(model, tmp_path, moment):
    """Its name says what it is. The next run that writes the same file does not mind it, nor several of them,
    and a run on all models of the folder does not take it for one.
    """
    out = tmp_path / "out.onnx"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, out, moment], cwd=ROOT, check=True)
    left = [".out.onnx.1.amp-rewrite-unfinished", ".out.onnx.amp-rewrite-unfinished"]
    assert names(tmp_path) == sorted([*left, "m.onnx", *(["out.onnx"] if moment == "after" else [])])
    for _ in range(2):
        rewrite(model, BESIDE, output=out, force=True)
        assert onnx.load(out).graph.initializer
    assert len(names(tmp_path)) == 5
    assert sorted(many.models_in(tmp_path, None)) == [model, out]


def test_a_stage_that_is_in_use_stays(tmp_path):
    """Of two runs on one target the last wins, whole."""
    target = tmp_path / "out"
    with staging.beside(target) as first:
        (first.files / "out").write_bytes(b"first")
        staging.write(b"second", target)
        first.publish()
    assert target.read_bytes() == b"first"
    assert names(tmp_path) == ["out"]


def test_a_stranger_takes_the_name_meanwhile(model, tmp_path, monkeypatch):
    """Data never replaces a file that appeared after its name was chosen: an error, and both stand."""
    publish = staging.Stage.publish

    def late(stage, data, *source):
        (tmp_path / data[0]).write_bytes(b"stranger")
        publish(stage, data, *source)

    monkeypatch.setattr(staging.Stage, "publish", late)
    with pytest.raises(OutputError, match="File exists"):
        rewrite(model, BESIDE, output=tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_bytes() == b"stranger"
    assert names(tmp_path) == ["m.onnx", "out.onnx.data"]


def test_a_stop_after_the_model_keeps_its_data(model, tmp_path, monkeypatch):
    """An interrupt right behind the last step does not take the data from a model that stands already."""
    replace = Path.replace

    def interrupted(self, target):
        made = replace(self, target)
        if target == tmp_path / "out.onnx":
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rewrite(model, BESIDE, output=tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx").graph.initializer


def test_without_hard_links(model, tmp_path, monkeypatch):
    """A file system that has no hard links takes results with data all the same."""

    def none(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", none)
    made = rewrite(model, BESIDE, output=tmp_path / "out.onnx").model
    assert onnx.load(made).graph.initializer
    assert names(tmp_path) == ["m.onnx", "out.onnx", "out.onnx.data"]


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
