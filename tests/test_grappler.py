"""Test cases of TensorFlow's auto_mixed_precision pass, as ONNX models, with its lists and its colours.

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
from amp_rewrite.policy.options import Level, Options, Pins
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

NO_INFER = f"""{SIMPLE}
    [allow2] allow2 = MatMul(clr4, clr4)
    [infer3] infer3 = Log(allow2)
    [fetch] fetch = Identity(infer3)
"""

BATCH_NORM = """
    [allow1] allow1 = Conv <pads = [1, 1, 1, 1]> (input, weight)
    [fbn1] fbn1 = BatchNormalization(allow1, scale, offset, mean, variance)
    [infer1] infer1 = Add(fbn1, allow1)
    [allow2] allow2 = Conv <pads = [1, 1, 1, 1]> (infer1, weight)
    [fetch] fetch = Identity(allow2)
"""

SEQUENCES = """
    [tl1] tl1 = SequenceEmpty()
    [tl1w1] tl1w1 = SequenceInsert(tl1, input)
    [allow1] allow1 = MatMul(input, input)
    [tl1w2] tl1w2 = SequenceInsert(tl1, allow1)
    [tl1r1] tl1r1 = SequenceAt(tl1w2, first)
    [infer1] infer1 = Tanh(tl1r1)
    [allow2] allow2 = MatMul(infer1, infer1)
    [tl1w3] tl1w3 = SequenceInsert(tl1, allow2)
    [tl1r2] tl1r2 = SequenceAt(tl1w3, first)
    [tl2] tl2 = SequenceEmpty()
    [tl2w1] tl2w1 = SequenceInsert(tl2, input)
    [tl2r1] tl2r1 = SequenceAt(tl2w1, first)
    [fetch1] fetch1 = Identity(tl1r2)
    [fetch2] fetch2 = Identity(tl2r1)
