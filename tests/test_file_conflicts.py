"""The files that a command is to write are looked at before any work is done."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite import Observed, rewrite
from amp_rewrite.demo import train_step
from amp_rewrite.errors import OptionError
from amp_rewrite.training import insert_loss_scale, rewrite_train_step
from tests import text
from tests.commands import failure, run
from tests.test_cli import model

__all__ = ["model"]


@pytest.fixture
def stored(tmp_path):
    """The path of a model with its weights in `ext.onnx.data`."""
    path = tmp_path / "ext.onnx"
    proto = text.model("g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { y = MatMul(x, w) }")
    onnx.save(proto, path, save_as_external_data=True, location="ext.onnx.data")
    return path


def content(folder):
    """The bytes of every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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


def to(flags, path):
    """Flags that write to a path; a kind of report is part of the last word."""
    flag, *kind = flags[-2:] if flags[0] == "--report" else flags[-1:]
    return [*flags[: -1 - len(kind)], flag, "=".join([*kind, str(path)])]


@pytest.mark.parametrize(
    "command",
    [
        ("rewrite", "--save-plan"),
        ("rewrite", "--html"),
        ("explain", "--json"),
        ("explain", "--html"),
        ("coverage", "--report", "markdown"),
        ("coverage", "--report", "junit"),
        ("bench", "--json"),
    ],
)
def test_no_command_writes_over_its_model(model, command):
    """Whatever the flag, the model stays as it was."""
    before = model.read_bytes()
    name, *flags = command
    said = failure(name, model, *to(flags, model))
    assert f"choose another place for {' '.join(flags)}" in said
    assert model.read_bytes() == before


