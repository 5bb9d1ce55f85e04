"""Whether a node means the same at a newer opset: schemas compared, known changes, and runs of both."""

import functools
import itertools
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_rewrite.onnx_types import element_types, version_changes
from amp_rewrite.operators import versions as facts
from tests import commands, text

HEAD = '<ir_version: 8, opset_import: ["" : {opset}]>'


def same(graph, old, new, rank=None):
    """Whether the last node of a graph at opset `old` means the same at `new`."""
    proto = text.unchecked(f"{HEAD.format(opset=old)} {graph}")
    return _same(proto, old, new, rank)


def _same(proto, old, new, rank=None):
    model = ir.from_proto(proto)
    types, node = element_types.infer(model), list(model.graph)[-1]
    return version_changes.same(node, old, new, types, lambda _: rank)


FREE = """
7 22  | y = Relu (x)
22 7  | y = Relu (x)
11 13 | y = Clip (x) | y = Squeeze (x) | y = Softmax <axis = -1> (x)
13 11 | y = Softmax <axis = -1> (x)
9 15  | y = BatchNormalization (x, x, x, x, x)
7 9   | y = BatchNormalization (x, x, x, x, x)
11 22 | y = Conv <auto_pad = "SAME_UPPER"> (x, x)
8 22  | y = MaxPool <kernel_shape = [2, 2]> (x)
13 21 | y = Reshape (x, s)
21 13 | y = Reshape (x, s)
11 18 | y = ReduceMean <keepdims = 0> (x)
18 11 | y = ReduceMean <keepdims = 0> (x)
13 18 | y = Split (x, s) | y = Resize <mode = "linear"> (x, , x)
9 23  | y = Cast <to = 10> (x)
9 13  | y = Erf (x)
12 22 | y, m = Dropout (x)
8 13  | y = Sum (x, x, x)
# an operator that onnx does not know is its runtime's, and has versions of its own
13 22 | y = SimplifiedLayerNormalization (x, x)
"""
"""Types were added, or what the node does not have."""
CHANGED = """
10 11 | y = Clip <min = 0.0> (x) | y = Pad <pads = [0, 0, 0, 0]> (x) | y = Resize (x, x)
    | y = ConvTranspose <auto_pad = "SAME_UPPER"> (x, x)
6 7   | y = Clip (x)
7 9   | y = BatchNormalization <spatial = 1> (x, x, x, x, x)
13 14 | y, m, v = BatchNormalization (x, x, x, x, x) | y = Reshape <allowzero = 1> (x, s)
11 22 | y = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (x)
13 18 | y = ReduceMean <axes = [0]> (x) | y = Split (x)
11 13 | y = ReduceSum <axes = [0]> (x) | y = Squeeze <axes = [0]> (x) | y = Split <split = [1, 1]> (x)
    | y = Softmax <axis = 1> (x) | y = Softmax (x)
    | y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn"> (x, x, x)
9 10  | y = Upsample (x, x) | y = Slice <starts = [0], ends = [1]> (x)
10 12 | y = Dropout <ratio = 0.5> (x)
7 10  | y, m = Dropout (x)
16 20 | y = GridSample (x, x)
10 16 | y = RoiAlign (x, x, s)
9 11  | y = OneHot (s, s, x) | y = Scatter (x, s, x)
18 21 | y = GroupNormalization <num_groups = 1> (x, x, x)
16 17 | y = LayerNormalization (x, x)
8 11  | y = NoSuch (x)
"""
"""Attributes that became inputs, changed defaults and meanings, operators that are gone or unknown."""


@pytest.mark.parametrize(("table", "free"), [(FREE, True), (CHANGED, False)])
def test_what_is_free(table, free):
    """What means the same at a newer opset, or an older one."""
    for versions, *nodes in (row for row in commands.rows(table) if len(row) > 1):
        for node in nodes:
            graph = f"g (float[2, 2] x, int64[1] s) => (float[2, 2] y) {{ {node} }}"
            assert same(graph, *map(int, versions.split())) is free, (versions, node)


