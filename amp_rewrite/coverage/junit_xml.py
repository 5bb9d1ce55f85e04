"""The results of coverage rules as JUnit XML, which most CI systems show as tests.

The format is that of Jenkins' xunit plug-in (junit-10.xsd): a suite for each model, with a test case for each
rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from amp_rewrite.coverage.ci_rules import RuleResult
from amp_rewrite.coverage.counts import Coverage
from amp_rewrite.coverage.measured_model import MeasuredModel
from amp_rewrite.escaping import visible


def junit(models: Sequence[MeasuredModel]) -> bytes:
    """The bytes of the file: a suite for each model, a test case for each rule, the numbers as properties."""
    top = ET.Element("testsuites", _counts([check for model in models for check in model.checks]))
    for model in models:
        _suite(top, model)
    ET.indent(top)
    return ET.tostring(top, encoding="utf-8", xml_declaration=True)


def _counts(checks: Sequence[RuleResult]) -> dict[str, str]:
    broken = sum(not check.ok for check in checks)
    return {"tests": str(len(checks)), "failures": str(broken), "errors": "0"}


def _suite(top: ET.Element, model: MeasuredModel) -> None:
    suite = ET.SubElement(top, "testsuite", {"name": "amp-rewrite coverage", **_counts(model.checks)})
    properties = ET.SubElement(suite, "properties")
    for name, value in _numbers(model.coverage).items():
        ET.SubElement(properties, "property", {"name": name, "value": value})
    for check in model.checks:
        _case(suite, check, visible(model.title))


def _case(suite: ET.Element, check: RuleResult, title: str) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": title, "name": visible(check.rule)})
    if not check.ok:
        found = visible(check.found)
        failure = ET.SubElement(case, "failure", {"message": found, "type": "coverage"})
        failure.text = "\n".join(map(visible, (check.found, *check.nodes)))


def _numbers(coverage: Coverage) -> dict[str, str]:
    counted = {"nodes": coverage.nodes, "flops": coverage.flops, "weights": coverage.weights}
    found = {
        f"{what}.{kind}": str(amount)
        for what, counts in counted.items()
        for kind, amount in counts.to_json().items()
        if amount is not None
    }
    return {**found, "casts.count": str(len(coverage.casts)), "casts.bytes": str(coverage.cast_bytes)}
