"""The nodes of a report and of coverage are the same; counts by hand are in counts.transcript."""

import pytest

import amp_rewrite
from tests import real_models


@pytest.mark.parametrize(
    "name",
    ["bert_tiny_qa.legacy", "silero_vad_v6", "yolox_nano", "llama_tiny_ort_fused", "swin2sr_x2.legacy"],
)
def test_a_report_counts_the_nodes_that_coverage_counts(name):
    """Of the result: without Casts, Shapes, empty inputs and ports of a fixed type; bodies included."""
    result = amp_rewrite.rewrite(real_models.path(name).read_bytes())
    reported, counted = result.report.nodes, amp_rewrite.measure_coverage(result.model).nodes
    assert (reported.half, reported.mixed, reported.full) == (counted.half, counted.mixed, counted.full)
