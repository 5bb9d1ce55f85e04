"""Archives of arrays: their sizes are checked against memory before any array is read."""

import contextlib
import io
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy

from amp_rewrite.errors import FeedError
from tests import test_feeds

pytest.importorskip("onnxruntime")
from amp_rewrite.running.inputs import feeds

ROOT = Path(__file__).parents[1]
FIXED = "g (float[2, 3] x) => (float[2, 3] y) { y = Relu (x) }"
OPEN = "g (float[batch, 3] x) => (float[batch, 3] y) { y = Relu (x) }"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def sample(path, source=FIXED):
    """The only sample at a path."""
    (found,) = test_feeds.given(path, source)
    return found


def refusal(path, source=FIXED):
    """The error message for an archive."""
    return test_feeds.refusal(path, source)


def header(shape, descr="<f4"):
    """The header of an array."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": descr})
    return file.getvalue()


@pytest.fixture
def archived(tmp_path):
    """A function that writes an archive of members and returns its path."""

    def save(**members):
        path = tmp_path / "x.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(f"{name}.npy", data)
        return path

    return save


@pytest.fixture
def inflated(monkeypatch):
    """The members whose arrays were read: none, if an archive is refused in time."""
    read = []
    whole = npy.read_array
    monkeypatch.setattr(npy, "read_array", lambda *given, **named: read.append(1) or whole(*given, **named))
    return read


def test_all_that_numpy_saves_is_read(tmp_path):
    """Compressed or not, in either memory order, empty, and in the wider type."""
    for save in (np.savez, np.savez_compressed):
        for x in (X, np.asfortranarray(X), X.astype(np.float64)):
            save(tmp_path / "x.npz", x=x)
            np.testing.assert_array_equal(sample(tmp_path / "x.npz")["x"], X)
    np.savez(tmp_path / "x.npz", x=X[:0])
    assert sample(tmp_path / "x.npz", OPEN)["x"].shape == (0, 3)


@pytest.mark.parametrize(
    ("members", "text", "said"),
    [
        ({"x": header((3, 2)) + X.tobytes()}, FIXED, "input 'x' is float32[2,3], but float32[3,2] was given"),
        ({"x": header((1 << 40, 4))}, OPEN, "cannot be read"),
        ({"x": header((2, 3), "|V1000000000")}, FIXED, "cannot be read"),
        ({"x": header((-1, 3))}, OPEN, "cannot be read"),
        ({"x": header((2, 3)) + X.tobytes()[:-4]}, FIXED, "cannot be read"),
        ({"x": header((2, 3)) + X.tobytes(), "z": b"\0" * 1000}, FIXED, "has no input 'z'; it has x"),
    ],
)
def test_a_member_that_does_not_fit(archived, members, text, said):
    """One of another name or shape is refused, and one with too few numbers, however many it claims."""
    assert said in refusal(archived(**members), text)


def test_open_dimensions_are_bounded_by_memory(tmp_path, inflated, monkeypatch):
    """Arrays that fit the model, but not into memory, are refused."""
    monkeypatch.setattr(feeds, "available", lambda: 1_000_000)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1_000_000, 3), np.float32))
    said = refusal(tmp_path / "x.npz", OPEN)
    assert said.endswith("would take 12 MB, and 1 MB of memory are free; give a smaller sample")
    assert not inflated


def test_memory_is_known_here():
    """At least a megabyte and at most a petabyte, or unknown."""
    found = feeds.available()
    assert found is None or 1e6 < found < 1e15


def test_the_least_memory_counts(tmp_path, monkeypatch):
    """A container's limit counts if there is one; a word in place of a number is no limit."""
    (tmp_path / "all").write_text("MemTotal: 9 kB\nMemAvailable:    4 kB\n")
    (tmp_path / "limit").write_text("2048\n")
    (tmp_path / "none").write_text("max\n")
    (_, system, unit), (_, group, one), _ = feeds.SOURCES
    monkeypatch.setattr(feeds, "SOURCES", [(tmp_path / "all", system, unit)])
    assert feeds.available() == 4096
    more = [(tmp_path / name, group, one) for name in ("limit", "none", "missing")]
    monkeypatch.setattr(feeds, "SOURCES", [*feeds.SOURCES, *more])
    assert feeds.available() == 2048


def test_an_encrypted_archive(archived):
    """It is recognised by its flag."""
    path = archived(x=header((2, 3)) + X.tobytes())
    data = bytearray(path.read_bytes())
    for start, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(start) + at] |= 1
    path.write_bytes(data)
    assert "save arrays of numbers with numpy.savez" in refusal(path)
    assert "encrypted" in refusal(path)


def test_damaged_archives(tmp_path):
    """Truncated anywhere, or with any byte changed: read unchanged, or one line; never a library's error."""
    np.savez_compressed(tmp_path / "good.npz", x=X)
    good, path, seed = (tmp_path / "good.npz").read_bytes(), tmp_path / "bad.npz", random.Random(0)
    damaged = [good[:end] for end in range(0, len(good), 7)]
    for _ in range(600):
        data = bytearray(good)
        for _ in range(seed.choice((1, 1, 3))):
            data[seed.randrange(len(data))] = seed.randrange(256)
        damaged.append(bytes(data))
    for data in damaged:
        path.write_bytes(data)
        with contextlib.suppress(FeedError):
            np.testing.assert_array_equal(sample(path)["x"], X)


@pytest.mark.parametrize(
    "head",
    [b"", b"\x93NUMPY\x09\x00", b"\x93NUMPY\x01\x00\xff\xff", header((2, 3)).replace(b"(2, 3)", b"((((((")],
)
def test_damaged_headers(archived, head):
    """An invalid header gives one line."""
    assert "cannot be read" in refusal(archived(x=head + X.tobytes()))


@pytest.mark.slow
def test_an_archive_that_inflates_to_a_huge_size(tmp_path):
    """A gigabyte compressed to a megabyte is refused if it does not fit into memory."""
    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(header((10_000_000_000, 3)))
        for _ in range(1_000):
            member.write(bytes(1 << 20))
    text = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from tests.test_npz_files import refusal, Path, OPEN
print(refusal(Path({str(path)!r}), OPEN))
"""
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "cannot be read" in done.stdout, done.stderr
