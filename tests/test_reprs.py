"""What a notebook shows of a result, an analysis and a verdict: a line."""

import re
from dataclasses import replace

import pytest

import amp_rewrite
from amp_rewrite.demo import feeds, network

COUNTS = "44 nodes in float16, 6 in float32, 4 Casts added"


@pytest.fixture(scope="module")
def result():
    """The demo network, rewritten."""
    return amp_rewrite.rewrite(network())


def test_a_result_and_an_analysis_are_a_line(result, tmp_path):
    """What it holds, nodes and Casts, and each warning; of a path, the one that was written."""
    assert repr(result) == f"Result(ModelProto: {COUNTS})"
    assert repr(amp_rewrite.analyze(network())) == f"Analysis({COUNTS})"
    warned = replace(result, report=replace(result.report, warnings=("slow\n",), broken=("bad",)))
    assert repr(warned) == f"Result(ModelProto: {COUNTS}; not valid: bad; slow\\n)"
    (tmp_path / "m.onnx").write_bytes(network().SerializeToString())
    assert f"Result({tmp_path / 'm_fp16.onnx'}: " in repr(amp_rewrite.rewrite(tmp_path / "m.onnx"))


def test_lists_are_a_line():
    """The name, and counts; options, which hold lists, are short as well."""
    lists = amp_rewrite.load_lists("default").override("deny", "Conv")
    restored = amp_rewrite.restore(amp_rewrite.rewrite(network()).model)
    assert re.fullmatch(r"Restored\(ModelProto: [\d,]+ -> [\d,]+ bytes\)", repr(restored))
    coverage = amp_rewrite.measure_coverage(network())
    assert repr(coverage) == "Coverage(0.0% of nodes, 0.0% of FLOPs, 0.0% of weights in half, 0 Casts)"
    assert re.fullmatch(r"OpLists\(default: \d{3} operators, 1 moved\)", repr(lists))
    assert " at 0x" not in repr(amp_rewrite.Options(lists=lists))


def test_a_verdict_is_a_line(result):
    """The verdict, and the worst error or the first fault."""
    pytest.importorskip("onnxruntime")
    good = repr(amp_rewrite.verify(network(), result.model, feeds(), device="cpu"))
    assert good.startswith("Verdict(PASS: error ")
    assert good.endswith("; 1 output on 1 sample; CPU, float32 against half emulated)")
    bad = repr(amp_rewrite.verify(network(), network(seed=1), feeds(), device="cpu"))
    assert bad.startswith("Verdict(FAIL: probabilities: error 0.524 is above 0.01; ")


def test_a_verdict_and_a_proof_are_true_where_they_pass(result):
    """`if verify(...)` and `assert certify(...)` mean what they read."""
    pytest.importorskip("onnxruntime")
    assert amp_rewrite.verify(network(), result.model, feeds(), device="cpu")
    assert not amp_rewrite.verify(network(), network(seed=1), feeds(), device="cpu")
    assert amp_rewrite.certify(network(), result.model)
    assert not amp_rewrite.certify(network(), network(seed=1))