"""

CASES = {
    "NoOp": Case(
        """
        [deny1] deny1 = Exp(input)
        [clr1] clr1 = Relu(deny1)
        [infer1] infer1 = Sqrt(clr1)
        [clr2] clr2 = Relu(infer1)
        [fetch] fetch = Identity(clr2)
        """,
    ),
    "AlreadyFp16": Case(
        """
        [cst1] cst1 = Cast <to = 10> (input)
        [allow1] allow1 = MatMul(cst1, cst1)
        [clr1] clr1 = Relu(allow1)
        [cst2] cst2 = Cast <to = 1> (clr1)
        [clr2] clr2 = Relu(cst2)
        [fetch] fetch = Identity(clr2)
        """,
    ),
    "Simple": Case(
        SIMPLE + ENDS,
        half="clr2 allow1 clr3",
        casts=("infer1 to float16: clr2", "clr3 to float: infer2"),
    ),
    "NoInferOp": Case(
        NO_INFER,
        half="clr2 allow1 clr3 clr4 allow2",
        casts=(
            "infer1 to float16: clr2",
            "clr3 to float: infer2",
            "infer2 to float16: clr4",
            "allow2 to float: infer3",
        ),
        options=replace(OPTIONS, level=Level.TREAT_INFER_AS_DENY),
    ),
    "NoInferOp at the default level": Case(
        NO_INFER,
        half="clr2 allow1 clr3 infer2 clr4 allow2",
        casts=("infer1 to float16: clr2", "allow2 to float: infer3"),
    ),
    "BidirectionalClearChain": Case(
        """
        [clr1] clr1 = Relu(input)
        [clr2] clr2 = Relu(input)
        [allow1] allow1 = MatMul(clr1, clr1)
        [clr3] clr3 = Equal(clr1, clr2)
        [clr4] clr4 = Relu(clr2)
        [fetch1] fetch1 = Identity(allow1)
        [fetch2] fetch2 = Identity(clr4)
        """,
        half="clr1 clr2 allow1 clr3 clr4",
        casts=(
            "input to float16: clr1 clr2",
            "allow1 to float: fetch1",
            "clr4 to float: fetch2",
        ),
        outputs="(float[M,N] fetch1, float[M,N] fetch2, bool[M,N] clr3)",
        kept=("fetch.",),
    ),
    "PreserveFetches": Case(
        """
        [allow1] allow1 = MatMul(input, input)
        [clr1] clr1 = Relu(allow1)
        [infer1] infer1 = Sqrt(clr1)
        [deny1] deny1 = Exp(infer1)
        [clr2] clr2 = Relu(deny1)
        [allow2] allow2 = MatMul(clr2, clr2)
        [clr3] clr3 = Relu(allow2)
        [deny2] deny2 = Exp(clr3)
        [clr4] clr4 = Relu(deny2)
        """,
        half="allow2",
        casts=("clr2 to float16: allow2 allow2", "allow2 to float: clr3"),
        outputs="(float[M,N] allow1, float[M,N] clr2, float[M,N] clr3)",
        kept=("allow1", "clr2", "clr3"),
    ),
    "PreserveCPUNodes": Case(
        """
        [clr1] clr1 = Relu(input)
        [allow1] allow1 = MatMul(clr1, clr1)
        [infer1] infer1 = Tanh(allow1)
        [allow2] allow2 = MatMul(infer1, infer1)
        [clr2] clr2 = Relu(allow2)
        [fetch] fetch = Identity(clr2)
        """,
        half="clr1 allow1",
        casts=("input to float16: clr1", "allow1 to float: infer1"),
        kept=("allow2", "fetch"),
    ),
    "PreserveIdentityAfterVariable": Case(
        """
        [clr1] clr1 = Identity(var1)
        [allow1] allow1 = MatMul(input, clr1)
        [clr2] clr2 = Identity(input2)
        [allow2] allow2 = MatMul(input, clr2)
        [fetch1] fetch1 = Identity(allow1)
        [fetch2] fetch2 = Identity(allow2)
        """,
        half="allow1 clr2 allow2",
        casts=(
            "input to float16: allow1 allow2",
            "clr1 to float16: allow1",
            "input2 to float16: clr2",
            "allow1 to float: fetch1",
            "allow2 to float: fetch2",
        ),
        inputs="(float[32,32] input, float[32,32] var1, float[32,32] input2)",
        outputs="(float[M,N] fetch1, float[M,N] fetch2)",
        kept=("clr1", "fetch."),
    ),
    "FusedBatchNorm": Case(
        BATCH_NORM,
        half="allow1 fbn1.T infer1 allow2",
        casts=(
            "input to float16: allow1",
            "weight to float16: allow1 allow2",
            "allow2 to float: fetch",
        ),
        inputs="(float[8,16,56,56] input, float[16,16,3,3] weight, "
        "float[16] scale, float[16] offset, float[16] mean, float[16] variance)",
        outputs="(float[A,B,C,D] fetch)",
    ),
    "RepeatedAndListTypeAttrs": Case(
        """
        [allow1] allow1 = MatMul(input, input)
        [clr1a] clr1a = Identity(allow1)
        [clr1b] clr1b = Identity(allow1)
        [clr1c] clr1c = Identity(allow1)
        [infer1] infer1 = Sum(clr1a, clr1b, clr1c)
        [allow2] allow2 = MatMul(infer1, infer1)
        [fetch] fetch = Identity(allow2)
        """,
        half="allow1 clr1a clr1b clr1c infer1 allow2",
        casts=("input to float16: allow1 allow1", "allow2 to float: fetch"),
    ),
    "ExistingCast": Case(
        """
        [cst1] cst1 = Cast <to = 1> (input)
        [allow1] allow1 = MatMul(cst1, cst1)
        [fetch] fetch = Identity(allow1)
        """,
        half="cst1 allow1",
        casts=("allow1 to float: fetch",),
        inputs="(bool[32,32] input)",
    ),
    "RecurrentEdgeColorMismatch": Case(
        """
        trips = Constant <value_int = 2> ()
        true = Constant <value = bool {1}> ()
        [deny1] deny1 = Exp(input)
        [loop] ext1 = Loop(trips, true, deny1) <body =
            body (int64 i, bool go, float[32,32] mrg1) => (bool going, float[32,32] allow1) {
                going = Identity(go)
                [infer1] infer1 = Sqrt(mrg1)
                [allow1] allow1 = MatMul(infer1, infer1)
            }>
        [fetch] fetch = Identity(ext1)
        """,
        half="allow1",
        casts=("infer1 to float16: allow1 allow1", "allow1 to float: body"),
    ),
    "TensorListSetGet and TensorListPushPop": Case(
        SEQUENCES,
        half="tl1 tl1w1 tl1w2 tl1r1 tl1w3 tl1r2 allow1 infer1 allow2",
        casts=("input to float16: allow1 allow1 tl1w1", "tl1r2 to float: fetch1"),
        inputs="(float[32,32] input, int64 first)",
        outputs="(float[M,N] fetch1, float[O,P] fetch2)",
        kept=("fetch.",),
    ),
    "TensorListFromTensor": Case(
        """
        [allow1] allow1 = MatMul(input, input)
        [tl1] tl1 = SequenceConstruct(allow1)
        [tl1r1] tl1r1 = ConcatFromSequence <axis = 0> (tl1)
        [infer1] infer1 = Tanh(tl1r1)
        [allow2] allow2 = MatMul(infer1, infer1)
        [fetch] fetch = Identity(allow2)
        [tl2] tl2 = SequenceConstruct(allow1)
        [tl2w1] tl2w1 = SequenceInsert(tl2, input)
        """,
        half="allow1 tl1 tl1r1 infer1 allow2 tl2 tl2w1",
        casts=("input to float16: allow1 allow1 tl2w1", "allow2 to float: fetch"),
    ),
    "BatchMatMul": Case(
        """
        [allow1] allow1 = MatMul(input, input)
        [fetch] fetch = Identity(allow1)
        """,
        half="allow1",
        casts=("input to float16: allow1 allow1", "allow1 to float: fetch"),
        inputs="(float[64,32,32] input)",
        outputs="(float[A,B,C] fetch)",
    ),
    # AutoMixedPrecisionCpuTest: the colours, without the emulation
    "MixedFanout": Case(
        """
        [allow1] allow1 = MatMul(input, input2)
        [allow2] allow2 = MatMul(allow1, input2)
        [deny] deny = Exp(allow1)
        [infer] infer = Add(deny, allow2)
        [fetch] fetch = Identity(infer)
        """,
        half="allow1 allow2",
        casts=(
            "input to float16: allow1",
            "input2 to float16: allow1 allow2",
            "allow1 to float: deny",
            "allow2 to float: infer",
        ),
        inputs="(float[32,32] input, float[32,32] input2)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_float16(name: str) -> None:
    """The colours and the Casts are those of TensorFlow's test, or derived from its rules."""
    _check(CASES[name])