@pytest.mark.parametrize("flag", ["-o", "--json", "--html", "--save-plan"])
def test_a_file_in_place_of_a_folder_is_said_before_the_work(model, flag):
    """A report that cannot be written is known before a result is."""
    assert "there is no folder" in failure(model, flag, model / "missing" / "file")
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("flag", ["-o", "--json", "--html", "--save-plan"])
def test_a_missing_folder_is_made(model, flag):
    """With its parents, once there is something in it: a run that fails leaves none of them."""
    place = model.parent / "new" / "deep" / "file"
    failure(model, flag, place, "--keep-io", "absent", "--skip=verify")
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]
    assert run(model, flag, place, "--skip=verify").exit_code == 0
    assert place.is_file()
    assert not list(place.parent.glob(".amp*"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("flag", ["-o", "--json"])
def test_a_device_stays_what_it_is(model, flag):
    """Who may write to /dev must not lose /dev/null to a report: what is no file is refused."""
    pipe = model.with_name("pipe")
    os.mkfifo(pipe)
    assert "is a device, a pipe or a socket; name a file" in failure(model, flag, pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


WRITERS = [
    ("rewrite", "-o"),
    ("rewrite", "--json"),
    ("rewrite", "--html"),
    ("rewrite", "--save-plan"),
    ("explain", "--json"),
    ("explain", "--html"),
    ("coverage", "--json"),
    ("coverage", "--report", "markdown"),
    ("coverage", "--report", "junit"),
    ("coverage", "--report", "baseline"),
    ("bench", "--json"),
]


@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
def test_no_command_writes_over_weights(stored, command):
    """The data files of a model are as safe as the model, whatever the flag."""
    before = content(stored.parent)
    name, *flags = command
    assert "the weights of MODEL" in failure(name, stored, *to(flags, stored.with_name("ext.onnx.data")))
    assert content(stored.parent) == before


@pytest.mark.parametrize("spelling", ["relative", "link", "hard link", "folder link"])
def test_no_spelling_of_a_name_helps(stored, monkeypatch, spelling):
    """A file is the same file by whatever path it is reached."""
    data, folder = stored.with_name("ext.onnx.data"), stored.parent
    places = {
        "relative": f"../{folder.name}/./ext.onnx.data",
        "link": folder / "link",
        "hard link": folder / "hard",
        "folder link": folder / "here" / "ext.onnx.data",
    }
    (folder / "link").symlink_to(data)
    os.link(data, folder / "hard")
    (folder / "here").symlink_to(".")
    monkeypatch.chdir(folder)
    before = data.read_bytes()
    for flag in ("-o", "--json", "--save-plan"):
        assert "choose another place" in failure(stored, flag, places[spelling])
    assert data.read_bytes() == before


def test_no_other_input_is_written_over(stored, monkeypatch):
    """Plans, lists and what they extend, rules and their baseline, and inputs are read, and not written."""
    folder = stored.parent
    monkeypatch.chdir(folder)
    (folder / "list.yaml").write_text("extends: base.yaml\n")
    (folder / "base.yaml").write_text("allow: {Relu: fast}\n")
    (folder / "rules.yaml").write_text("baseline: baseline.json\n")
    (folder / "inputs").mkdir()
    assert run(stored, "--dry-run", "--save-plan", "plan.json").exit_code == 0
    assert run("coverage", stored, "--report", "baseline=baseline.json").exit_code == 0
    (folder / "inputs" / "a.npz").write_bytes(b"numbers")
    before = content(folder)
    for read, written in [
        (("--list", "list.yaml"), "list.yaml"),
        (("--list", "list.yaml"), "base.yaml"),
        (("--plan", "plan.json"), "plan.json"),
        (("--data", "inputs"), "inputs/a.npz"),
        (("--data", "inputs/a.npz"), "inputs/a.npz"),
    ]:
        said = failure(stored, *read, "--json", written)
        assert f"--json and {read[0]} both name {written}" in said
    for read, written in [("rules.yaml", "rules.yaml"), ("rules.yaml", "baseline.json")]:
        said = failure("coverage", stored, "--rules", read, "--report", f"junit={written}")
        assert f"--report junit and --rules both name {written}" in said
    assert "--report baseline and MODEL" in failure("coverage", stored, "--report", f"baseline={stored}")
    assert content(folder) == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--json", "model_fp16.onnx"), "--json and the result both name"),
        (("--to", "bfloat16", "--html", "model_bf16.onnx"), "--html and the result both name"),
        (("-o", "z.onnx", "--json", "z.onnx.data"), "--json and the weights of --output both name"),
        (("-o", "z.onnx", "--json", "Z.ONNX.1.DATA"), "the weights of --output both name"),
        (("-o", "z.onnx", "--json", "z.onnx.00001-of-00002.data"), "the weights of --output both name"),
        (("--save-plan", "model_fp16.onnx.data"), "--save-plan and the weights of the result both name"),
        (("-o", "z.onnx", "--json", "Z.onnx"), "--output and --json both name"),
    ],
)
def test_what_is_written_differs(model, monkeypatch, flags, words):
    """Default names and data files are planned with the rest, before anything is written."""
    monkeypatch.chdir(model.parent)
    assert words in failure(model, *flags, "--external-data", "always")
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


def test_weights_of_the_old_result_are_no_place_for_a_report(stored):
    """What the result that is replaced refers to is not taken for a report, and then removed."""
    out = stored.with_name("out.onnx")
    assert run(stored, "-o", out, "--skip=verify").exit_code == 0
    said = failure(stored, "-o", out, "--json", out.with_name("out.onnx.data"), "--skip=verify")
    assert "--json and the weights of --output" in said
    assert onnx.load(out).graph.initializer


def test_the_library_does_not_write_over_weights(stored):
    """From Python, too, a result does not take the place of the data that it is made from."""
    before = content(stored.parent)
    with pytest.raises(OptionError, match="holds weights of the input"):
        rewrite(stored, output=stored.with_name("ext.onnx.data"), force=True)
    assert content(stored.parent) == before


OTHER = "g (float[32,32] x) => (float[32,32] y) <float[32,32] w> { a = MatMul(x, w)  y = Relu(a) }"
FOREIGN = [
    ("rewrite", "-o", "other.onnx"),
    ("rewrite", "-o", "weights.bin"),
    ("rewrite", "--json", "other.onnx"),
    ("rewrite", "--html", "ours.onnx"),
    ("rewrite", "--save-plan", "weights.bin"),
    ("rewrite", "--save-observed", "weights.bin"),
    ("tune", "-o", "other.onnx"),
    ("restore", "-o", "other.onnx"),
    ("restore", "-o", "link.bin"),
    ("explain", "--json", "weights.bin"),
    ("coverage", "--report", "markdown=other.onnx"),
    ("coverage", "--report", "junit=weights.bin"),
    ("bench", "--json", "other.onnx"),
    ("certify", "--json", "other.onnx"),
]


OF_ANOTHER_KIND = [
    ("rewrite", "-o", b"notes", "is not a model"),
    ("rewrite", "-o", b"PK\x03\x04\xff", "is not a model"),
    ("restore", "-o", b"notes", "is not a model"),
    ("rewrite", "--json", b"PK\x03\x04\xff", "is not a report"),
    ("rewrite", "--json", b"notes", "is not a report"),
    ("rewrite", "--json", b"{\x00\x00\x00", "is not a report"),
    ("rewrite", "--json", b'{"an earlier": "report"}', ""),
    ("rewrite", "--html", b"<!doctype html>", ""),
    ("rewrite", "-o", b"", ""),
]


@pytest.mark.parametrize(("name", "flag", "stands", "problem"), OF_ANOTHER_KIND)
def test_no_file_of_another_kind_is_replaced(model, name, flag, stands, problem):
    """Notes and samples stay, but for --force; a report takes the place of a report."""
    place = model.with_name("there")
    place.write_bytes(stands)
    command = (name, model, "--skip=verify", flag, place)
    if problem:
        assert f"there {problem}; choose another place" in failure(*command)
        assert place.read_bytes() == stands
    assert run(*command, "--force").exit_code == 0
    assert place.read_bytes() != stands


@pytest.fixture
def foreign(stored, monkeypatch):
    """A folder with a model, another one with its weights in weights.bin, a result of ours, and a link."""
    monkeypatch.chdir(stored.parent)
    onnx.save(text.model(OTHER), "other.onnx", save_as_external_data=True, location="weights.bin")
    (stored.parent / "link.bin").symlink_to("weights.bin")
    assert run("ext.onnx", "-o", "ours.onnx", "--skip=verify").exit_code == 0
    return stored.parent


@pytest.mark.parametrize("command", FOREIGN, ids=" ".join)
def test_no_model_of_somebody_is_replaced(foreign, command):
    """A named output that is a model, or weights of one, which no such command wrote, is refused."""
    name, flag, place = command
    before = content(foreign)
    models = ["ext.onnx", "ours.onnx"] if name == "certify" else ["ext.onnx"]
    more = ["--calibrate", "none"] if flag == "--save-observed" else []
    said = failure(name, *models, flag, place, *more)
    report, _, path = place.rpartition("=")
    by, place = {"-o": "--output"}.get(flag, f"{flag} {report}".rstrip()), path
    assert said.endswith(f"; choose another place for {by}, or replace it with --force")
    is_result, is_model = flag == "-o", place.endswith(".onnx")
    other = "is a model that amp-rewrite did not write" if is_model else "is not a model"
    assert f"{place} {other if is_result else 'is not a report'}" in said
    assert content(foreign) == before


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("command", ["rewrite", "tune", "restore"])
def test_a_model_at_the_default_path_stays(command):
    """What nobody named is as safe; a result of the same model, and one of ours, is replaced as before."""
    place = "ext_fp16.onnx" if command != "restore" else "ext_fp32.onnx"
    onnx.save(text.model(OTHER), place)
    before = Path(place).read_bytes()
    said = failure(command, "ext.onnx")
    assert said.endswith("choose another place with -o, or replace it with --force")
    assert f"{place} is a model that amp-rewrite did not write" in said
    assert Path(place).read_bytes() == before
    if command == "rewrite":
        assert run("ext.onnx", "--to", "bfloat16", "--skip=verify").exit_code == 0
        assert run("ext.onnx", "--force", "--skip=verify", "--skip=metadata").exit_code == 0
        assert run("ext.onnx", "--skip=verify").exit_code == 0


@pytest.mark.usefixtures("foreign")
def test_what_was_made_before_is_replaced():
    """An earlier result of the same command, of another model, or without metadata; and any report."""
    again = [
        ("ext.onnx", "-o", "a.onnx", "--skip=verify", "--json", "a.json", "--html", "a.html"),
        ("ext.onnx", "-o", "a.onnx", "--skip=verify", "--save-plan", "a.json", "--skip=metadata"),
        ("ext.onnx", "-o", "a.onnx", "--skip=verify", "--skip=metadata", "--to", "bfloat16"),
        ("ext.onnx", "-o", "a.onnx", "--skip=verify"),
        ("other.onnx", "-o", "a.onnx", "--skip=verify", "--external-data", "always"),
        ("restore", "ours.onnx", "-o", "b.onnx", "--skip=verify"),
        ("restore", "a.onnx", "-o", "b.onnx", "--skip=verify"),
        ("tune", "ext.onnx", "-o", "a.onnx", "--tolerance", "error=1", "--json", "a.json"),
        ("coverage", "a.onnx", "--report", "markdown=a.md"),
        ("coverage", "b.onnx", "--report", "markdown=a.md"),
    ]
    for command in again:
        done = run(*command)
        assert done.exit_code == 0, (command, done.output)


UNCHANGED = "g (float[4] x, float[4] w) => (float[4] y) { y = Pow(x, w) }"
CHANGED = "g (float[4] x, float[4] w) => (float[4] y) { h = Pow(x, w)  y = Exp(h) }"
AGAIN = [
    ("rewrite", "m.onnx", "-o", "out.onnx"),
    ("rewrite", "m.onnx", "out.onnx"),
    ("rewrite", "m.onnx", "-o", "results/"),
    ("rewrite", "m.onnx", "-o", "out.onnx", "--skip=metadata"),
    ("rewrite", "m.onnx", "-o", "out.onnx", "--external-data", "always"),
    ("tune", "m.onnx", "-o", "out.onnx", "--tolerance", "error=1"),
    ("restore", "m.onnx", "-o", "out.onnx"),
]


@pytest.mark.parametrize("command", AGAIN, ids=" ".join)
def test_a_command_may_be_run_again_after_its_model_has_changed(tmp_path, monkeypatch, command):
    """Also where nothing becomes half: a copy says in its metadata that amp-rewrite wrote it."""
    monkeypatch.chdir(tmp_path)
    for graph in (UNCHANGED, UNCHANGED, CHANGED, OTHER, CHANGED):
        onnx.save(text.model(graph), "m.onnx")
        done = run(*command)
        assert done.exit_code in (0, 1), done.output
    (made,) = (path for path in tmp_path.rglob("*.onnx") if path != tmp_path / "m.onnx")
    assert len(onnx.load(made).graph.node) == 2


def test_a_copy_in_place_is_the_model_itself(tmp_path):
    """Where nothing becomes half, the user's own file gets no mark of ours."""
    model = tmp_path / "m.onnx"
    onnx.save(text.model(UNCHANGED), model)
    before = model.read_bytes()
    assert run(model, "--in-place").exit_code == 0
    assert model.read_bytes() == before


WRITERS_IN_PYTHON = {
    "rewrite": lambda model, place, **force: rewrite(model, output=place, **force),
    "restore": lambda model, place, **force: amp_rewrite.restore(model, output=place, **force),
    "train": lambda model, place, **force: rewrite_train_step(model, output=place, **force),
    "insert": lambda model, place, **force: insert_loss_scale(model, output=place, **force),
    "plan": lambda model, place, **force: amp_rewrite.analyze(model).save_plan(place, **force),
    "observed": lambda _, place, **force: Observed("of a model", 1, {}).save(place, **force),
}


@pytest.mark.parametrize("writer", WRITERS_IN_PYTHON)
def test_no_function_replaces_what_amp_rewrite_did_not_write(tmp_path, writer):
    """Notes, samples and models of others stay, but with force=True; what the function wrote is replaced."""
    model, write = tmp_path / "step.onnx", WRITERS_IN_PYTHON[writer]
    onnx.save(train_step(), model)
    np.savez(tmp_path / "samples.npz", x=np.ones(3))
    (tmp_path / "notes.txt").write_text("notes")
    onnx.save(text.model(OTHER), tmp_path / "net.onnx")
    before = content(tmp_path)
    for name in ("notes.txt", "samples.npz", "net.onnx"):
        with pytest.raises(OptionError, match=r"choose another place, or replace it with `force=True`"):
            write(model, tmp_path / name)
    assert content(tmp_path) == before
    for name in ("notes.txt", "samples.npz", "net.onnx", "new"):
        write(model, tmp_path / name, force=name != "new")
        write(model, tmp_path / name)
        assert content(tmp_path)[tmp_path / name] != before.get(tmp_path / name)


def test_a_model_at_the_default_path_stays_for_python_as_well(stored):
    """What nobody named is as safe."""
    place = stored.with_name("ext_fp16.onnx")
    onnx.save(text.model(OTHER), place)
    with pytest.raises(OptionError, match="is a model that amp-rewrite did not write"):
        rewrite(stored)
    assert rewrite(stored, force=True).model == place
    assert rewrite(stored).model == place


def test_what_is_forced_is_replaced(foreign):
    """--force is for who means it; what reads the input is refused all the same."""
    assert run("ext.onnx", "-o", "other.onnx", "--skip=verify", "--force").exit_code == 0
    assert (foreign / "weights.bin").exists()
    assert "--json and MODEL" in failure("coverage", "ext.onnx", "--json", "ext.onnx", "--force")
    assert run("explain", "ours.onnx", "--json", "other.onnx", "--force").exit_code == 0
    assert json.loads((foreign / "other.onnx").read_text())["model"] == "ours.onnx"


def test_a_baseline_is_updated(model):
    """What is to be written anew is no clash with itself."""
    baseline = model.with_name("baseline.json")
    for _ in range(2):
        assert run("coverage", model, "--report", f"baseline={baseline}").exit_code == 0
    assert json.loads(baseline.read_text())["nodes"]


def test_the_demo_leaves_another_model_alone(tmp_path):
    """A model of the user's own that is called as the demo's is stays."""
    model = tmp_path / "demo.onnx"
    onnx.save(text.model("g (float[4] x) => (float[4] y) { y = Relu(x) }"), model)
    before = content(tmp_path)
    assert "is not the demo's own file" in failure("demo", "-o", tmp_path)
    assert content(tmp_path) == before
