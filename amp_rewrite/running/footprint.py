"""What a model takes beside time: seconds to open, memory, nodes on the wrong device.

Each model is measured in a process of its own, so that nobody pays for what another left behind.
"""

from __future__ import annotations

import re
import signal
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from amp_rewrite.errors import ModelError
from amp_rewrite.process import interruptible
from amp_rewrite.running import devices, profiles, runners, sessions
from amp_rewrite.running.profiles import Profile
from amp_rewrite.running.runners import Subject
from amp_rewrite.running.sessions import Device, Feeds


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model takes beside time.

    `session_seconds` is the time to open a session. `memory` is by how many bytes opening it and a few runs
    raise the memory in use: the peak of the process on the CPU, that of the device on CUDA; None where it
    cannot be read. `profile` is that of one run.
    """

    session_seconds: float
    memory: int | None
    profile: Profile


RUNS = 3
"""After so many runs onnxruntime's arenas have grown to what they need."""


def take(subject: Subject, device: Device, feeds: Feeds) -> Footprint:
    """The footprint of a model, from a child. Raises ModelError and FeedError as a run does."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:  # the child may be killed, and would leave its own
        arguments = (theirs, subject, device, feeds, Path(folder))
        child = context.Process(target=_send, args=arguments, daemon=True)
        child.start()
        theirs.close()
        try:
            found = interruptible.call(ours.recv, child.kill)
        except EOFError as error:
            raise ModelError("the run crashes onnxruntime", where=subject.path) from error
        finally:
            child.kill()
            child.join()
    if isinstance(found, Exception):
        raise found
    return found


def _send(
    pipe: Connection[Footprint | Exception, None],
    subject: Subject,
    device: Device,
    feeds: Feeds,
    folder: Path,
) -> None:
    """What the child does; who interrupts a whole group of processes means the one that waits for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(_take(subject, device, feeds, folder))
    except Exception as error:  # it is raised by the one that waits
        pipe.send(error)


def _take(subject: Subject, device: Device, feeds: Feeds, folder: Path) -> Footprint:
    if device is Device.CUDA:
        sessions.best_device()  # the first session pays for CUDA itself, and this one is nobody's
    before, start = memory_in_use(device), time.perf_counter()
    session = runners.open_subject(subject, device)
    seconds = time.perf_counter() - start
    run = runners.runner(session, feeds, device, subject.path)
    for _ in range(RUNS):
        run()
    after = memory_in_use(device)
    grown = None if before is None or after is None else after - before
    del session, run
    return Footprint(seconds, grown, _profile(subject, device, feeds, folder))


def profile(subject: Subject, device: Device, feeds: Feeds) -> Profile:
    """What one run of a model executes, in this process. Raises ModelError and FeedError as a run does."""
    with tempfile.TemporaryDirectory() as folder:
        return _profile(subject, device, feeds, Path(folder))


def _profile(subject: Subject, device: Device, feeds: Feeds, folder: Path) -> Profile:
    session = runners.open_subject(subject, device, folder / "profile")
    runners.runner(session, feeds, device, subject.path)()
    return profiles.read(Path(session.end_profiling()))


def memory_in_use(device: Device) -> int | None:
    """The peak of this process in bytes (Linux), or what is in use on the CUDA device (with NVML)."""
    return _device_memory() if device is Device.CUDA else _process_peak(_STATUS)


_STATUS = Path("/proc/self/status")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
"""The high-water mark of this program. What getrusage gives includes the parent's, from before the exec."""


def _process_peak(status: Path) -> int | None:
    try:
        found = _PEAK.search(status.read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _device_memory() -> int | None:
    """Bytes in use on the first visible device, by whomever; None without the package nvidia-ml-py."""
    return devices.ask(lambda nvml, handle: int(nvml.nvmlDeviceGetMemoryInfo(handle).used))
