"""Networks on CUDA: float32, float32 with TF32, amp-rewrite and other tools; speed, error, Casts.

    python benchmarks/gpu.py [--seconds 10] [--peers-venv VENVS] [--json FILE] [--kernels FILE]
    python benchmarks/gpu.py --small --provider cpu     # without CUDA: does the script work?

docs/measurements.md describes the table. Runs of all models of a network are interleaved in this process;
each conversion has a separate process.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import kernels
import networks
import numpy as np
import onnx
import peers
from networks import Network
from peers import Converted

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.placement import placement
from amp_rewrite.placement.placement import Profile
from amp_rewrite.running import latency, metrics, sessions
from amp_rewrite.running.emulation import emulated
from amp_rewrite.running.latency import Round, TimedModel
from amp_rewrite.running.sessions import Device

MINUTES = 6.5
"""No network starts after this time: everything should end within eight minutes."""
CONVERSION = 60.0
"""The time limit of a conversion, in seconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model of one network.

    `p50` is in milliseconds; `faster`, `faster_tf32` and `faster_half` are the speedups over float32 without
    TF32, with TF32, and over everything in half. `error` is the relative L2 error of the worst output against
    float32 without TF32, `lost` counts the values that are finite only there. `emulation` is the relative L2
    distance of the outputs on CUDA from those of the emulation on the CPU.
    """

    network: str
    model: str
    p50: float | None = None
    faster: float | None = None
    faster_tf32: float | None = None
    faster_half: float | None = None
    error: float | None = None
    lost: int | None = None
    emulation: float | None = None
    casts: int | None = None
    on_cpu: int | None = None
    converted_in: float | None = None
    problem: str = ""


FLOAT, TF32 = "float32", "float32, TF32"


@dataclass(frozen=True, slots=True)
class Machine:
    """The device, and the time limits."""

    device: Device
    seconds: float
    deadline: float
    venvs: Path | None

    def left(self) -> float:
        """Seconds until everything must end."""
        return self.deadline - time.monotonic()


def measure(network: Network, machine: Machine, folder: Path) -> list[Row]:
    """All models of a network: converted, compared with float32, and timed in interleaved runs."""
    source = folder / "float32.onnx"
    onnx.save(network.model, source)
    made = [peers.convert(peer, source, machine.venvs, CONVERSION) for peer in peers.PEERS]
    subjects = [TimedModel(FLOAT, source)]
    subjects += [TimedModel(TF32, source, tf32=True)] if machine.device is Device.CUDA else []
    wanted = _outputs(subjects[0], network, machine.device)
    rows = [Row(network.name, subject.name, error=0.0, lost=0) for subject in subjects[:1]]
    rows += [
        _compared(network, subject, wanted, _outputs(subject, network, machine.device))
        for subject in subjects[1:]
    ]
    for converted in made:
        row = _judged(network, converted, wanted, machine.device)
        rows.append(row)
        if row.error is not None:
            subjects.append(TimedModel(row.model, converted.path))
    return _timed(rows, subjects, network, machine)


Outputs = dict[str, np.ndarray]


def _outputs(subject: TimedModel, network: Network, device: Device) -> Outputs:
    """The outputs of a model: on CUDA as it is, on the CPU with half rounded as a GPU rounds it."""
    with emulated(subject.path, device) as runnable:
        ready = runnable
        if isinstance(runnable, onnx.ModelProto):
            ready = subject.path.with_suffix(".emulated.onnx")
            onnx.save(runnable, ready)
        session = latency.open_timed_session(replace(subject, path=Path(ready)), device)
        return sessions.run_session(session, network.feeds)


def _compared(network: Network, subject: TimedModel, wanted: Outputs, got: Outputs) -> Row:
    found = [metrics.measure(wanted[name], got[name]) for name in wanted]
    error = max(entry.relative_l2 for entry in found)
    return Row(network.name, subject.name, error=error, lost=sum(entry.non_finite for entry in found))


def _judged(network: Network, converted: Converted, wanted: Outputs, device: Device) -> Row:
    """A converted model against float32, and ours against its own emulation where it runs on CUDA."""
    subject = TimedModel(converted.peer.name, converted.path)
    if converted.failure:
        return Row(network.name, subject.name, problem=converted.failure)
    problem = f"invalid: {converted.broken}" if converted.broken else ""
    try:
        got = _outputs(subject, network, device)
        row = _compared(network, subject, wanted, got)
        emulation = _outputs(subject, network, Device.CPU) if _is_emulated(subject, device) else {}
    except (AmpRewriteError, KeyError, ValueError) as error:
        fault = f"does not run: {error}"
        return Row(network.name, subject.name, problem=f"{problem}; {fault}" if problem else fault)
    apart = _compared(network, subject, emulation, got).error if emulation else None
    return replace(row, emulation=apart, converted_in=round(converted.seconds, 2), problem=problem)


def _is_emulated(subject: TimedModel, device: Device) -> bool:
    """Whether to compare CUDA's outputs with those of the emulation, as for our models."""
    return device is Device.CUDA and subject.name in (peers.OURS.name, peers.ALL_HALF.name)


def _timed(rows: list[Row], subjects: Sequence[TimedModel], network: Network, machine: Machine) -> list[Row]:
    """The rows with the times of the models that ran; the other rows unchanged."""
    rounds = latency.time_rounds(subjects, [network.feeds], machine.device, machine.seconds)
    columns = dict(zip((s.name for s in subjects), zip(*rounds, strict=True), strict=True))
    figures = {s.name: _figures(s, columns, network, machine.device) for s in subjects}
    return [replace(row, **figures.get(row.model, {})) for row in rows]


