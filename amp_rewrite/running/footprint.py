"""The cost of a model besides run time: seconds to open a session, memory, nodes not on the device.

Each model is measured in its own process, so that no measurement includes what another model left behind.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from amp_rewrite.errors import ModelError
from amp_rewrite.process import child_process
from amp_rewrite.process.child_process import ChildProcess, CrashError
from amp_rewrite.running import memory, prepared_runs, profiles, run_arguments
from amp_rewrite.running.prepared_runs import TimedModel
from amp_rewrite.running.profiles import Profile
from amp_rewrite.running.sessions import Device, Feeds


@dataclass(frozen=True, slots=True)
class Footprint:
    """The cost of a model besides run time.

    `session_seconds` is the time to open a session. `memory` is the increase in memory, in bytes, by opening
    it and a few runs: of the peak of the process, on CUDA of what is in use on the device; None if
    unknown. `profile` is that of one run.
    """

    session_seconds: float
    memory: int | None
    profile: Profile


RUNS = 3
"""The number of runs after which onnxruntime's arenas have reached their size."""


def measure(model: TimedModel, device: Device, feeds: Feeds) -> Footprint:
    """The footprint of a model, from a child process. Raises ModelError and FeedError as a run does."""
    child = ChildProcess(_CODE)
    with tempfile.TemporaryDirectory() as folder:  # the child may be killed, and would not remove its own
        try:
            found = child.ask((model, device, feeds, Path(folder)))
        except CrashError as error:
            raise ModelError("the run crashes onnxruntime", where=model.path) from error
        finally:
            child.end()
    if isinstance(found, Exception):
        raise found
    return found


_CODE = "from amp_rewrite.running import footprint; footprint.serve()"


def serve() -> None:
    """In that process: answers with the footprint, or with the error that the caller raises."""
    child_process.serve(_answer)


def _answer(request: tuple[TimedModel, Device, Feeds, Path]) -> Footprint | Exception:
    try:
        return _measure(*request)
    except Exception as error:
        return error


def _measure(model: TimedModel, device: Device, feeds: Feeds, folder: Path) -> Footprint:
    run_arguments.device(device)  # so that initialising it counts for no model
    before, start = memory.in_use(device), time.perf_counter()
    session = prepared_runs.open_timed_session(model, device)
    seconds = time.perf_counter() - start
    run = prepared_runs.prepare(session, feeds, device, model.path)
    for _ in range(RUNS):
        run()
    after = memory.in_use(device)
    grown = None if before is None or after is None else after - before
    del session, run
    return Footprint(seconds, grown, _profile(model, device, feeds, folder))


def profile(model: TimedModel, device: Device, feeds: Feeds) -> Profile:
    """The profile of one run, in this process. Raises ModelError and FeedError as a run does."""
    with tempfile.TemporaryDirectory() as folder:
        return _profile(model, device, feeds, Path(folder))


def _profile(model: TimedModel, device: Device, feeds: Feeds, folder: Path) -> Profile:
    session = prepared_runs.open_timed_session(model, device, folder / "profile")
    prepared_runs.prepare(session, feeds, device, model.path)()
    return profiles.read(Path(session.end_profiling()))