@pytest.mark.parametrize(("rank", "free"), [(1, False), (2, True), (3, False), (None, False)])
def test_a_softmax_is_free_where_its_axis_is_the_last(rank, free):
    """The default axis was 1, and all after it were one; now it is the last alone."""
    assert same("g (float[2, 2] x) => (float[2, 2] y) { y = Softmax (x) }", 11, 13, rank) is free


def test_types_count():
    """Relu takes bfloat16 from opset 13 on and integers from 14 on, and Erf no integers from 13 on."""
    for operator, kind, old, free, not_free in (
        ("Relu", "bfloat16", 22, 13, 12),
        ("Relu", "int32", 22, 14, 13),
        ("Erf", "int32", 9, 12, 13),
    ):
        graph = f"g ({kind}[2] x) => ({kind}[2] y) {{ y = {operator} (x) }}"
        assert (same(graph, old, free), same(graph, old, not_free)) == (True, False)


def test_the_tables_name_what_schemas_have():
    """Every attribute and input of NEUTRAL, and every operator of CHANGES, is one of some version."""
    known = {name: _parts(name) for name in {*facts.NEUTRAL, *facts.CHANGES}}
    assert {name: parts - known[name] for name, parts in facts.NEUTRAL.items() if parts - known[name]} == {}
    versions = {name: {s.since_version for s in history()[name]} for name in facts.CHANGES}
    for name, changes in facts.CHANGES.items():
        assert {change.since for change in changes} <= versions[name], name


def _parts(name):
    return {part for s in history()[name] for part in (*s.attributes, *(i.name for i in s.inputs))}


@functools.cache
def history():
    """The schemas of each operator of the default domain."""
    found = {}
    for one in onnx.defs.get_all_schemas_with_history():
        if not one.domain:
            found.setdefault(one.name, []).append(one)
    return found


MOST = 8
"""Cases of one operator."""


def _cases():
    """Every operator of onnx's test suite as one node, with its inputs."""
    from tests.conformance import cases  # noqa: PLC0415 - collecting them takes seconds

    taken = Counter()
    for case in cases.of_nodes():
        proto = onnx.ModelProto.FromString(case.data)
        node = proto.graph.node[0]
        if len(proto.graph.node) == 1 and not node.domain and taken[node.op_type] < MOST:
            taken[node.op_type] += 1
            yield proto, case.feeds


@pytest.mark.slow
def test_what_is_free_gives_the_same_bits():
    """Nodes of onnx's test suite, at every pair of versions at which onnxruntime runs them."""
    pytest.importorskip("onnxruntime")
    compared = {}
    for proto, feeds in _cases():
        node = proto.graph.node[0]
        versions = [s.since_version for s in history()[node.op_type]]
        runs = {v: found for v in (*versions, 12, 13, 18, 22) if (found := _run(proto, v, feeds)) is not None}
        for old, new in itertools.combinations(sorted(runs), 2):
            proto.opset_import[0].version = old
            if old >= version_changes.OLDEST and _same(proto, old, new):
                _assert_same_bits(runs[old], runs[new], f"{node.op_type} {old} -> {new}")
                compared[node.op_type] = compared.get(node.op_type, 0) + 1
    assert len(compared) > 100
    assert {"BatchNormalization", "Clip", "Conv", "MaxPool", "Resize", "Softmax"} <= compared.keys()


def _assert_same_bits(before, after, what):
    for one, other in zip(before, after, strict=True):
        if what.split()[0] in ROUNDED:
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6, err_msg=what)
        elif isinstance(one, np.ndarray) and one.dtype != object:
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), what
        else:
            assert str(one) == str(other), what


ROUNDED = {"AveragePool"}
"""What onnxruntime's CPU provider has two kernels for, which sum in another order: the older is MLAS's."""
RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}


def _run(proto, version, feeds):
    """The outputs of a model at an opset; None where it is not valid there, or does not run."""
    import onnxruntime  # noqa: PLC0415 - the rewrite works without it

    if proto.graph.node[0].op_type in RANDOM or version > NEWEST:
        return None
    del proto.opset_import[:]
    proto.opset_import.append(onnx.helper.make_opsetid("", version))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        onnx.checker.check_model(proto)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
        return session.run(None, {name: value for name, value in feeds.items() if value is not None})
    except Exception:
        return None


NEWEST = 24
