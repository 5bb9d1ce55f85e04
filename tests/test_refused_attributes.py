"""Nodes that onnxruntime's CUDA provider refuses for an attribute, as `targets.cases` has them."""

from pathlib import Path

import pytest

from amp_rewrite.placement.placement import CpuReason
from amp_rewrite.policy.options import Options
from tests import case_files
from tests.cuda_sessions import cuda_placer, marks, worsened
from tests.text import model, rewritten

HELD = "kernel for its "


def cases():
    """The valid cases of the file, without flags, beside a row that is about an attribute."""
    found = list(case_files.read(Path(__file__).parent / "cases" / "targets.cases"))
    held = {case.sentence for case in found if any(HELD in claim for claim in case.claims)}
    found = [case for case in found if case.sentence in held and not case.flags]
    return [case for case in found if not any(claim.startswith("not ") for claim in case.claims)]


@marks
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_cuda_refuses_these_and_no_others(half):
    """In float32 already; and the results have no node on the CPU, copy or inserted Cast more."""
    with cuda_placer() as place:
        for case in cases():
            before = model(case.model)
            original, result = place(before), place(rewritten(before, Options(half=half)).model)
            refused = {group.why for group in original.on_cpu} == {CpuReason.REFUSED}
            assert refused == any(HELD in claim for claim in case.claims), case.title
            assert (result.refused, worsened(original, result)) == ("", []), case.title
