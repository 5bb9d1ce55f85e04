"""What the HTML report says of a model as a whole: where it comes from, its inputs and its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from amp_rewrite import version
from amp_rewrite.reporting.drawn_graph import Box, DrawnGraph, Shade


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model: its name, its type, and whether it becomes half."""

    kind: str
    name: str
    type: str
    half: bool


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Facts as pairs of words, and the inputs and outputs in their order."""

    facts: tuple[tuple[str, str], ...]
    ports: tuple[Port, ...]


def card(model: ir.Model, drawn: DrawnGraph, options: str) -> ModelCard:
    """The card of a model; `options` are what the command was given, as text."""
    return ModelCard(tuple(_facts(model, options)), tuple(_ports(drawn.boxes)))


def _facts(model: ir.Model, options: str) -> Iterator[tuple[str, str]]:
    producer = " ".join(filter(None, (model.producer_name, model.producer_version)))
    yield "producer", producer or "(not named)"
    opsets = (f"{domain or 'ai.onnx'} {number}" for domain, number in model.graph.opset_imports.items())
    yield "opset", ", ".join(opsets)
    yield "IR version", str(model.ir_version)
    yield "amp-rewrite", version.installed()
    yield "options", options or "(the defaults)"


def _ports(boxes: Sequence[Box]) -> Iterator[Port]:
    for box in boxes:
        if box.shade is Shade.BORDER and box.graph == 0:
            value = (box.outputs or box.inputs)[0]
            yield Port(box.operator, value.name, value.type, value.half)
