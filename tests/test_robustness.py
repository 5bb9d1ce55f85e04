"""What can go wrong around a rewrite, through the command line: as a process of its own where the system
refuses or kills.

Each is one line and exit code 2, and nothing is left behind.
"""

import errno
import importlib.util
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import fuzz, text
from tests.commands import every, failure

ROOT = Path(__file__).parents[1]
MEBIBYTE = 1 << 20


def start(*arguments, **settings):
    """The exit code, standard output and standard error of the command line as a process."""
    command = [sys.executable, ROOT / "cli.py", *arguments]
    settings = {"stdout": subprocess.PIPE, **settings}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **settings)
    return done.returncode, done.stdout, done.stderr


def refusal(*arguments, **settings):
    """The one line on standard error of a run that must end with exit code 2."""
    code, out, errors = start(*arguments, **settings)
    assert (code, out, errors.count("\n")) == (2, "", 1), errors
    return errors


def content(folder):
    """The bytes of every file below a folder, by its name."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def build(path, *, external):
    """Writes a model of four products."""
    weights = {f"w{i}": np.full((512, 512), 0.1, np.float32) for i in range(4)}
    kinds = ", ".join(f"float[512,512] {name}" for name in weights)
    nodes = " ".join(f"h{i + 1} = MatMul(h{i}, w{i})" for i in range(4))
    proto = text.model(f"g (float[1,512] h0) => (float[1,512] h4) <{kinds}> {{ {nodes} }}", weights)
    onnx.save(proto, path, save_as_external_data=external, location="model.onnx.data")
    return path


@pytest.fixture
def model(tmp_path):
    """A model of four mebibytes of weights, alone in a folder."""
    return build(tmp_path / "model.onnx", external=False)


@pytest.fixture
def large(tmp_path):
    """The same with its weights in external data."""
    return build(tmp_path / "model.onnx", external=True)


def no_larger_than(size):
    """Has every file that a process writes end at so many bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


FLAGS = ("--skip=verify", "-q")


@pytest.mark.parametrize("kind", ["model", "large"])
def test_a_disk_that_is_full(kind, request):
    """Where the result does not fit, the old one stands, and nothing lies beside it."""
    source = request.getfixturevalue(kind)
    target = source.with_name("out.onnx")
    target.write_bytes(b"old")
    before = content(source.parent)
    said = refusal(source, "-o", target, "--force", *FLAGS, preexec_fn=lambda: no_larger_than(MEBIBYTE))
    assert os.strerror(errno.EFBIG) in said
    assert content(source.parent) == before


def test_a_folder_that_may_not_be_written(model):
    """A folder in which nobody can make a file is refused, whatever else may be done in it."""
    assert "cannot be written" in failure(model, "-o", "/proc/out.onnx", *FLAGS)


DOORS = (("-o",), ("--dry-run", "--save"), ("--dry-run", "--html"), ("coverage", "--json"))
DOORS += (("explain", "--show=all", "--json"), ("explain", "--show=advice", "--json"), ("explain", "--html"))


@pytest.mark.parametrize("flags", DOORS, ids=" ".join)
def test_a_damaged_model_at_every_door(tmp_path, flags):
    """A constant of fewer numbers than its shape says is named in one line, and nothing is written."""
    path = tmp_path / "model.onnx"
    proto = text.unchecked(
        "g (float[7] x) => (float[7] y) { c = Constant <value = float[1] {1}> () y = Mul (x, c) }"
    )
    proto.graph.node[0].attribute[0].t.dims[:] = [7]
    onnx.save(proto, path)
    command = () if flags[0].startswith("-") else flags[:1]
    place = f"plan={tmp_path / 'made'}" if flags[-1] == "--save" else tmp_path / "made"
    said = failure(*command, path, *flags[len(command) :], place)
    assert "the content of an unnamed tensor does not fit its type and shape" in said
    assert list(content(tmp_path)) == ["model.onnx"]


