"""`amp-rewrite placement MODEL [MODEL ...]`: the graph that onnxruntime or TensorRT makes of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from amp_rewrite.cli.flags import PATH, Need, command, flag
from amp_rewrite.cli.output_files import ReportFlags, WritingCommand
from amp_rewrite.cli.records import Inputs, Limit, Runtime
from amp_rewrite.console import Console, Part, Styled
from amp_rewrite.errors import FeedError
from amp_rewrite.model import loading
from amp_rewrite.placement import placing, tensorrt
from amp_rewrite.placement.placement import Counts, Placement
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running import sessions
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.sessions import Device, Feeds
from amp_rewrite.text import plural


@dataclass(frozen=True)
class PlacementFlags(Runtime):
    """Where models are placed, and whether they run."""

    provider: str | None = flag(
        "--provider",
        "The provider; if not given, CUDA where it works, else the CPU. tensorrt compiles, without a GPU.",
        values=("cuda", "cpu", tensorrt.NAME),
        sets={"device": ""},
    )
    show: tuple[str, ...] = flag(
        "--show",
        "Show more:",
        words={"run": "run each model once as well, and count what the run executes"},
        needs=(Need("--provider tensorrt", "runs nothing"),),
    )


@command(PlacementFlags, Inputs, Limit, ReportFlags, kind=WritingCommand)
@click.argument("models", nargs=-1, required=True, type=PATH, metavar="MODEL...")
def placement(
    models: tuple[Path, ...], runtime: PlacementFlags, data: Data, limit: TimeLimit, files: ReportFlags
) -> None:
    """Show what onnxruntime or TensorRT makes of each MODEL.

    Shown is the graph after its own optimisation: nodes by precision, Casts, copies between devices, and
    which nodes run on the CPU and why. Exit code 1 when a model does not load, or does not run with
    --show run.

    With --provider tensorrt, TensorRT for RTX parses and compiles each MODEL, and the nodes are the layers of
    its network. Open dimensions count as 64 unless --dim gives them.
    """
    for path in models:
        with loading.open_file(path):  # before packages are missed
            pass
    libraries = sessions.check_libraries(runtime.custom_ops)
    is_tensorrt = runtime.provider == tensorrt.NAME
    where = tensorrt.NAME if is_tensorrt else sessions.check_device(runtime.provider)
    with limit.running(), placing.placer(where, libraries, data.dims) as place:
        placements = {str(model): place(model, _feeds(model, data, runtime)) for model in models}
    files.report(_json(placements, where))
    print_placements(Console(), placements)
    if any(one.refused or one.failed for one in placements.values()):
        raise click.exceptions.Exit(1)


def _feeds(model: Path, data: Data, runtime: PlacementFlags) -> Feeds | None:
    """Return the inputs of one run, None unless a run is requested."""
    if not runtime.show:
        return None
    sample = next(iter(feeds.feeds(model, data)), None)
    if sample is None:
        raise FeedError("there is no sample to run", where=model, remedy="give inputs with --data")
    return sample


def _json(placements: Mapping[str, Placement], where: Device | str) -> dict[str, object]:
    models = [{"model": name, **one.to_json()} for name, one in placements.items()]
    if isinstance(where, Device):
        runtime = {"onnxruntime": sessions.onnxruntime().__version__, "provider": where.value.lower()}
    else:
        runtime = {"tensorrt": tensorrt.version(), "provider": where}
    return {**runtime, "models": models}


# Placements in a terminal.

_HEADER = ("model", "nodes", "half", "float32", "Casts", "inserted", "copies", "on the CPU")


def print_placements(console: Console, placements: Mapping[str, Placement]) -> None:
    """Print a table with a line for each model, then its details: fusions, nodes on the CPU and why."""
    loaded = {name: each for name, each in placements.items() if not each.refused}
    if loaded:
        console.numbers(_HEADER, ([name, *_cells(each)] for name, each in loaded.items()))
    for name, each in placements.items():
        if len(placements) > 1:
            console.print(Styled(name, "bold"))
        if each.engine_bytes is not None:
            console.print(Styled(f"{'engine':<12}", "dim"), f"{each.engine_bytes / 1e6:,.1f} MB")
        for label, line in _lines(each):
            console.print(Styled(f"{label:<12}", "dim"), line)


def _cells(placement: Placement) -> list[str]:
    half, full = (sum(counts.values()) for counts in (placement.half, placement.full))
    casts = (placement.float_casts, placement.inserted_casts, placement.copies, placement.cpu_nodes)
    return [f"{number:,}" for number in (placement.nodes, half, full, *casts)]


def _lines(placement: Placement) -> Iterator[tuple[str, Part]]:
    if placement.refused:
        yield "REFUSED", Styled(placement.refused, "red")
        return
    if placement.fused:
        yield "fused", _counts_text(placement.fused)
    for group in placement.on_cpu:
        yield "on the CPU", f"{group.count} {group.operator} ({group.precision}): {group.why.value}"
    if placement.untyped:
        yield "unknown type", _counts_text(placement.untyped)
    if placement.failed:
        yield "NOT RUN", Styled(placement.failed, "red")
    if placement.profile is not None:
        profile = placement.profile
        ran = f"{plural(profile.nodes, 'node')}, {plural(profile.casts, 'Cast')} ran"
        yield "one run", f"{ran}, {profile.copies:,} {'copy' if profile.copies == 1 else 'copies'}"


def _counts_text(counts: Counts) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
