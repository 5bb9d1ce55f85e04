"""What `explain` says of real models before a rewrite, held to the model that comes of it."""

import onnx_ir as ir
import pytest

from amp_rewrite import rewrite
from amp_rewrite.analysis.units import value_of
from amp_rewrite.explaining.sentences import first_step
from amp_rewrite.model import loading
from amp_rewrite.model.traversal import graphs
from amp_rewrite.numerics.half import HALF_TYPES
from amp_rewrite.onnx_types import element_types
from amp_rewrite.rewriting import annotations
from tests import real_models
from tests.real_models import ASKED, NAMES

PAIRS = [
    (name, said)
    for i, name in enumerate(NAMES)
    for j, said in enumerate(ASKED)
    if j in (0, 1 + i % (len(ASKED) - 1))
]
"""Every model at the defaults, and with one of the other options in turn."""
QUICK = ("yolox_nano", "float16"), ("mamba_tiny.legacy", "float16")
BESIDE = {"deny": "predecessors", "follow": "predecessors", "between": "successors", "lead": "successors"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param(name, said, marks=() if (name, said) in QUICK else pytest.mark.slow)
        for name, said in PAIRS
    ],
)
def test_what_is_explained_is_so(name, said):
    """Every unit has the type, every cause the place and every Cast the readers that are told of them."""
    found = []
    result = rewrite(
        real_models.path(name).read_bytes(),
        ASKED[said],
        on_plan=lambda made: found.append((made.graph, made.painting.entries, made.decisions())),
    )
    ((graph, entries, decisions),) = found
    model = loading.load(result.model).model
    types = {value.name: kind.dtype for value, kind in element_types.infer(model).items() if value.name}
    colours_hold(graph, decisions, types)
    causes_hold(graph, entries, decisions)
    if result.report.changed:  # a model that stays as it was carries nothing
        casts_hold(annotations.read(model), model, types)


def colours_hold(graph, decisions, types):
    """The result has half where half was told, and float32 where that was; `graph` was edited to be it."""
    for unit in graph.units:
        ports = (*map(value_of, unit.uses), *unit.defs) if unit.node.graph is not None else ()
        for value in ports:
            dtype = types.get(value.name) if value is not None else None
            if dtype is not None:
                assert (dtype in HALF_TYPES) is decisions.all[unit.index].is_half, decisions.all[unit.index]


def causes_hold(graph, entries, decisions):
    """A cause stands on the side where it is said to be, and has the colour that it is said to spread."""
    for unit, decision in enumerate(decisions.all):
        cause, rule = decision.cause, decision.rule.value
        if cause is not None:
            words = first_step(decisions, unit)
            assert rule not in BESIDE or cause in beside(graph, entries, unit, BESIDE[rule]), words
            assert decisions.all[cause].is_half is decision.is_half, words


def beside(graph, entries, unit, side):
    """The units on one side of a unit; behind the result of an idiom, those that this stands for, too."""
    found, edges = set(), getattr(graph, side)
    waiting = [*edges[unit]]
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            stands = entries[other].stands_as is not None
            waiting.extend(edges[other] if stands else ())
    return found


def casts_hold(told, model, types):
    """Every Cast between half and float32 is told of, and what is told of it stands in the result."""
    by_output = {site.output: site for site in told.cast_sites}
    casts = [
        node for graph in graphs(model.graph) for node in graph if (node.domain, node.op_type) == ("", "Cast")
    ]
    for node in casts:
        ends = {types.get(value.name) for value in (node.inputs[0], node.outputs[0])}
        site = by_output.get(node.outputs[0].name)
        assert site is not None or not (ends & HALF_TYPES and ir.DataType.FLOAT in ends), node
        if site is not None:
            made = types.get(node.outputs[0].name) in HALF_TYPES
            assert all(told.all[reader].is_half is made for reader in site.consumers), node
            assert site.is_output is any(value is node.outputs[0] for value in model.graph.outputs), node
