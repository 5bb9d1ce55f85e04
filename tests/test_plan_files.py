"""Plans go over options, and an odd field in one is refused in words of ours; more is in plans.transcript."""

import dataclasses
import json

import pytest
from msgspec.structs import replace

from amp_rewrite import analyze, rewrite
from amp_rewrite.errors import OptionError, PlanError
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy.options import IOTypes, Options
from amp_rewrite.policy.targets import ANY
from amp_rewrite.reporting import explanations
from amp_rewrite.rewriting.plan_files import dump, load
from tests import text
from tests.edits import edits

MODEL = """g (float[4, 4] x, int64 n) => (float[4, 4] y, float[4, 4] z) <float[4, 4] w, float[4] v> {
    h = MatMul(x, w)
    [bias] b = Add(h, v)
    [exp] e = Exp(b)
    s = SequenceConstruct(h, h)
    z = SequenceAt(s, n)
    y = LayerNormalization(e, v)
}"""
OTHERS = Options(
    half=BFLOAT16,
    target=ANY,
    io=IOTypes.HALF,
    keep_io=("x",),
    keep_functions=True,
    fold=False,
    keep_opset=True,
)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(keep_opset=True),
        Options(fold=False),
        Options(lists="tensorflow", follow=False),
        OTHERS,
    ],
)
def test_there_and_back(tmp_path, options):
    """A saved plan gives the same painting, and the same bytes, as its first run. What it does
    not know of stays as the options say.
    """
    model, path = text.model(MODEL), tmp_path / "plan.json"
    path.write_text(dump(analyze(model, options).saved_plan()))
    plan = load(path)
    assert plan.half is options.half
    assert replace(analyze(model, replay=plan).saved_plan(), where=plan.where) == plan
    once, again = rewrite(model, options), rewrite(model, replay=plan)
    assert again.model.SerializeToString() == once.model.SerializeToString()
    assert again.report.half == options.half.name
    if options == OTHERS:
        assert plan.over(Options(check=False)) == dataclasses.replace(OTHERS, check=False)


@pytest.mark.slow
def test_whatever_stands_in_a_plan(tmp_path):
    """A plan is carried out and explained, or refused as a plan: an odd field is nothing else's fault."""
    model, path, refusals = text.model(MODEL), tmp_path / "plan.json", set()
    for edited in edits(json.loads(dump(analyze(model).saved_plan()))):
        path.write_text(json.dumps(edited))
        try:
            explanations.of_plan(path)
            rewrite(model, Options(check=False), replay=load(path))
        except (PlanError, OptionError) as error:  # keep_io may name what the model lacks
            refusals.add(str(error).partition("is not a valid plan ")[2])
    for problem in (
        "casts[0].consumers: expected array, got int",
        "decisions[1].rule: invalid enum value 'x'",
        "decisions[1]: object missing required field rule",
    ):
        assert any(problem in refusal for refusal in refusals)
