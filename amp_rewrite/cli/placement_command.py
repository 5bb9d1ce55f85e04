"""`amp-rewrite placement MODEL [MODEL ...]`: the graph that onnxruntime or TensorRT makes of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from amp_rewrite.cli.file_conflicts import WritingCommand
from amp_rewrite.cli.flag_builders import PATH, choice, json_flag, read_path, switch, written
from amp_rewrite.cli.input_flags import custom_ops_flag, input_flags, timeout_flag
from amp_rewrite.console import Console
from amp_rewrite.errors import FeedError, OptionError
from amp_rewrite.model import loading, writing
from amp_rewrite.placement import differences, placing, tensorrt
from amp_rewrite.placement.differences import compare_placements, print_placements
from amp_rewrite.placement.placement import Placement
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.running import run_arguments
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.sessions import Device, Feeds, Libraries


@click.command(cls=WritingCommand)
@click.argument("models", nargs=-1, required=True, type=PATH, metavar="MODEL...")
@read_path("--against", "ORIGINAL", "Show what differs from the placement of this model.")
@switch("--run", "Run each model once as well, and count what the run executes.")
@choice(
    "--provider",
    ["cuda", "cpu", tensorrt.NAME],
    "The provider; without CUDA, stub libraries stand in for it (gcc is needed). tensorrt compiles, without "
    "a GPU.",
    "cuda",
)
@custom_ops_flag
@input_flags
@timeout_flag
@json_flag("placements")
def placement(
    models: tuple[Path, ...],
    against: Path | None,
    run: bool,
    provider: str,
    custom_ops: Libraries,
    data: Data,
    limit: TimeLimit,
    json_: Path | None,
) -> None:
    """Show what onnxruntime or TensorRT makes of each MODEL.

    Shown is the graph after its own optimisation: nodes by precision, Casts, copies between devices, and
    which nodes run on the CPU and why. Exit code 1 when a model does not load, or does not run with --run.
    Stub libraries compute nothing: with them, a model whose shapes depend on values may fail to run.

    With --provider tensorrt, TensorRT for RTX parses and compiles each MODEL, and the nodes are the layers of
    its network. Open dimensions count as 64 unless --dim gives them.
    """
    _refuse_ineffective_flags(provider, run=run)
    for path in filter(None, (*models, against)):
        with loading.open_file(path):  # before packages are missed
            pass
    libraries = run_arguments.libraries(custom_ops)
    with limit.running(), placing.placer(_provider(provider), libraries, data.dims) as place:
        original = place(against, _feeds(against, data, run=run)) if against else None
        placements = {str(model): place(model, _feeds(model, data, run=run)) for model in models}
    if json_ is not None:
        writing.write_json(_json(placements, original, provider), json_)
    print_placements(Console(), placements, original)
    if any(one.refused or one.failed for one in placements.values()):
        raise click.exceptions.Exit(1)


def _provider(name: str) -> Device | str:
    return name if name == tensorrt.NAME else Device[name.upper()]


def _refuse_ineffective_flags(provider: str, *, run: bool) -> None:
    """Raise OptionError for flags about runs where there is none; TensorRT takes sizes without one."""
    context = click.get_current_context()
    of_runs = ("data", "dim", "seed", "samples", "timeout")
    if provider == tensorrt.NAME:
        flags = written(context, ("run", "custom_ops", "data", "seed", "samples"))
        where, remedy = f"with --provider {tensorrt.NAME}, which runs nothing", "leave it out"
    else:
        flags = {} if run else written(context, of_runs)
        where, remedy = "without --run", "add --run"
    if flags:
        flag_names = " and ".join(flags.values())
        verb = "has" if len(flags) == 1 else "have"
        raise OptionError(f"{flag_names} {verb} no effect {where}", remedy=remedy)


def _feeds(model: Path, data: Data, *, run: bool) -> Feeds | None:
    """Return the inputs of one run, None unless a run is requested."""
    if not run:
        return None
    sample = next(iter(feeds.feeds(model, data)), None)
    if sample is None:
        raise FeedError("there is no sample to run", where=model, remedy="give inputs with --data")
    return sample


def _json(
    placements: Mapping[str, Placement], original: Placement | None, provider: str
) -> dict[str, object]:
    models = [{"model": name, **one.to_json(), **_against(one, original)} for name, one in placements.items()]
    before = {} if original is None else {"original": original.to_json()}
    device = _provider(provider)
    runtime = (
        differences.runtime(device).to_json()
        if isinstance(device, Device)
        else {"tensorrt": tensorrt.version(), "provider": provider}
    )
    return {**runtime, **before, "models": models}


def _against(candidate: Placement, original: Placement | None) -> dict[str, object]:
    return {} if original is None else {"against": compare_placements(original, candidate).to_json()}
