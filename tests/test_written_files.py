"""The files that a command is to write are looked at before any work is done."""

import os
import stat

import pytest

from tests.test_cli import failure, model

__all__ = ["model"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--json and MODEL both name"),
        (("-o", "out.onnx", "--html", "report"), "--json and --html both name"),
    ],
)
def test_two_things_at_one_place_are_refused(model, monkeypatch, arguments, words):
    """A report over the model or over another report is bad usage, and nothing is written or lost."""
    monkeypatch.chdir(model.parent)
    before = model.read_bytes()
    place = "report" if arguments else "../" + model.parent.name + "/model.onnx"
    assert words in failure("model.onnx", *arguments, "--json", place)
    assert model.read_bytes() == before
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    "command",
    [
        ("rewrite", "--save-plan"),
        ("rewrite", "--html"),
        ("explain", "--json"),
        ("explain", "--html"),
        ("coverage", "--markdown"),
        ("coverage", "--junit"),
        ("bench", "--json"),
    ],
)
def test_no_command_writes_over_its_model(model, command):
    """Whatever the flag, the model stays as it was."""
    before = model.read_bytes()
    name, flag = command
    assert f"choose another place for {flag}" in failure(name, model, flag, model)
    assert model.read_bytes() == before


@pytest.mark.parametrize("flag", ["-o", "--json", "--html", "--save-plan"])
def test_a_missing_folder_is_said_before_the_work(model, flag):
    """A report that cannot be written is known before a result is."""
    assert "there is no folder" in failure(model, flag, model.parent / "missing" / "file")
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


def test_plots_go_to_a_folder(model):
    """A file in the place of the folder is said before the work."""
    assert "name a folder" in failure(model, "--plots", model)
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("flag", ["-o", "--json"])
def test_a_device_stays_what_it_is(model, flag):
    """Who may write to /dev must not lose /dev/null to a report: what is no file is refused."""
    pipe = model.with_name("pipe")
    os.mkfifo(pipe)
    assert "is a device, a pipe or a socket; name a file" in failure(model, flag, pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
