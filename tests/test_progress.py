"""What is shown while models run: the stage, and how many of its steps are done."""

import contextlib
import re
from pathlib import Path

import onnx
import pytest
from rich.progress import Progress

import amp_rewrite
from amp_rewrite import demo
from amp_rewrite.cli import progress
from amp_rewrite.process import stopwatch
from tests.commands import run

pytest.importorskip("onnxruntime")


class Recorded(progress.ShownProgress):
    """Keeps what it would show."""

    def __init__(self):
        super().__init__(Progress(disable=True))
        self.told, self.stage = [], ""

    def __call__(self, stage):
        """A stage begins."""
        self.stage = stage
        self.told.append(stage)

    def count(self, done, total):
        """Steps are done."""
        self.told.append((self.stage, done, total))


@pytest.fixture
def shown(monkeypatch):
    """What commands show, on a terminal or not."""
    found = Recorded()
    for module in ("verify_command", "rewrite_job", "restore_command"):
        name = f"amp_rewrite.cli.{module}.shown_progress"
        monkeypatch.setattr(name, lambda **_: contextlib.nullcontext(found))
    return found.told


@pytest.fixture
def model(tmp_path):
    """The demo network in a file."""
    onnx.save(demo.network(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


STEPS = [
    "verify: opening the original (1 of 3)",
    "verify: opening the result (2 of 3)",
    "verify: running both (3 of 3)",
]
"""The steps of a comparison, each of which takes long for a large model."""


COUNTS = [(STEPS[-1], done, 3) for done in range(3)]


def test_samples_are_counted(model, shown):
    """Those of a comparison, and those in which values are observed; a single one is not."""
    assert run("verify", model, model, "--samples", "3").exit_code == 0
    assert shown[0] == "verify"
    assert shown[1:4] == STEPS
    assert shown[4:7] == COUNTS
    del shown[:]
    assert run(model, "--samples", "3").exit_code == 0
    assert set(COUNTS) < set(shown)
    del shown[:]
    assert run("verify", model, model).exit_code == 0
    assert shown == ["verify", *STEPS, "blame"]


def test_a_search_tells_its_steps(model, shown):
    """Runs, the error, and how much is rounded; the main job tunes what failed as `tune` does."""
    run(model, "--tolerance", "error=1e-5")
    steps = [told for told in shown if isinstance(told, str) and told.startswith("tune: ")]
    assert steps
    assert " runs, error " in steps[-1]
    assert steps[-1].endswith(" values rounded")


def test_the_bar_follows_the_counts():
    """It has no total before, and none in the next stage."""
    display = Progress(disable=True)
    shown = progress.ShownProgress(display)
    (task,) = display.tasks
    assert task.total is None
    assert list(stopwatch.counted(shown, "abc", 3)) == ["a", "b", "c"]
    assert (task.completed, task.total) == (2, 3)
    shown("write")
    assert (task.description, task.completed, task.total) == ("writing the model", 0, None)
    shown("tune: 3 runs")
    assert task.description == "searching for a better plan: 3 runs"


def test_every_stage_has_words():
    """Each name that the package tells or times."""
    calls = r'(?:tell\([\w.]+, |\.stage\(|_stage\(|_attempted\(\s*)"(\w+)"'
    texts = (path.read_text() for path in Path(amp_rewrite.__file__).parent.rglob("*.py"))
    named = {name for text in texts for name in re.findall(calls, text)}
    assert len(named) > 20
    assert named <= set(progress.STAGES)


def test_bytes_of_files_beside_a_result_are_counted(model, shown):
    """Those of all files together, while they are written; nothing is counted where there are none."""
    run(model, "--external-data", "20kB", "--skip=verify", "-o", model.with_name("half.onnx"))
    files = list(model.parent.glob("half.onnx.*.data"))
    assert len(files) > 1
    beside = onnx.load(model.with_name("half.onnx"), load_external_data=False).graph.initializer
    sizes = [len(onnx.numpy_helper.to_array(tensor, str(model.parent)).tobytes()) for tensor in beside]
    outside = [size for size, tensor in zip(sizes, beside, strict=True) if tensor.external_data]
    steps = [told for told in shown if told[0] == "write"]
    assert len(steps) == len(outside)
    assert {total for *_, total in steps} == {sum(outside)}
    assert max(done for _, done, _ in steps) >= sum(outside) - max(outside)
    del shown[:]
    run(model, "--skip=verify")
    assert [told for told in shown if not isinstance(told, str)] == []
