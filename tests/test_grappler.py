"""Test cases of TensorFlow's auto_mixed_precision pass, as ONNX models, with its lists and its colours: those
in bfloat16, loops and numbers; `grappler.cases` has the others.

Each case keeps TensorFlow's name and its names of nodes. The lists are `tensorflow`, and the target has every
kernel. What TensorFlow preserves (fetches, variables' Identity, nodes on the CPU) is
pinned to float32. Constants are inputs, as TensorFlow counts a Cast behind a Const. Where an operator
has no counterpart another stands for it: PRelu, which is on no list, for SparseMatMul; Equal, which
has one type for two inputs and gives none of them on, for ShapeN; three Identity nodes for
IdentityN; SequenceInsert and SequenceAt for TensorListSetItem, GetItem, PushBack and PopBack.

Without a counterpart in ONNX, and not here:

| case                                        | why                                                       |
|---------------------------------------------|-----------------------------------------------------------|
| FusedBatchNormGrad in FusedBatchNorm        | no gradient operators in the default domain               |
| BatchMatMul before CUDA 9.1                 | kernels by CUDA version                                   |
| TensorListPushBackBatchAndConcatLists       | no sequences of sequences                                 |
| TensorListThroughFunction                   | functions are inlined before colouring                    |
| Erfc, Log1p of the unary template           | no such operators                                         |
| AutoMixedPrecisionCpuTest.Simple            | emulation by Cast pairs in the graph                      |
| AutoMixedPrecisionSimulateGpuTest           | devices                                                   |
| TensorListSetGet in bfloat16                | ONNX has no sequences of bfloat16                         |
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import amp_rewrite
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy import operator_lists, targets
from amp_rewrite.policy.operator_lists import Kind, OpLists
from amp_rewrite.policy.options import Options, Pins
from amp_rewrite.rewriting.plan import PlannedCast

OPTIONS = Options(lists=operator_lists.load("tensorflow"), target=targets.ANY)
SQUARE = "(float[32,32] input)"


@dataclass(frozen=True)
class Case:
    """A graph, the nodes that become half, and the Casts: value, type, and who reads it how often.

    A node of which only one type variable becomes half is written with it. `kept` are preserved.
    """

    body: str
    half: str = ""
    casts: tuple[str, ...] = ()
    inputs: str = SQUARE
    outputs: str = "(float[M,N] fetch)"
    kept: tuple[str, ...] = ("fetch",)
    options: Options = OPTIONS


def _model(case: Case) -> onnx.ModelProto:
    header = '<ir_version: 10, opset_import: ["": 22]>'
    return onnx.parser.parse_model(f"{header} g {case.inputs} => {case.outputs} {{{case.body}}}")


def _options(case: Case) -> Options:
    return replace(case.options, pins=Pins(keep_full=case.kept))


def _half(analysis: Analysis) -> set[str]:
    """The nodes that are half in all their variables, and the variables of those that are in some."""
    graph, painting = analysis.graph, analysis.painting
    found: set[str] = set()
    for unit in graph.units:
        beside = [painting.is_half(other.index) for other in graph.units if other.node is unit.node]
        if painting.is_half(unit.index):
            found.add(unit.node.name or "" if all(beside) else str(unit))
    return found


def _written(cast: PlannedCast) -> str:
    readers = " ".join(sorted(str(site.holder.name) for site in cast.uses))
    return f"{cast.value.name} to {cast.dtype.name.lower()}: {readers}"


def _operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for graph in _graphs(model.graph) for node in graph.node)


def _graphs(graph: onnx.GraphProto) -> Iterable[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _check(case: Case) -> None:
    """Asserts colours, Casts, and that the rewritten model is valid and differs by these Casts alone."""
    model = _model(case)
    analysis = amp_rewrite.analyze(model, _options(case))
    assert _half(analysis) == set(case.half.split())
    assert sorted(map(_written, analysis.plan.casts)) == sorted(case.casts)
    result = amp_rewrite.rewrite(model, _options(case))
    assert result.report.broken == ()
    assert all("predicted" in told or "list" in told for told in result.report.warnings)  # in bfloat16
    onnx.checker.check_model(result.model, full_check=True)
    added = _operators(result.model)
    added.subtract(_operators(model))
    assert +added == Counter({"Cast": len(case.casts)} if case.casts else {})


# ---- AutoMixedPrecisionTest

SIMPLE = """
    [deny1] deny1 = Exp(input)
    [clr1] clr1 = Relu(deny1)
    [infer1] infer1 = Sqrt(clr1)
    [clr2] clr2 = Relu(infer1)
    [allow1] allow1 = MatMul(clr2, clr2)
    [clr3] clr3 = Relu(allow1)
    [infer2] infer2 = Log(clr3)
    [clr4] clr4 = Relu(infer2)