def _figures(
    subject: TimedModel, columns: dict[str, Round], network: Network, device: Device
) -> dict[str, object]:
    mine = columns[subject.name]
    ran = _profiled(subject, device, network.feeds)

    def faster(other: str) -> float | None:
        return latency.speedup(columns[other], mine).median if other in columns else None

    return {
        "p50": float(np.median(mine)) * 1000,
        "faster": faster(FLOAT),
        "faster_tf32": faster(TF32),
        "faster_half": faster(peers.ALL_HALF.name),
        "casts": ran.casts,
        "on_cpu": ran.on_cpu if device is Device.CUDA else None,
    }


def _profiled(subject: TimedModel, device: Device, feeds: sessions.Feeds) -> Profile:
    """The profile of one run."""
    options = sessions.session_options(subject.libraries)
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling, options.profile_file_prefix = True, f"{folder}/profile"
        session = sessions.create(str(subject.path), options, device, where=subject.path, tf32=subject.tf32)
        latency.prepare(session, feeds, device, subject.path)()
        return placement.read_profile(Path(session.end_profiling()))


Column = tuple[str, int, Callable[[Row], str]]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


_COLUMNS: tuple[Column, ...] = (
    ("p50 ms", 9, lambda row: _number(row.p50, ".3f")),
    ("x f32", 7, lambda row: _number(row.faster, ".2f")),
    ("x TF32", 7, lambda row: _number(row.faster_tf32, ".2f")),
    ("x half", 7, lambda row: _number(row.faster_half, ".2f")),
    ("rel. L2", 8, lambda row: _number(row.error, ".1e")),
    ("lost", 6, lambda row: _number(row.lost, "d")),
    ("emul.", 8, lambda row: _number(row.emulation, ".1e")),
    ("Casts", 6, lambda row: _number(row.casts, "d")),
    ("on CPU", 7, lambda row: _number(row.on_cpu, "d")),
)


def show(rows: Iterable[Row]) -> None:
    """Prints the table."""
    heads = "".join(f"{name:>{width}}" for name, width, _ in _COLUMNS)
    print(f"{'network':<17}{'model':<22}{heads}")
    for row in rows:
        cells = "".join(f"{cell(row):>{width}}" for _, width, cell in _COLUMNS)
        print(f"{row.network:<17}{row.model:<22}{cells}  {row.problem[:60]}".rstrip())


def circumstances(device: Device) -> dict[str, str]:
    """Date, machine and package versions of the measurement."""
    packages = ("onnx", "onnx-ir", "numpy")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "device": device_name(device),
        "python": platform.python_version(),
        "onnxruntime": kernels.runtime_version(),
        **{package: version(package) for package in packages},
    }


def device_name(device: Device) -> str:
    """The driver's name of the GPU and the driver version; for the CPU its architecture."""
    if device is Device.CPU:
        return platform.machine()
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        asked = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "a CUDA device"
    return asked.stdout.splitlines()[0]


def run(names: Iterable[str], machine: Machine, *, small: bool) -> Iterator[list[Row]]:
    """The rows of each network; one that would start too late, or that fails, has a row that says so."""
    for name in names:
        if machine.left() <= 0:
            yield [Row(name, "", problem="skipped: no time left")]
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            yield _safely(networks.make(name, small=small), machine, Path(folder))
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)


def _safely(network: Network, machine: Machine, folder: Path) -> list[Row]:
    """Measures a network; any failure becomes a row, so that other results are not lost."""
    try:
        return measure(network, machine, folder)
    except Exception as error:
        return [Row(network.name, "", problem=f"{type(error).__name__}: {error}")]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", action="append", choices=list(networks.RECIPES))
    parser.add_argument("--provider", choices=["cuda", "cpu"], help="by default CUDA if it works")
    parser.add_argument("--small", action="store_true", help="networks of a few layers, to test the script")
    parser.add_argument("--seconds", type=float, default=10.0, help="timing per network")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="after which no network starts")
    parser.add_argument("--peers-venv", type=Path, help="the folder from benchmarks/peers.py")
    parser.add_argument("--json", type=Path, help="output file for the results")
    parser.add_argument("--kernels", type=Path, help="output file for the kernel table")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Measures, prints the table, and writes JSON if requested."""
    asked = arguments(given)
    device = sessions.check_device(asked.provider)
    small = asked.small or device is Device.CPU
    if device is Device.CPU:
        print("no CUDA: small networks on the CPU, which says nothing about speed on a GPU")
    deadline = time.monotonic() + asked.minutes * 60
    machine = Machine(device, asked.seconds, deadline, asked.peers_venv)
    if asked.kernels:
        save_kernels(asked.kernels)
    rows, facts = list[Row](), {**circumstances(device), "small": small}
    for more in run(asked.network or networks.RECIPES, machine, small=small):
        rows += more
        if asked.json:
            write({**facts, "rows": [asdict(row) for row in rows]}, asked.json)
    show(rows)


def save_kernels(path: Path) -> None:
    """Writes the table of kernels, or prints that onnxruntime crashed on listing them."""
    try:
        print(f"{kernels.write(path):,} kernels -> {path}")
    except RuntimeError as error:
        print(error)


def write(figures: dict[str, object], path: Path) -> None:
    """Writes the results so far, so that an interrupted run leaves its first networks on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
