"""Terminal, Markdown, JUnit and annotations: the same numbers, with all names escaped."""

import io
import re
from xml.etree import ElementTree as ET

import pytest

from amp_rewrite.console import Console
from amp_rewrite.coverage.counts import measure
from amp_rewrite.coverage.coverage_rules import CoverageRules, check
from amp_rewrite.coverage.faces import (
    MeasuredModel,
    commands,
    flops,
    junit,
    markdown,
    print_checks,
    print_coverage,
)
from tests import text

SOURCE = """g (float16[2, 8] x) => (float[2, 4] y) <float16[8, 16] w1, float[16, 4] w2> {
  [first] h = MatMul (x, w1)
  [up] f = Cast <to = 1> (h)
  [second] y = MatMul (f, w2)
}"""
EVIL = "a\n::error::b|<script>alert('x')</script>\x1b[31m\x00%"
RULES = CoverageRules(min_flops=0.9, forbid_half=("MatMul",), max_casts=3)


@pytest.fixture(scope="module")
def evil():
    """The same model with an unknown operator and hostile names."""
    proto = text.unchecked(
        f"""<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        {SOURCE.replace("float[2, 4] y", "float[2, 4] y, u").replace("}", "[odd] u = mine.Odd (y) }")}"""
    )
    for node in proto.graph.node:
        node.name = EVIL + node.name
    return measure(proto)


def terminal(found, checks):
    """What is printed."""
    out = io.StringIO()
    console = Console(file=out, width=40)
    print_coverage(console, found)
    print_checks(console, checks)
    return out.getvalue()


def test_names_from_a_model_are_only_names(evil):
    """No second command in a log, no tag in a page, no broken XML, no colours in a terminal."""
    checks = check(evil, RULES)
    shown = terminal(evil, checks)
    assert not re.search(r"[\x00\x1b]", shown)
    assert not re.search(r"(?m)^::", shown)
    assert "mine:Odd" in evil.assumptions[0]
    for line in commands(MeasuredModel("m.onnx", evil, checks)):
        assert not re.search(r"[\n\r\x00\x1b]", line)
        assert re.match(r"::(error|warning|notice) file=m\.onnx,title=", line)
    page = markdown([MeasuredModel("a```b", evil, checks)]).decode()
    assert page.startswith("```text\n")
    assert page.find("```", 3) == len(page) - len("```\n")
    failures = ET.fromstring(junit([MeasuredModel(EVIL, evil, checks)])).iter("failure")
    assert any("<script>" in failure.text for failure in failures)


def test_flops_are_written_for_people():
    """Powers of a thousand."""
    counts = (0, 999, 1200, 3_400_000, 5_600_000_000, 7 * 10**12)
    assert [flops(c) for c in counts] == ["0", "999", "1.2 k", "3.4 M", "5.6 G", "7.0 T"]


def test_of_many_nodes_the_first_are_named():
    """The terminal lists ten nodes; JUnit lists all."""
    lines = "\n".join(f"  [n{i}] v{i} = Relu (v{i - 1})" for i in range(1, 31))
    found = measure(text.model(f"g (float[2] v0) => (float[2] v30) {{\n{lines}\n}}"))
    checks = check(found, CoverageRules(min_nodes=1.0))
    assert "           and 20 more" in terminal(found, checks)
    (failure,) = ET.fromstring(junit([MeasuredModel("m", found, checks)])).iter("failure")
    assert failure.text.splitlines()[1:] == [f"n{i}" for i in range(1, 31)]