"""

ENDS = """
    [deny2] deny2 = PRelu(clr4, clr4)
    [clr5] clr5 = Relu(deny2)
    [fetch] fetch = Identity(clr5)
"""


# ---- TestSimpleUnaryInferOp

DEFAULT = 5 * float(np.finfo(np.float32).eps)
"""The tolerance that -1 stands for in TensorFlow's table."""

UNARY = {
    "Elu": (-5, 5, 1e-3, 1e-3),
    "Erf": (-5, 5, 1e-3, DEFAULT),
    "Log": (0.01, 10, 1e-3, 2e-3),
    "LogSoftmax": (-8, 8, DEFAULT, 1e-2),
    "Reciprocal": (0.01, 10, DEFAULT, 1e-3),  # TF's Inv and Reciprocal
    "Sigmoid": (-5, 5, 1e-3, DEFAULT),
    "Softmax": (-8, 8, 2e-3, DEFAULT),
    "Softplus": (-5, 5, 2e-3, 2e-3),
    "Sqrt": (0, 10, 1e-3, 1e-3),
    "Tanh": (-5, 5, 1e-3, DEFAULT),
}


def _unary(operator: str) -> Case:
    return Case(
        f"""
        [allow1] allow1 = MatMul(input, eye)
        [infer1] infer1 = {operator}(allow1)
        [allow2] allow2 = MatMul(infer1, eye)
        [fetch] fetch = Identity(allow2)
        """,
        half="allow1 infer1 allow2",
        casts=(
            "input to float16: allow1",
            "eye to float16: allow1 allow2",
            "allow2 to float: fetch",
        ),
        inputs="(float[128,128] input, float[128,128] eye)",
    )


@pytest.mark.parametrize("operator", UNARY)
def test_unary_numbers(operator: str) -> None:
    """With every result rounded to float16 the outputs are within TensorFlow's tolerances."""
    low, high, absolute, relative = UNARY[operator]
    case = _unary(operator)
    given = np.random.default_rng(1).uniform(low, high, (128, 128)).astype(np.float32)
    feeds = {"input": given, "eye": np.eye(128, dtype=np.float32)}
    model = _model(case)
    made = amp_rewrite.rewrite(model, _options(case)).model
    (expected,), (found,) = _run(model, feeds), _run(made, feeds)
    assert not np.array_equal(expected, found), "nothing was rounded"
    np.testing.assert_allclose(found, expected, rtol=relative, atol=absolute)


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(model, new_ops=[LogSoftmax]).run(None, feeds)


class LogSoftmax(OpRun):
    """Computes inside in float32, as every runtime does; onnx's own takes the logarithm of a half 0."""

    op_domain = ""

    def _run(self, x: np.ndarray, axis: int = -1) -> tuple[np.ndarray]:
        shifted = x.astype(np.float32) - x.max(axis=axis, keepdims=True)
        total = np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return ((shifted - total).astype(x.dtype),)


# ---- loops: before | body | after, and a capital letter where half is expected

LOOPS = [
    "W|C|C",
    "C|C|W",
    "W|G|W",
    "W|gbg|W",
    "b|gWC|c",
    "b|CWCG|C",
    "C|GWCG|C",
    "C|CgbgWC|g",
]

LETTERS = {
    "w": "[{0}] {0} = MatMul({1}, weight)",
    "g": "[{0}] {0} = Mul({1}, tenth)",  # an Add to what a loop carries alone is a running sum
    "c": "[{0}] {0} = Relu({1})",
    "b": "[{0}_squared] {0}_squared = Pow({1}, two) [{0}] {0} = Sqrt({0}_squared)",
}


def _nodes(letters: str, prefix: str, first: str, last: str) -> str:
    """The nodes of one part, in a row from `first` to a value that is named `last`."""
    names = [f"{prefix}{i}{letter}" for i, letter in enumerate(letters)]
    rows = [
        LETTERS[letter.lower()].format(name, before)
        for letter, name, before in zip(letters, names, [first, *names], strict=False)
    ]
    return " ".join([*rows, f"[{last}] {last} = Identity({names[-1]})"])


def _loop(text: str) -> Case:
    before, body, after = text.split("|")
    return Case(
        f"""
        trips = Constant <value_int = 4> ()
        true = Constant <value = bool {{1}}> ()
        tenth = Constant <value_float = 0.1> ()
        two = Constant <value_float = 2.0> ()
        {_nodes(before, "before", "x", "entering")}
        [loop] leaving = Loop(trips, true, entering) <body =
            body (int64 i, bool go, float[8,8] carried) => (bool going, float[8,8] next) {{
                going = Identity(go)
                {_nodes(body, "body", "carried", "next")}
            }}>
        {_nodes(after, "after", "leaving", "fetch")}
        """,
        inputs="(float[8,8] x, float[8,8] weight)",
    )


