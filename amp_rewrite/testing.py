"""What a test suite asserts of a model; pytest is not needed to import it."""

from __future__ import annotations

from collections.abc import Mapping

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike, Texts
from amp_rewrite.coverage import baselines
from amp_rewrite.coverage.ci_rules import TOLERANCE, CoverageRules, RuleResult
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.coverage.measuring import measure
from amp_rewrite.coverage.rule_checks import check
from amp_rewrite.coverage.terminal_table import nodes
from amp_rewrite.errors import OptionError
from amp_rewrite.escaping import brief
from amp_rewrite.flops.open_dimensions import Dims
from amp_rewrite.model.loading import ModelSource


def assert_coverage(
    model: ModelSource,
    *,
    min_flops: float | None = None,
    min_nodes: float | None = None,
    min_weights: float | None = None,
    require: Mapping[str, float] | None = None,
    forbid_half: Texts = (),
    max_casts: int | None = None,
    baseline: PathLike | None = None,
    tolerance: float | None = None,
    dims: Dims | None = None,
) -> Coverage:
    """Asserts that a model keeps the rules, and returns its coverage.

    `model` is whatever `rewrite` takes. The rules are those of `amp-rewrite coverage`: shares are of floats,
    0 to 1; `require` has them by operator, `forbid_half` names one operator or several. `dims` gives open
    dimensions a size, others count as 1, and a share may fall below that of a `baseline` (the path of a file)
    by `tolerance` (0.01 if not given). Raises AssertionError with each broken rule and the nodes that break
    it, ModelError for what is no model, and OptionError for what is no rule, or for none at all.
    """
    __tracebackhide__ = True
    rules = CoverageRules(
        min_flops=min_flops,
        min_nodes=min_nodes,
        min_weights=min_weights,
        require=arguments.mapping("require", {} if require is None else require, '{"MatMul": 1.0}'),
        forbid_half=arguments.texts("forbid_half", forbid_half),
        max_casts=max_casts,
        baseline=None if baseline is None else baselines.load(arguments.path("baseline", baseline)),
        tolerance=TOLERANCE if tolerance is None else tolerance,
    )
    if tolerance is not None and baseline is None:
        raise OptionError("tolerance is for a baseline", remedy="give a baseline, or leave it out")
    found = measure(model, dims)
    if rules == CoverageRules(tolerance=rules.tolerance):
        raise OptionError("there is no rule to keep", remedy="give one, such as min_flops=0.95")
    broken = [held for held in check(found, rules) if not held.ok]
    if broken:
        raise AssertionError("\n".join(map(_told, broken)))
    return found


def _told(broken: RuleResult) -> str:
    return "\n    ".join((brief(f"{broken.rule}: {broken.found}"), *nodes(broken)))
