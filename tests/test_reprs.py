"""What a notebook shows of a result, an analysis and a verdict: a line. Docstrings have the rest."""

import re
from dataclasses import replace

import pytest

import amp_rewrite
from amp_rewrite.demo import feeds, network

COUNTS = "44 nodes in float16, 6 in float32, 4 Casts added"


def test_results_are_lines(tmp_path):
    """What it holds, nodes and Casts, and each warning; of a path, the one that was written."""
    result = amp_rewrite.rewrite(network())
    assert repr(result) == f"Result(ModelProto: {COUNTS})"
    assert repr(amp_rewrite.analyze(network())) == f"Analysis({COUNTS})"
    warned = replace(result, report=replace(result.report, warnings=("slow\n",), broken=("bad",)))
    assert repr(warned) == f"Result(ModelProto: {COUNTS}; not valid: bad; slow\\n)"
    (tmp_path / "m.onnx").write_bytes(network().SerializeToString())
    assert f"Result({tmp_path / 'm_fp16.onnx'}: " in repr(amp_rewrite.rewrite(tmp_path / "m.onnx"))
    restored = amp_rewrite.restore(result.model)
    assert re.fullmatch(r"Restored\(ModelProto: [\d,]+ -> [\d,]+ bytes\)", repr(restored))
    coverage = amp_rewrite.measure_coverage(network())
    assert repr(coverage) == "Coverage(0.0% of nodes, 0.0% of FLOPs, 0.0% of weights in half, 0 Casts)"
    lists = amp_rewrite.load_lists("default").override("deny", "Conv")
    assert re.fullmatch(r"OpLists\(default: \d{3} operators, 1 moved\)", repr(lists))
    assert " at 0x" not in repr(amp_rewrite.Options(lists=lists))


def test_a_verdict_and_a_proof_are_a_line_and_true_where_they_pass():
    """The verdict, and the worst error or the first fault; `if verify(...)` means what it reads."""
    pytest.importorskip("onnxruntime")
    model, other = amp_rewrite.rewrite(network()).model, network(seed=1)
    good, bad = (amp_rewrite.verify(network(), each, feeds(), device="cpu") for each in (model, other))
    assert good
    assert repr(good).startswith("Verdict(PASS: error ")
    assert repr(good).endswith("; 1 output on 1 sample; CPU, float32 against half emulated)")
    assert not bad
    assert repr(bad).startswith("Verdict(FAIL: probabilities: error 0.524 is above 0.01; ")
    assert amp_rewrite.certify(network(), model)
    assert not amp_rewrite.certify(network(), other)
