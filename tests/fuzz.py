"""Mutated models through the command line: python -m tests.fuzz [--count 10000] [--seed 0] [--jobs 2].

Each trial damages a valid model, rewrites it as a user would, and asks: was there one line and exit code 2,
or a result; is nothing left behind; did onnxruntime take the model that we refused, or refuse the result of
one that it took. A trial is known by its number alone: `--only NUMBER --keep FILE` repeats it and
writes the model, of which `AMP_REWRITE_TRACEBACK=1 amp-rewrite FILE` tells more.
"""

from __future__ import annotations

import argparse
import collections
import functools
import multiprocessing
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from random import Random

from click.testing import CliRunner

from amp_rewrite import demo
from amp_rewrite.cli import main as amp_rewrite
from tests import case_files, damage, random_models, text
from tests.conformance import cases as suite
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
    """Valid models by name: the backend suite's, odd and random ones, and the demo's."""
    cases = [(case.name, case.proto) for case in suite.of_nodes()]
    odd = [(name, text.unchecked(each)) for name, each in case_files.odd_models().items()]
    drawn = [(f"random {seed}", random_models.drawn(seed)) for seed in range(300)]
    larger = [("demo", demo.network())] * SHARE_OF_THE_DEMO
    made = [
        (name, proto.SerializeToString()) for name, proto in (*cases, *odd * SHARE_OF_ODD, *drawn, *larger)
    ]
    return [(name, data) for name, data in made if len(data) <= LARGEST]


SHARE_OF_ODD, SHARE_OF_THE_DEMO = 6, 300
"""How often each of these stands beside the 1,900 of the backend suite, which are of one node mostly."""


class Trials:
    """Runs trials in this process, with onnxruntime in a child of it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bases = bases()
        self.runtime = Runtime()

    def damaged(self, number: int) -> tuple[str, str, bytes]:
        """The model of a trial: the name of its base, what was done, and its bytes."""
        chance = Random(f"{self._seed}:{number}")
        name, data = chance.choice(self._bases)
        return name, *damage.mutate(data, chance)

    def run(self, number: int) -> Trial:
        """One trial, in a folder of its own."""
        base, damage, data = self.damaged(number)
        with tempfile.TemporaryDirectory(prefix="fuzz.") as folder:
            source, target = Path(folder, "model.onnx"), Path(folder, "out.onnx")
            source.write_bytes(data)
            done = _rewrite(source, target)
            outcome = OUTCOMES.get(done.exit_code, f"exit code {done.exit_code}")
            fault = _fault(done, source, target) or self._disagreement(done, source, target)
        return Trial(number, base, damage, outcome, fault)

    def _disagreement(self, done, source: Path, target: Path) -> str:
        """Where onnxruntime takes the model, it must be rewritten, and onnxruntime must take the result."""
        if self.runtime.load(str(source)).failure:
            return ""
        if done.exit_code:
            return f"onnxruntime takes the model, and we end with {done.exit_code}: {done.stderr.strip()}"
        failure = self.runtime.load(str(target)).failure
        return f"onnxruntime takes the model and not the result: {failure}" if failure else ""


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


@functools.cache
def _trials(seed: int) -> Trials:
    return Trials(seed)


def _limited(seed: int, number: int) -> Trial:
    """A trial in this process, which ends with it where that takes too long."""
    trials = _trials(seed)
    signal.alarm(PATIENCE)
    done = trials.run(number)
    signal.alarm(0)
    return done


def run(numbers: range, *, seed: int = 0, jobs: int = 2) -> Iterator[Trial]:
    """Runs trials in processes of their own; one that dies or hangs costs one trial."""
    local = threading.local()

    def ran(number: int) -> Trial:
        if not hasattr(local, "pool"):
            local.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            return local.pool.submit(_limited, seed, number).result()
        except BrokenProcessPool:
            del local.pool
            base, done, _ = _trials(seed).damaged(number)
            return Trial(number, base, done, "lost", f"the process died, or took more than {PATIENCE} s")

    with ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(ran, numbers)


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
        trials.runtime.close()
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
