"""The workers of an executor do what a command otherwise does itself, with the same results."""

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import onnx
import pytest

import amp_rewrite
from amp_rewrite.errors import (
    FeedError,
    ListError,
    MissingPackageError,
    ModelError,
    OptionError,
    WorkerError,
)
from amp_rewrite.process import executors
from tests.commands import run
from tests.test_calibration import CHAIN, feeds
from tests.test_tuning import offset
from tests.text import model

pytest.importorskip("onnxruntime")


@contextlib.contextmanager
def processes():
    """Two processes of this machine."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@contextlib.contextmanager
def dask():
    """A Dask cluster on this machine, as an executor."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client.get_executor(pure=False)


def end_worker():
    """Ends the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("where", [processes, dask])
def test_results_are_those_without_an_executor(where, tmp_path):
    """What is seen and tuned does not depend on who runs the samples, nor on the kind of the model."""
    chain, samples = model(CHAIN), [feeds(seed=seed, mask=1e5 * (seed == 19)) for seed in range(20)]
    onnx.save(chain, tmp_path / "chain.onnx")
    alone = amp_rewrite.observe(chain, samples, device="cpu")
    network, sample = offset()
    tuned = amp_rewrite.tune(network, [sample, sample], max_error=1e-3)
    counted = []
    with where() as executor:
        seen = [
            amp_rewrite.observe(
                given, iter(samples), device="cpu", executor=executor, on_sample=counted.append
            )
            for given in (chain, tmp_path / "chain.onnx")
        ]
        found = amp_rewrite.tune(network, [sample, sample], max_error=1e-3, executor=executor)
        with pytest.raises(FeedError, match=r"samples\[2\]"):
            amp_rewrite.observe(chain, [*samples[:2], {"x": np.zeros(3)}], device="cpu", executor=executor)
    assert counted == [8, 16, 20] * 2
    for each in seen:
        assert (each.model, each.samples) == (alone.model, alone.samples)
        assert {n: (e.low, e.high) for n, e in each.items()} == {n: (e.low, e.high) for n, e in alone.items()}
    assert (found.kept, found.runs, found.verdict.error) == (tuned.kept, tuned.runs, tuned.verdict.error)


def test_a_worker_that_ends_is_one_line():
    """A worker that was killed is a WorkerError, and what is raised in one arrives as it was."""
    with processes() as pool:
        with pytest.raises(WorkerError, match="BrokenProcessPool"):
            list(executors.results(pool, end_worker, [()]))
        with pytest.raises(WorkerError):
            list(executors.results(pool, end_worker, [()]))


@pytest.mark.parametrize(
    "error",
    [
        ModelError("bad", where="m.onnx", remedy="mend it"),
        ListError("bad", file="l.yaml", line=3, remedy="mend it"),
        MissingPackageError("dask", extra="dask", purpose="a cluster"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_the_way_between_processes(error):
    """A worker's error is printed as it would have been here."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("text", ["threads", "processes:2", "dask://", "dask://here", "dask:1:2"])
def test_other_names_are_refused(text):
    """One line that shows how it is written."""
    with pytest.raises(OptionError, match="dask://127"), executors.named(text):
        pass


def test_an_executor_is_of_the_right_type():
    """Not a name, which only the command line takes."""
    with pytest.raises(OptionError, match="Executor"):
        amp_rewrite.observe(model(CHAIN), feeds(), executor="processes:2")


def test_nobody_answers(monkeypatch):
    """A scheduler that is not there is one line, at once."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "CONNECTING", 0.5)
    with pytest.raises(OptionError, match=r"no Dask scheduler answers at 127\.0\.0\.1:1"):
        executors.named("dask://127.0.0.1:1").__enter__()


@pytest.mark.slow
def test_a_cluster_by_its_address_ends_well():
    """Work is done there, and what was not begun ends with the context."""
    with dask() as executor:
        address = executor._client.scheduler.address.removeprefix("tcp://")
        with executors.named(f"dask://{address}") as named:
            assert list(executors.results(named, sorted, [([2, 1],), ([4, 3],)])) == [[1, 2], [3, 4]]
            left = [named.submit(time.sleep, 5) for _ in range(9)]
        assert all(future.cancelled() for future in left)


@pytest.mark.slow
def test_the_command_line_takes_executors(tmp_path):
    """--executor of rewrite and tune; the saved observations are those without one."""
    onnx.save(model(CHAIN), tmp_path / "m.onnx")
    samples = tmp_path / "samples"
    samples.mkdir()
    for at in range(10):
        np.savez(samples / f"s{at}.npz", **feeds(seed=at))
    base = [tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--calibrate", samples, "-q"]
    tune = ["tune", tmp_path / "m.onnx", "-o", tmp_path / "t.onnx", "--data", samples / "s0.npz"]
    with dask() as executor:
        workers = ["--executor", executor._client.scheduler.address.replace("tcp", "dask")]
        for name, flags in (("one", []), ("two", workers)):
            assert run(*base, "--save", f"observed={tmp_path / name}.json", *flags).exit_code == 0
        assert run(*tune, *workers).exit_code == 0
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert [(k, v["low"], v["high"]) for k, v in one["values"].items()] == [
        (k, v["low"], v["high"]) for k, v in two["values"].items()
    ]
