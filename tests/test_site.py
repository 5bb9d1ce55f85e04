"""The documentation site says all that there is: every command, every public name, every list, every page."""

import inspect
import re
from pathlib import Path

import pytest
import yaml

from amp_rewrite.cli import main
from amp_rewrite.cli.commands import loaded
from amp_rewrite.explaining.rules import RULES
from amp_rewrite.operators.catalogue import CATALOGUE
from amp_rewrite.policy import operator_lists, targets
from tools import generated_docs, reference_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
KEPT = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
PAGES = KEPT | {name: page() for name, page in reference_pages.PAGES.items()}


def test_every_public_name_is_in_the_reference():
    """Once, by the name under which it is imported; those of a second module under its first."""
    documented = re.findall(r"^::: ([\w.]+)$", PAGES["api.md"], re.MULTILINE)
    assert len(documented) == len(set(documented))
    named = {name.rpartition(".")[2] for name in documented}
    assert {name for name in reference_pages.public_names() if name.rpartition(".")[2] not in named} == set()
    for name in documented:
        module, _, last = name.rpartition(".")
        assert hasattr(inspect.importlib.import_module(module), last), name


def test_every_command_is_on_the_page():
    """Each has a headline and the line that its help replaces, and no page that is made is kept."""
    assert not KEPT.keys() & reference_pages.PAGES.keys()
    asked = re.findall(r"^## (\w+)\n\n<!-- help: (\w+) -->$", PAGES["command-line.md"], re.MULTILINE)
    assert {name for name, _ in asked} == set(main.commands)
    assert all(name == same for name, same in asked)


@pytest.mark.parametrize("name", main.commands)
def test_the_help_of_a_command_has_its_usage_and_flags(name):
    """As Markdown: every flag that is not hidden, in a table, with what it does."""
    page = generated_docs.command_help(name)
    assert page.startswith(f"```text\namp-rewrite {name} ")
    for each in loaded(main.commands[name]).params:
        if each.param_type_name == "option" and not each.hidden:
            row = next(line for line in page.splitlines() if re.match(rf"\| <code>.*{each.opts[-1]}\b", line))
            assert len(row.split(" | ")) == 2
            assert len(row.split(" | ")[1]) > 10


def test_every_list_and_every_operator_of_it_is_on_the_page():
    """A shipped list has a section with all of its entries, and why."""
    for name in operator_lists.names():
        assert f"\n<!-- list: {name} -->\n" in PAGES["lists.md"]
        text = generated_docs.operator_list(name)
        entries = operator_lists.load(name).entries
        assert len(re.findall(r"^\| `[\w.:(),]+` \| \S", text, re.MULTILINE)) == len(entries)


def test_every_target_is_in_the_table():
    """With counts of its kernels, where it has a table of them."""
    text = generated_docs.known_targets("")
    assert all(f"| `{name}` |" in text for name in targets.BY_NAME)
    assert "<!-- targets: -->" in PAGES["targets.md"]


def test_every_operator_of_the_catalogue_is_in_the_table():
    """With what is known of it, a cell for each fact."""
    rows = generated_docs.known_operators("").splitlines()[2:]
    assert len(rows) == len(CATALOGUE)
    assert all(row.count(" | ") == 7 for row in rows)
    norm = next(row for row in rows if row.startswith("| `LayerNormalization` |"))
    assert norm.endswith(" |  |  | yes | of input 0, along the last one |  | 7 an element |")
    assert "| 4: lengths of sequences; 5: the initial state |" in next(
        row for row in rows if row.startswith("| `GRU` |")
    )
    assert "<!-- operators: -->" in PAGES["operators.md"]


def test_every_rule_is_on_the_page():
    """With its words, and the docstring of the module that decides it; fields are no braces."""
    text = generated_docs.known_rules("")
    assert all(f"* **{rule.value}**: " in text for rule in RULES)
    assert "adding NUMBER (VALUE) loses small values" in text
    assert "```text\nx / (y + 1e-12) " in text
    assert "{" not in text
    assert "<!-- rules: -->" in PAGES["decisions.md"]


def test_every_table_is_on_the_page():
    """What the benchmarks wrote, one level below the page's own headline."""
    text = generated_docs.on_page_markdown(PAGES["measurements.md"])
    for path in (ROOT / "benchmarks" / "results").glob("*.md"):
        assert f"\n#{path.read_text(encoding='utf-8').splitlines()[0]}\n" in text, path.name
    assert "<!-- measured" not in text


def test_every_benchmark_is_on_the_page():
    """With the command that runs it; modules that others import have none."""
    for path in (ROOT / "benchmarks").glob("*.py"):
        if "__main__" in path.read_text(encoding="utf-8"):
            assert f"`python benchmarks/{path.name}" in PAGES["measurements.md"], path.name


def test_every_page_has_its_place():
    """The site's navigation has every page, and no other."""
    assert sorted(pages_of(SITE["nav"])) == sorted(PAGES)


def pages_of(nav):
    """The pages below a part of the navigation."""
    for entry in nav:
        for below in entry.values():
            yield from [below] if isinstance(below, str) else pages_of(below)


def test_no_page_needs_the_network():
    """No fonts, stars or pictures from elsewhere."""
    assert SITE["theme"]["font"] is False
    assert "repo_url" not in SITE
    for page in PAGES.values():
        assert not re.search(r"!\[[^]]*\]\(http|<script|<iframe|<img", page)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_beside_the_site_lead_somewhere(name):
    """Relative links of the pages that are not built lead to files, and to headlines in them."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = ROOT / path if path else ROOT / name
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def anchors(page):
    """The anchors of a page's headlines."""
    heads = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
