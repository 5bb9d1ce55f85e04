"""Mutated models through the command line: python -m tests.fuzz [--count 10000] [--seed 0] [--jobs 2].

Each trial damages a valid model, rewrites it as a user would, and asks: was there one line and exit code 2,
or a result; is nothing left behind; did onnxruntime take the model that we refused, or refuse the result of
one that it took. A trial is known by its number alone, so that `--only NUMBER` repeats it.
"""

from __future__ import annotations

import argparse
import collections
import functools
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random

from click.testing import CliRunner
from onnx.backend.test.case.node import collect_testcases

from amp_rewrite import demo
from amp_rewrite.cli import main as amp_rewrite
from amp_rewrite.errors import TRACEBACK
from tests import mutations, text
from tests.sessions import Runtime

LARGEST = 1 << 18
"""Bytes of a model that is damaged: what is found in a large one is found in a small one, in less time."""

PATIENCE = 60
"""Seconds after which a trial counts as one that never ends."""

OUTCOMES = {0: "rewritten", 1: "rewritten, verdict bad", 2: "refused"}


@dataclass(frozen=True)
class Trial:
    """What came of a damaged model: `outcome` in a word, and the `fault` that it showed, if any."""

    number: int
    base: str
    damage: str
    outcome: str
    fault: str = ""


@functools.cache
def bases() -> list[tuple[str, bytes]]:
    """Valid models by name: the backend suite's, ours with bodies and functions, and the demo's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose while they are made
        cases = [(case.name, case.model) for case in collect_testcases(None)]
    ours = [(f"ours_{i}", text.model(each)) for i, each in enumerate(TEXTS)]
    larger = [("demo", demo.network())] * SHARE_OF_THE_DEMO
    made = [(name, proto.SerializeToString()) for name, proto in (*cases, *ours * SHARE_OF_OURS, *larger)]
    return [(name, data) for name, data in made if len(data) <= LARGEST]


SHARE_OF_OURS, SHARE_OF_THE_DEMO = 100, 300
"""How often each of these stands beside the 1,900 of the backend suite, which are of one node mostly."""

TEXTS = (
    text.FUNCTIONS,
    """g (float[4,4] x, bool c) => (float[4,4] y) <float[4,4] w> {
        h = MatMul (x, w)
        y = If (c) <
            then_branch = t () => (float[4,4] p) <float[4,4] v> { p = MatMul (h, v) },
            else_branch = e () => (float[4,4] q) { q = Relu (h) }
        >
    }""",
    """g (float[4,4] x) => (float[4,4] y, float[2,4,4] z) <float[4,4] w, int64 n = {2}, bool c = {1}> {
        y, z = Loop (n, c, x) <
            body = b (int64 i, bool going, float[4,4] state) => (bool on, float[4,4] next, float[4,4] out) {
                on = Identity (going)
                next = MatMul (state, w)
                out = Softmax (next)
            }
        >
    }""",
    """g (float[3,4] x, float[1,4] s) => (float[1,4] y, float[3,4] z) <float[4,4] w> {
        y, z = Scan (s, x) <num_scan_inputs = 1,
            body = b (float[1,4] state, float[4] row) => (float[1,4] next, float[4] out) {
                sum = Add (state, row)
                next = MatMul (sum, w)
                out = Identity (row)
            }
        >
    }""",
    """g (float[4,4] x) => (float[4,4] y) <float[4,4] w, int64 i = {0}> {
        h = MatMul (x, w)
        s = SequenceConstruct (h, x)
        m = SequenceMap (s) <body = b (float[4,4] e) => (float[4,4] r) { r = MatMul (e, w) }>
        y = SequenceAt (m, i)
    }""",
    """g (float[1,4,8,8] x) => (float[1,4,8,8] y)
    <float[4,4,3,3] w, float[4] s, float[4] b, float[4] m, float[4] v, float lo = {-3.4e38}> {
        c = Conv (x, w) <pads = [1, 1, 1, 1]>
        n = BatchNormalization (c, s, b, m, v)
        r = Clip (n, lo)
        h = Cast (r) <to = 10>
        f = Cast (h) <to = 1>
        k = Constant <value_float = 1e-12> ()
        d = Add (f, k)
        y = Div (c, d)
    }""",
)


class Trials:
    """Runs trials in this process, with onnxruntime in a child of it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bases = bases()
        self._runtime = Runtime()

    def damaged(self, number: int) -> tuple[str, str, bytes]:
        """The model of a trial: the name of its base, what was done, and its bytes."""
        chance = Random(f"{self._seed}:{number}")
        name, data = chance.choice(self._bases)
        return name, *mutations.mutate(data, chance)

    def run(self, number: int) -> Trial:
        """One trial, in a folder of its own."""
        base, damage, data = self.damaged(number)
        with tempfile.TemporaryDirectory(prefix="fuzz.") as folder:
            source, target = Path(folder, "model.onnx"), Path(folder, "out.onnx")
            source.write_bytes(data)
            done = _rewrite(source, target)
            outcome = OUTCOMES.get(done.exit_code, f"exit code {done.exit_code}")
            fault = _fault(done, source, target) or self._disagreement(done.exit_code, source, target)
            if done.exception is not None and ("fault of" in fault or "raised" in fault):
                fault += f"\n{_traceback(source, target)}"
        return Trial(number, base, damage, outcome, fault)

    def _disagreement(self, code: int, source: Path, target: Path) -> str:
        """Where onnxruntime takes the model, it must be rewritten, and onnxruntime must take the result."""
        if self._runtime.load(str(source)).failure:
            return ""
        if code:
            return f"onnxruntime takes the model, and we end with {code}"
        failure = self._runtime.load(str(target)).failure
        return f"onnxruntime takes the model and not the result: {failure}" if failure else ""

    def close(self) -> None:
        """Ends the child."""
        self._runtime.close()


