"""`amp-rewrite explain MODEL [NODE]`: why every part has the precision that it has."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from amp_rewrite.cli.flags import Asked, decision_flags
from amp_rewrite.cli.showing import Showing, of_plan, showing_flags
from amp_rewrite.errors import OptionError
from amp_rewrite.pipeline import Analysis
from amp_rewrite.reporting import terminal
from amp_rewrite.reporting.sentences import chain, label
from amp_rewrite.units import Unit


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("node", required=False)
@decision_flags
@showing_flags
def explain(model: Path, node: str | None, asked: Asked, showing: Showing) -> None:
    """Say why each part of MODEL is half or float32; for one NODE, with the chain of causes.

    No model is written. NODE is a node's name, or that of a value it makes.
    """
    made = asked.analyze(model)
    console = terminal.plain_console()
    if showing.asked:
        showing.write(of_plan(model, made, asked))
    if node is None:
        terminal.print_units(console, made.graph, made.painting)
        return
    for unit in _units_of(made, node):
        steps = chain(made.graph, made.painting, unit.index)
        terminal.print_chain(console, label(unit), steps)


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
