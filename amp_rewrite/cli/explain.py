"""`amp-rewrite explain MODEL [NODE]`: why every part has the precision that it has."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from amp_rewrite.cli.flags import Asked, decision_flags
from amp_rewrite.errors import OptionError
from amp_rewrite.pipeline import Analysis
from amp_rewrite.reporting import terminal
from amp_rewrite.reporting.sentences import chain
from amp_rewrite.units import Unit


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("node", required=False)
@click.option("--all", "all_", is_flag=True, help="Every part of the model with its reason, a line each.")
@decision_flags
def explain(model: Path, node: str | None, all_: bool, asked: Asked) -> None:
    """Say what holds parts of MODEL back in float32; for one NODE, with the chain of causes.

    Nothing is written. NODE is a node's name, or that of a value it makes.
    """
    made = asked.analyze(model)
    console = terminal.plain_console()
    decisions = made.decisions()
    if all_:
        terminal.print_units(console, decisions)
    elif node is None:
        terminal.print_causes(console, made.causes())
    for unit in _units_of(made, node) if node is not None else ():
        steps = chain(decisions, unit.index)
        terminal.print_chain(console, steps[0].unit, steps)


def _units_of(made: Analysis, name: str) -> list[Unit]:
    """The units of the nodes of that name, or that make a value of that name."""
    found = [unit for unit in made.graph.units if name in _names(unit)]
    if found:
        return found
    everything = {known for unit in made.graph.units for known in _names(unit) if known}
    near = difflib.get_close_matches(name, everything, n=3)
    if any(name in (node.name, *_outputs(node)) for node in made.loaded.model.graph.all_nodes()):
        raise OptionError(f"'{name}' has no float32 in it", remedy="there is nothing to decide")
    raise OptionError(
        f"no node is called '{name}'",
        remedy=f"did you mean {' or '.join(near)}?" if near else "leave it out to see all nodes",
    )


def _names(unit: Unit) -> tuple[str | None, ...]:
    return (unit.node.name, *(value.name for value in unit.makes))


def _outputs(node: object) -> tuple[str | None, ...]:
    return tuple(value.name for value in getattr(node, "outputs", ()))
