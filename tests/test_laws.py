from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from amp_rewrite import pipeline
from amp_rewrite.colouring import pruning
from amp_rewrite.costs import model_costs
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.policy import node_patterns
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import Level, Options, Pins
from amp_rewrite.rewriting import annotations
from amp_rewrite.rewriting.annotations import KEY
from tests.conformance.judging import complaint
from tests.onnx_text import graphs
from tests.random_models import OPERATORS, PAIRED, SMOOTH, feeds, lists, models, options
from tests.sessions import Runtime


def respelled(model: onnx.ModelProto, chance: Random) -> onnx.ModelProto:
    """A copy of a model in another spelling: one of them, or several."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for spelling in chance.sample(SPELLINGS, chance.randint(1, len(SPELLINGS))):
        spelling(copy, chance)
    return copy


def reorder_nodes(model: onnx.ModelProto, chance: Random) -> None:
    """The nodes are in a random order in which every value is made before it is read."""
    left, ordered = list(model.graph.node), []
    while left:
        waiting = {name for node in left for name in node.output if name}
        node = chance.choice([node for node in left if waiting.isdisjoint(_read(node))])
        left.remove(node)
        ordered.append(node)
    _replace(model.graph.node, ordered)


def _read(node: onnx.NodeProto) -> set[str]:
    """The names that a node reads, with those that its bodies read."""
    alone = helper.make_graph([node], "alone", [], [])
    return {name for graph in graphs(alone) for inner in graph.node for name in inner.input}


def _replace(elements, others) -> None:
    copies = [type(each).FromString(each.SerializeToString()) for each in others]
    del elements[:]
    elements.extend(copies)


def undeclare(model: onnx.ModelProto, chance: Random) -> None:
    """No type is declared of what nodes make."""
    del chance
    del model.graph.value_info[:]


def reorder_weights(model: onnx.ModelProto, chance: Random) -> None:
    """The stored tensors are in another order."""
    _replace(
        model.graph.initializer, chance.sample(list(model.graph.initializer), len(model.graph.initializer))
    )


def store_in_nodes(model: onnx.ModelProto, chance: Random) -> None:
    """Some stored tensors are those of Constant nodes."""
    leaving = {info.name for info in model.graph.output}
    moved = [each for each in model.graph.initializer if each.name not in leaving and chance.randrange(2)]
    constants = [helper.make_node("Constant", [], [each.name], value=each) for each in moved]
    _replace(model.graph.initializer, [each for each in model.graph.initializer if each not in moved])
    _replace(model.graph.node, [*constants, *model.graph.node])


SPELLINGS = (reorder_nodes, undeclare, reorder_weights, store_in_nodes)


LAW = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(LAW, max_examples=70)
LAWS = {}
HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
NO_CASTS = tuple(operator for operator in OPERATORS if operator != "Cast")
"""All but Cast: who allows Cast itself, as no shipped list does, asks for our own Casts to become half."""

RUNTIME = Runtime()


def law(*drawn):
    """A test of what is drawn: of a few examples by default, of many in the slow run."""

    def decorate(check):
        LAWS[check.__name__] = MANY(given(*drawn)(check))
        return LAW(given(*drawn)(check))

    return decorate


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    yield
    RUNTIME.close()


def data(model):
    """The bytes of a model, the same for equal models."""
    return model.SerializeToString(deterministic=True)


def rewritten(model, asked):
    """The result for a ModelProto, as a ModelProto; nothing may be broken by our own account."""
    result = pipeline.rewrite(model, asked)
    assert result.report.ok, result.report.broken
    return result.model


def nodes(model):
    """All nodes of a model, those of its subgraphs included."""
    return [node for graph in graphs(model.graph) for node in graph.node]


def cast_to(node):
    """The type that a Cast gives; None for any other node."""
    return node.attribute[0].i if node.op_type == "Cast" else None


def borders(model):
    """The inputs and outputs with their types and shapes."""
    return [data(info) for info in (*model.graph.input, *model.graph.output)]


@law(models(), options())
def test_valid_in_valid_out(model, asked):
    """What onnx's checker accepts, it accepts after the rewrite, which gives the same bytes twice; names
    of nodes and of values are unique; inputs and outputs keep their names, types, shapes and order.
    """
    after = rewritten(model, asked)
    assert complaint(model) or not complaint(after), complaint(after)
    assert data(after) == data(rewritten(model, asked))
    assert borders(after) == borders(model)
    named = Counter(node.name for node in nodes(after) if node.name)
    made = Counter(name for node in nodes(after) for name in node.output if name)
    made.update(tensor.name for graph in graphs(after.graph) for tensor in graph.initializer)
    assert {*named.values(), *made.values()} <= {1}, (named.most_common(1), made.most_common(1))


@law(models(), options())
def test_the_original_stays(model, asked):
    """Neither a ModelProto nor an onnx_ir.Model changes when it is rewritten."""
    graph = ir.from_proto(model)
    for source, read in ((model, data), (graph, lambda graph: data(ir.to_proto(graph)))):
        before = read(source)
        pipeline.rewrite(source, asked)
        assert read(source) == before


@law(models(), options().filter(lambda asked: asked.half is FLOAT16))
def test_what_loads_loads(model, asked):
    """A model that onnxruntime loads is loaded after the rewrite too, with the same borders."""
    before = RUNTIME.load(data(model))
    after = RUNTIME.load(data(rewritten(model, asked)))
    assert before.failure or not after.failure, after.failure
    assert before.failure or (before.inputs, before.outputs) == (after.inputs, after.outputs)


@law(models(), options(operators=NO_CASTS))
def test_twice_is_once(model, asked):
    """Rewriting the result again, with the same options, gives the very same bytes."""
    once = pipeline.rewrite(data(model), asked).model
    assert pipeline.rewrite(once, asked).model == once


@law(models(), options())
def test_a_result_carries_its_reasons(model, asked):
    """Every named node of a result tells the colours, rules and reasons that the analysis found for it."""
    after = rewritten(model, asked)
    found = annotations.read(ir.from_proto(after))
    if found is None:
        assert after == model or all(KEY not in {p.key for p in n.metadata_props} for n in nodes(after))
        return
    left = {node.name for node in nodes(after)} - {""}
    decided = [d for d in pipeline.analyze(model, asked).decisions().all if d.node in left]
    carried = [d for d in found.all if d.node in left]
    assert Counter(map(told, carried)) == Counter(map(told, decided))


def told(decision):
    """What a decision says of itself."""
    said = decision.operator, decision.node, decision.variable, decision.kind, decision.evidence
    return (*said, decision.precision, decision.rule)


@law(models(), options())
def test_metadata_is_all_that_metadata_changes(model, asked):
    """Without the metadata a result is the same, byte for byte."""
    after = rewritten(model, asked)
    for holder in (after, *nodes(after)):
        kept = [prop for prop in holder.metadata_props if prop.key != KEY]
        del holder.metadata_props[:]
        holder.metadata_props.extend(kept)
    assert data(after) == data(rewritten(model, replace(asked, metadata=False)))


NOT_ALLOWED = tuple(kind for kind in Kind if kind is not Kind.ALLOW)
MILD = st.sampled_from([level for level in Level if level is not Level.UNSAFE_FORCE_ALL])


@law(models(), lists(kinds=NOT_ALLOWED), MILD, st.booleans())
def test_nothing_allowed_nothing_changed(model, drawn, level, follow):
    """Without an operator to allow, a model comes out as it came in, byte for byte."""
    before = data(model)
    asked = Options(lists=drawn, level=level, follow=follow)
    assert pipeline.rewrite(before, asked).model == before


@law(models(), options())
def test_no_cast_is_superfluous(model, asked):
    """Half is nowhere cast to the same half, at once or by way of float32, but where it leaves the model."""
    after = rewritten(model, asked)
    if data(after) == data(model):
        return
    makers = {name: node for node in nodes(after) for name in node.output}
    types, leaving = element_types(after), {info.name for info in after.graph.output}
    for node in nodes(after):
        if cast_to(node) not in HALVES or node.output[0] in leaving:
            continue
        assert types.get(node.input[0]) != cast_to(node), node.name
        maker = makers.get(node.input[0])
        by_float = maker is not None and cast_to(maker) == onnx.TensorProto.FLOAT
        assert not by_float or types.get(maker.input[0]) != cast_to(node), node.name


def element_types(model):
    """The element type of every value that is a tensor, as onnx infers it, in all graphs."""
    found = {}
    for graph in graphs(onnx.shape_inference.infer_shapes(model).graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            found[info.name] = info.type.tensor_type.elem_type
        found |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return found


@law(models(), options(operators=NO_CASTS))
def test_one_cast_for_a_value_and_a_type(model, asked):
    """No value gets a second Cast to the same type: all readers share one."""
    known = {node.name for node in nodes(model)}
    added = [node for node in nodes(rewritten(model, asked)) if node.name not in known]
    counts = Counter((node.input[0], cast_to(node)) for node in added if cast_to(node))
    assert all(count == 1 for count in counts.values()), counts


@law(models(), options(), st.builds(Random, st.integers(0, 1000)))
def test_the_spelling_does_not_matter(model, asked, chance):
    """Another order of nodes or weights, weights in nodes, and no declared types: every unit has the same
    colour, and the same is held in float32.

    Functions are kept: what inlining makes is numbered in the order of the calls.
    """
    asked = replace(asked, keep_functions=True)
    assert colours(respelled(model, chance), asked) == colours(model, asked)


@law(models(palette=PAIRED), st.builds(Random, st.integers(0, 1000)))
def test_the_order_of_paths_does_not_matter(model, chance):
    """The same where one number arrives at a node by several paths: a mask, an epsilon, a bound."""
    assert colours(respelled(model, chance), Options()) == colours(model, Options())


def colours(model, asked):
    """Whether each unit of the model's own nodes is half, and whether anything was found that holds it in
    float32; units by the first output of their node and their type variable.
    """
    analysis = pipeline.analyze(model, asked)
    return {
        (unit.node.outputs[0].name, str(unit.var)): (
            analysis.painting.is_half(unit.index),
            unit.index in analysis.findings,
        )
        for unit in analysis.graph.units
        if "__" not in unit.node.outputs[0].name  # no Cast that was put before them
    }


@law(models(), options(), st.data())
def test_more_in_float32_makes_nothing_half(model, asked, data):
    """A pin, a finding and a denied operator each leave half no unit that was not half before.

    Where one takes the last part that pays, sizes count as larger (colouring.pruning), and more may pay.
    """
    analysis = pipeline.analyze(model, asked)
    units = [unit for unit in analysis.graph.units if not unit.node.domain]
    assume(units)
    unit = data.draw(st.sampled_from(units))
    kept = Pins(keep_full=node_patterns.pattern_for(node_patterns.pinned_as(unit.node), ()))
    assert is_within(analysis, analysis.painted(replace(asked, pins=kept)), asked)
    drawn = Evidence(Authority.RANGE, Reason.OVERFLOW, number=1e6, limit=65504.0)
    found = {unit.index: drawn, **analysis.findings}
    assert is_within(analysis, replace(analysis, findings=found).painted(asked), asked)
    lists = asked.operator_lists().override(Kind.DENY, [unit.node.op_type])
    assert is_within(analysis, analysis.painted(replace(asked, lists=lists)), asked)


def is_within(analysis, painting, asked):
    """Whether a painting has no half unit that an analysis has not, or was pruned at larger sizes."""
    known = model_costs.measure_prices(analysis.graph, asked)
    sizes = [pruning.find(known, each)[0] for each in (analysis.painting, painting)]
    return halves(painting) <= halves(analysis.painting) or (asked.prunes and sizes[0] != sizes[1])


def halves(painting):
    """The units that are half."""
    return {unit for unit in range(len(painting.paints)) if painting.is_half(unit)}


@law(models(palette=SMOOTH))
def test_outputs_stay_close(model):
    """Where all that float32 computes is moderate, half computes nearly the same.

    The model's operators are smooth, and every value that a node makes lies within 100.
    """
    before = RUNTIME.run(data(showing_all(model)), feeds())
    largest = max((np.abs(value).max() for value in before.values.values()), default=np.inf)
    assume(largest < 100)
    after = RUNTIME.run(data(rewritten(model, Options())), feeds())
    assert not after.failure, after.failure
    for name, value in after.values.items():
        np.testing.assert_allclose(value, before.values[name], rtol=0.02, atol=0.02 * max(1, largest))


def showing_all(model):
    """A copy that has all its float32 values for outputs, except those inside of subgraphs."""
    copy = onnx.shape_inference.infer_shapes(model)
    known = {info.name for info in copy.graph.output}
    made = {name for node in copy.graph.node for name in node.output} - known
    for info in copy.graph.value_info:
        if info.name in made and info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            copy.graph.output.append(info)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_laws_on_many_models(name):
    """Every law above holds for many more models than the default run draws."""
    LAWS[name]()