def nested(depth):
    """The bytes of a model with so many nodes in each other: a graph, its node, the attribute of that."""
    kinds = ((onnx.AttributeProto, "g"), (onnx.NodeProto, "attribute"), (onnx.GraphProto, "node"))
    data = b""
    for message, name in kinds * depth:
        data = _field(message, name, data)
    return _field(onnx.ModelProto, "graph", data)


def _field(message, name, data):
    """A field of a message, as protobuf writes it: its number and kind, its length, what it holds."""
    number = message.DESCRIPTOR.fields_by_name[name].number
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(number):
    return bytes([number & 127 | 128]) + _varint(number >> 7) if number > 127 else bytes([number])


@pytest.mark.parametrize("depth", every(2, [34, 100, 10_000]))
def test_a_model_that_is_nested_too_deeply(tmp_path, depth):
    """Protobuf stops at a hundred messages in each other, and so do we, in one line."""
    path = tmp_path / "model.onnx"
    path.write_bytes(nested(depth))
    assert "is not an ONNX model, or only a part of one" in refusal(path, *FLAGS)


@pytest.mark.slow
def test_a_file_beyond_two_gibibytes(tmp_path):
    """A string of 2 GB is more than protobuf holds: refused at once, before it is read."""
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.write(_field(onnx.ModelProto, "doc_string", b"")[:1] + _varint(1 << 31))
        file.truncate((1 << 31) + (1 << 20))
    said = refusal(
        path, *FLAGS, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
    )
    assert "is larger than the 2 GiB that an ONNX file can have" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_on_the_way(large, number):
    """Who asks a run to stop finds nothing that it left behind."""
    before = content(large.parent)
    command = [sys.executable, "-c", STOPPED.format(int(number)), large, *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode not in (0, 2)
    assert "Traceback" not in done.stderr
    assert content(large.parent) == before
    assert [path for path in large.parent.iterdir() if path.is_dir()] == []


STOPPED = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may ignore it
from amp_rewrite.model import external_data
from amp_rewrite.cli import main
external_data.warnings = lambda *_: os.kill(os.getpid(), {})
main()
"""
"""The command line, which gets a signal when all is written and nothing has its place yet."""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
@pytest.mark.parametrize(
    "command",
    every(
        4, [("{model}", "--skip=verify"), ("coverage", "{model}"), ("explain", "{model}"), ("--help",)], str
    ),
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_terminal_that_takes_nothing(model, command, unbuffered):
    """Where what is printed has no place, that is said once, whether it is buffered or not."""
    with Path("/dev/full").open("w") as full:
        code, _, errors = start(
            *(word.format(model=model) for word in command),
            stdout=full,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    told = f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
    assert (code, errors) == (2, f"amp-rewrite: the output cannot be written ({told})\n")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take no such name")
def test_a_name_that_is_no_utf8(model):
    """onnx's checker cannot be asked, and the result is there, and not called broken."""
    target = model.with_name(os.fsdecode(b"\xff.onnx"))
    latin = {**os.environ, "PYTHONIOENCODING": "latin1"}
    code, said, errors = start(model, "-o", target, "--skip=verify", env=latin)
    assert (code, errors) == (0, "")
    assert "it only accepts UTF-8 paths" in said
    assert target.exists()


# ---- A share of the trials of tests/fuzz.py

FEW = 40
"""What fits into a quarter of a minute on two cores."""


@pytest.mark.slow
def test_mutated_models():
    """Each is rewritten, or refused in one line; nothing is left behind, and nothing that runs is refused."""
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("onnxruntime says which models a runtime takes")
    assert [trial for trial in fuzz.run(range(FEW), jobs=1) if trial.fault] == []


@pytest.mark.slow
def test_a_trial_is_known_by_its_number():
    """The same number gives the same model, in whatever process."""
    first, again = (fuzz.Trials(seed=5) for _ in range(2))
    assert first.damaged(7) == again.damaged(7) != first.damaged(8)
