"""Assertions on models for test suites; importing this does not require pytest."""

from __future__ import annotations

from collections.abc import Mapping

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike, Texts
from amp_rewrite.coverage.counts import Coverage, measure
from amp_rewrite.coverage.coverage_rules import TOLERANCE, CoverageRules, RuleResult, check
from amp_rewrite.coverage.faces import nodes
from amp_rewrite.errors import OptionError
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.policy.open_sizes import Dims
from amp_rewrite.text import brief


def assert_coverage(
    model: ModelSource,
    *,
    min_flops: float | None = None,
    min_nodes: float | None = None,
    min_weights: float | None = None,
    require: Mapping[str, float] | None = None,
    if_present: bool = False,
    forbid_half: Texts = (),
    max_casts: int | None = None,
    baseline: PathLike | None = None,
    tolerance: float | None = None,
    dims: Dims | None = None,
) -> Coverage:
    """Assert that a model satisfies the rules, and return its coverage.

    `model` is of any kind that `rewrite` takes. The rules are those of `amp-rewrite coverage`: shares of
    floating-point work, from 0 to 1; `require` maps operators to shares, and is violated where the model
    lacks one, unless `if_present`; `forbid_half` names one or several operators. `dims` gives sizes for open
    dimensions; others count as 64. A share may fall below that in the file `baseline` by `tolerance` (default
    0.01). Raises AssertionError with each violated rule and the nodes that violate it, ModelError for an
    invalid model, and OptionError for an invalid rule or no rule.

    Examples:
        >>> from amp_rewrite import rewrite
        >>> from amp_rewrite.demo import network
        >>> from amp_rewrite.testing import assert_coverage
        >>> model = rewrite(network()).model
        >>> assert_coverage(model, min_flops=0.9, require={"Conv": 1.0}).nodes.half
        44
        >>> assert_coverage(model, max_casts=1)
        Traceback (most recent call last):
            ...
        AssertionError: max-casts 1: 4 Casts between half and float32
            image__float16
            thought__float32
            unscaled__float16
            logits__float32
    """
    __tracebackhide__ = True
    rules = CoverageRules(
        min_flops=min_flops,
        min_nodes=min_nodes,
        min_weights=min_weights,
        require=arguments.mapping("require", {} if require is None else require, '{"MatMul": 1.0}'),
        forbid_half=arguments.texts("forbid_half", forbid_half),
        max_casts=max_casts,
        baseline=None if baseline is None else str(arguments.path("baseline", baseline)),
        tolerance=TOLERANCE if tolerance is None else tolerance,
        if_present=if_present,
    )
    if tolerance is not None and baseline is None:
        raise OptionError("tolerance applies to a baseline only", remedy="give a baseline, or omit it")
    coverage = measure(model, dims)
    if rules == CoverageRules(tolerance=rules.tolerance, if_present=if_present):
        raise OptionError("no rule was given", remedy="give one, such as min_flops=0.95")
    failed = [result for result in check(coverage, rules) if not result.ok]
    if failed:
        raise AssertionError("\n".join(map(_message, failed)))
    return coverage


def _message(failed: RuleResult) -> str:
    return "\n    ".join((brief(f"{failed.rule}: {failed.found}"), *nodes(failed)))
