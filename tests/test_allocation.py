"""Room that is set aside on the disk."""

import ctypes
import io

import pytest

from amp_rewrite.model import allocation


@pytest.fixture(autouse=True)
def _asked_anew():
    """The system is asked in each test."""
    allocation._fallocate.cache_clear()
    yield
    allocation._fallocate.cache_clear()


def test_room_is_behind_what_is_written(tmp_path):
    """It begins where the next byte goes, and what was there stays."""
    with (tmp_path / "file").open("wb") as file:
        file.write(b"before")
        allocation.reserve(file, 1000)
        assert file.tell() == 6
    held = (tmp_path / "file").read_bytes()
    assert held[:6] == b"before"
    assert len(held) == (1006 if allocation._fallocate() else 6)
    assert not any(held[6:])


def test_a_file_in_memory_needs_no_room():
    """It has none on the disk."""
    file = io.BytesIO()
    allocation.reserve(file, 1000)
    assert file.getvalue() == b""


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_a_system_without_such_a_call(error, monkeypatch, tmp_path):
    """Nothing is set aside, and nothing is wrong."""

    def fails(*_):
        raise error

    monkeypatch.setattr(ctypes, "CDLL", fails)
    with (tmp_path / "file").open("wb") as file:
        allocation.reserve(file, 1000)
    assert (tmp_path / "file").read_bytes() == b""
