"""Everything public has an example in its docstring, and the examples hold."""

import doctest
import inspect

import pytest

from tools.reference_pages import public_names

NAMES = public_names()


def public():
    """Every public function and class, and the public methods of the classes, by where they are written."""
    for found in NAMES.values():
        if not inspect.isclass(found) and not inspect.isfunction(found):
            continue  # a mere value, such as FLOAT16
        yield place(found), found
        for name, member in vars(found).items() if inspect.isclass(found) else ():
            function = getattr(member, "__func__", member)
            if name[0] != "_" and inspect.isfunction(function):
                yield place(function), function


def place(found):
    """The module and the name in it."""
    return f"{found.__module__}.{found.__qualname__}"


PUBLIC = dict(public())
PROCESSES = ("amp_rewrite.many.convert_all", "amp_rewrite.placement.placing.place")
"""Examples that start processes, and take seconds."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in PROCESSES else name for name in PUBLIC],
)
def test_the_example_holds(name, monkeypatch, tmp_path):
    """Whoever looks something up finds an example, and sees what it prints."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestParser().get_doctest(PUBLIC[name].__doc__ or "", {}, name, None, 0)
    assert found.examples, "has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    said = []
    runner.run(found, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_the_examples_are_those_of_the_package():
    """There are as many as there are public names, and none is empty."""
    assert len(PUBLIC) > 80
    assert {name.partition(".")[0] for name in PUBLIC} == {"amp_rewrite"}