@pytest.mark.parametrize("text", LOOPS)
def test_loop(text: str) -> None:
    """Carried values go with both sides of the loop, as TensorFlow's Enter, Merge and Exit do."""
    case = _loop(text)
    model = _model(case)
    analysis = amp_rewrite.analyze(model, _options(case))
    half = _half(analysis)
    parts = zip(("before", "body", "after"), text.split("|"), strict=True)
    nodes = {f"{part}{i}{x}": x for part, letters in parts for i, x in enumerate(letters)}
    found = {name: x.upper() if name in half else x.lower() for name, x in nodes.items()}
    assert found == nodes
    result = amp_rewrite.rewrite(model, _options(case))
    assert result.report.broken == ()
    assert all("predicted" in warning for warning in result.report.warnings)


def test_the_loops_cover_both_colours_of_the_carried_value() -> None:
    """Some loops of the table carry half, and others float32."""
    carried = {
        text: "loop" in _half(amp_rewrite.analyze(_model(_loop(text)), _options(_loop(text))))
        for text in LOOPS
    }
    full = [text for text, is_half in carried.items() if not is_half]
    assert full == ["W|gbg|W", "b|gWC|c"]


# ---- auto_mixed_precision_test.py: convolutions


# ---- AutoMixedPrecisionMklTest: bfloat16, where what is inferred follows


def _bfloat16_lists() -> OpLists:
    """TensorFlow's lists for bfloat16: every INFER follows, and sums and means are INFER."""
    base = operator_lists.load("tensorflow").override(Kind.INFER, ["ReduceSum", "ReduceMean"])
    entries = {key: replace(entry, follow=entry.kind is Kind.INFER) for key, entry in base.entries.items()}
    return replace(base, entries=MappingProxyType(entries))


BF16 = replace(OPTIONS, half=BFLOAT16, lists=_bfloat16_lists())
FOLLOWING = replace(BF16, follow=True, lists=replace(BF16.lists, alone=False))

CONV_BIAS = """
    [allow] allow = Conv <pads = [1, 1, 1, 1]> (input1, weight)
    [infer] infer = Add(allow, input2)
    [clr] clr = Relu(infer)
    [fetch] fetch = Identity(clr)
"""
IMAGES = "(float[8,16,56,56] input1, float[16,16,3,3] weight, float[16,1,1] input2)"

BFLOAT16_CASES = {
    "AlreadyBf16": Case(
        """
        [cst1] cst1 = Cast <to = 16> (input)
        [allow1] allow1 = MatMul(cst1, cst1)
        [clr1] clr1 = Relu(allow1)
        [cst2] cst2 = Cast <to = 1> (clr1)
        [clr2] clr2 = Relu(cst2)
        [fetch] fetch = Identity(clr2)
        """,
        options=FOLLOWING,
    ),
    "Simple": Case(
        SIMPLE + ENDS,
        half="clr2 allow1 clr3",
        casts=("infer1 to bfloat16: clr2", "clr3 to float: infer2"),
        options=BF16,
    ),
    "Simple, following further than TensorFlow": Case(
        SIMPLE + ENDS,
        half="clr2 allow1 clr3 infer2 clr4",
        casts=("infer1 to bfloat16: clr2", "clr4 to float: deny2 deny2"),
        options=FOLLOWING,
    ),
    "InferFollowUpStreamAllow": Case(
        CONV_BIAS,
        half="allow infer clr",
        casts=(
            "input1 to bfloat16: allow",
            "weight to bfloat16: allow",
            "input2 to bfloat16: infer",
            "clr to float: fetch",
        ),
        inputs=IMAGES,
        outputs="(float[A,B,C,D] fetch)",
        options=FOLLOWING,
    ),
    "InferFollowUpStreamAllow in CUDA mode": Case(
        CONV_BIAS,
        half="allow",
        casts=(
            "input1 to float16: allow",
            "weight to float16: allow",
            "allow to float: infer",
        ),
        inputs=IMAGES,
        outputs="(float[A,B,C,D] fetch)",
    ),
    "InferFollowUpStreamDeny": Case(
        """
        [deny] deny = Pow(input1, input2)
        [infer] infer = Add(deny, input3)
        [clr] clr = Relu(infer)
        [fetch] fetch = Identity(clr)
        """,
        inputs="(float[8,16,56,56] input1, float[16,1,1] input2, float[16,1,1] input3)",
        outputs="(float[A,B,C,D] fetch)",
        options=FOLLOWING,
    ),
}


@pytest.mark.parametrize("name", BFLOAT16_CASES)
def test_bfloat16(name: str) -> None:
    """As in float16; what follows goes on through CLEAR nodes, where TensorFlow stops at the first."""
    _check(BFLOAT16_CASES[name])