def _rewrite(source: Path, target: Path):
    return CliRunner().invoke(amp_rewrite, [str(source), "-o", str(target), "--skip=verify"])


def _fault(done, source: Path, target: Path) -> str:
    """What is wrong with the way a run ended, whatever the model."""
    found = {path.name for path in source.parent.iterdir()} - {source.name}
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"raised {done.exception!r}"
    if "fault of amp-rewrite" in done.stderr:
        return done.stderr.strip()
    if done.exit_code == 2:
        lines = done.stderr.strip().splitlines()
        return f"left behind: {found}" if found else "" if len(lines) == 1 else f"{len(lines)} lines"
    if not target.exists() or not found <= {target.name, f"{target.name}.data"}:
        return f"there are {found or 'no files'}"
    return ""


def _traceback(source: Path, target: Path) -> str:
    """The traceback of a run that ended in a fault, made again."""
    os.environ[TRACEBACK] = "1"
    try:
        again = _rewrite(source, target)
    finally:
        del os.environ[TRACEBACK]
    return "".join(traceback.format_exception(again.exception)[-12:])


def _serve(pipe: Connection, seed: int) -> None:
    trials = Trials(seed)
    while (number := pipe.recv()) is not None:
        pipe.send(trials.run(number))
    trials.close()


@dataclass
class _Worker:
    """A process that runs trials; one that dies or hangs costs one trial."""

    seed: int
    process: multiprocessing.Process | None = None
    pipe: Connection | None = None
    number: int = -1
    since: float = 0.0

    def give(self, number: int) -> None:
        if self.process is None:
            self.pipe, other = multiprocessing.Pipe()
            self.process = multiprocessing.Process(target=_serve, args=(other, self.seed))
            self.process.start()
            other.close()
        self.pipe.send(number)
        self.number, self.since = number, time.monotonic()

    def take(self) -> Trial:
        """The trial that it ran, or what became of it."""
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            return self._lost(f"the process died with exit code {self.process.exitcode}")

    def stop_if_late(self) -> Trial | None:
        """A trial that never ends, where it is one."""
        if time.monotonic() - self.since < PATIENCE:
            return None
        self.process.kill()
        return self._lost(f"no end after {PATIENCE} s")

    def _lost(self, fault: str) -> Trial:
        self.process, _ = None, self.pipe.close()
        base, damage, _ = Trials(self.seed).damaged(self.number)
        return Trial(self.number, base, damage, "lost", fault)

    def end(self) -> None:
        if self.process is not None:
            self.pipe.send(None)
            self.process.join()


def run(numbers: range, *, seed: int = 0, jobs: int = 2) -> Iterator[Trial]:
    """Runs trials in processes of their own, and gives each as it ends."""
    multiprocessing.set_start_method("spawn", force=True)
    workers, todo = [_Worker(seed) for _ in range(jobs)], iter(numbers)
    busy = [worker for worker, number in zip(workers, todo, strict=False) if worker.give(number) is None]
    while busy:
        ready = wait([worker.pipe for worker in busy], timeout=1)
        for worker in list(busy):
            trial = worker.take() if worker.pipe in ready else worker.stop_if_late()
            if trial is None:
                continue
            yield trial
            number = next(todo, None)
            busy.remove(worker) if number is None else worker.give(number)
    for worker in workers:
        worker.end()


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)  # noqa: T201 - a command prints what it found


def main() -> int:
    """Runs the trials, prints every fault and a table of outcomes; 1 when there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="one trial, in this process")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="with --only: write the model")
    asked = parser.parse_args()
    if asked.only is not None:
        trials = Trials(asked.seed)
        if asked.keep:
            asked.keep.write_bytes(trials.damaged(asked.only)[2])
        found = [trials.run(asked.only)]
        trials.close()
    else:
        found = run(range(asked.first, asked.first + asked.count), seed=asked.seed, jobs=asked.jobs)
    outcomes, faults = collections.Counter(), 0
    for trial in found:
        outcomes[trial.outcome] += 1
        if trial.fault:
            faults += 1
            say(f"{trial.number} {trial.base} [{trial.damage}]: {trial.fault}")
    say(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()) + f"; {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