@pytest.mark.parametrize("name", ["NoOp", "AlreadyFp16"])
def test_nothing_to_do(name: str) -> None:
    """Where TensorFlow expects an equivalent graph, the model comes back as it is."""
    model = _model(CASES[name])
    assert amp_rewrite.rewrite(model, _options(CASES[name])).model == model


def test_tensor_cores_only() -> None:
    """At that level the allowed product of Simple stands alone between two Casts."""
    _check(
        replace(
            CASES["Simple"],
            half="allow1",
            casts=("clr2 to float16: allow1 allow1", "allow1 to float: clr3"),
            options=replace(OPTIONS, level=Level.TENSOR_CORES_ONLY),
        )
    )


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
def test_unary(operator: str) -> None:
    """Between two products the operator becomes half."""
    _check(_unary(operator))


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

CONV = "Conv <pads = [1, 1, 1, 1]>"
PYTHON = {
    "conv_bn": Case(
        f"""
        [conv1] conv1 = {CONV} (x, w1)
        [bn1] bn1 = BatchNormalization(conv1, s, s, s, s)
        [id1] id1 = Identity(bn1)
        [conv2] conv2 = {CONV} (id1, w2)
        [bn2] bn2 = BatchNormalization(conv2, s, s, s, s)
        [fetch] fetch = Identity(bn2)
        """,
        half="conv1 bn1.T id1 conv2",
        casts=(
            "x to float16: conv1",
            "w1 to float16: conv1",
            "w2 to float16: conv2",
            "conv2 to float: bn2",
        ),
        inputs="(float[1,6,8,8] x, float[6,6,3,3] w1, float[6,6,3,3] w2, float[6] s)",
        outputs="(float[A,B,C,D] fetch)",
    ),
    "conv_pool": Case(
        f"""
        [conv1] conv1 = {CONV} (x, w1)
        [bias1] bias1 = Add(conv1, b1)
        [relu1] relu1 = Relu(bias1)
        [pool1] pool1 = MaxPool <kernel_shape = [2, 2]> (relu1)
        [conv2] conv2 = {CONV} (pool1, w2)
        [bias2] bias2 = Add(conv2, b2)
        [relu2] relu2 = Relu(bias2)
        [pool2] pool2 = MaxPool <kernel_shape = [2, 2]> (relu2)
        [fetch] fetch = Identity(pool2)
        """,
        half="conv1 bias1 relu1 pool1 conv2",
        casts=(
            "x to float16: conv1",
            "w1 to float16: conv1",
            "b1 to float16: bias1",
            "w2 to float16: conv2",
            "conv2 to float: bias2",
        ),
        inputs="(float[1,6,8,8] x, float[6,6,3,3] w1, float[6,6,3,3] w2, float[6,1,1] b1, float[6,1,1] b2)",
        outputs="(float[A,B,C,D] fetch)",
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_convolutions(name: str) -> None:
    """TensorFlow counts the same Casts to half, and one back."""
    _check(PYTHON[name])


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
    "AlreadyBf16": replace(
        CASES["AlreadyFp16"],
        body=CASES["AlreadyFp16"].body.replace("<to = 10>", "<to = 16>"),
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
