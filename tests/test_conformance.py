import warnings
from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases

from amp_rewrite import measure_coverage, pipeline
from amp_rewrite.options import Level, Options
from tests.sessions import Runtime

DEFAULTS = Options(check=False)
FORCED = Options(check=False, level=Level.UNSAFE_FORCE_ALL)
SAMPLE = 10
"""The default run takes one case in so many."""

CLOSE = 2e-2
"""Absolute and relative: half has 11 bits, and a case may add up a few hundred numbers."""


@dataclass(frozen=True)
class Case:
    """A case of the backend suite: a model, its bytes, and inputs by name."""

    name: str
    model: onnx.ModelProto
    data: bytes
    feeds: dict


@pytest.fixture(scope="module")
def cases():
    """Every node case that comes with onnx."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose while they are made
        return [_case(found) for found in collect_testcases(None)]


def _case(found):
    inputs = found.data_sets[0][0] if found.data_sets else ()
    names = [info.name for info in found.model.graph.input]
    feeds = dict(zip(names, inputs, strict=False))
    return Case(found.name, found.model, found.model.SerializeToString(), feeds)


@pytest.fixture(scope="module")
def runtime():
    """onnxruntime, out of reach of its crashes."""
    child = Runtime()
    yield child
    child.close()


def complaint(model):
    """What onnx's checker has against a model, in full; nothing if it is valid."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        return " ".join(str(error).split())[:200]
    return ""


def verdict(case, after):
    """What is wrong with a rewritten case, or nothing: onnx accepts it if it accepted the original."""
    complained = complaint(onnx.ModelProto.FromString(after))
    return complained if complained and not complaint(case.model) else ""


def test_a_sample_converts_and_stays_valid(cases):
    """One case in ten, at the defaults: no exception, and valid where the original was."""
    broken = {}
    for case in cases[::SAMPLE]:
        once = pipeline.rewrite(case.data, DEFAULTS).model
        broken[case.name] = verdict(case, once)
    assert not {name: wrong for name, wrong in broken.items() if wrong}


@pytest.mark.slow
def test_all_at_the_defaults(cases, runtime, capsys):
    """Every case is converted, valid, stable, loaded, and its outputs are close."""
    assert judged(cases, DEFAULTS, runtime, capsys) == {}


@pytest.mark.slow
def test_all_when_everything_is_forced(cases, runtime, capsys):
    """The same when everything that the types allow is made half, but for what cannot be."""
    assert judged(cases, FORCED, runtime, capsys) == {}


def judged(cases, asked, runtime, capsys):
    """The cases that fail, with what is wrong; prints how many came out how."""
    results = {case.name: judge(case, asked, runtime) for case in cases}
    counts = Counter(result.split(":")[0] for result in results.values())
    failures = {name: result for name, result in results.items() if not result.startswith(FINE)}
    with capsys.disabled():
        table = [f"{count:6} {result}" for result, count in counts.most_common()]
        print("", asked.level.value, *table, sep="\n")  # noqa: T201 - the table is what is asked for
        print(*(f"{name}: {result}" for name, result in failures.items()), sep="\n")  # noqa: T201
    return failures


FINE = ("unchanged", "good", "valid")
"""How a case may come out; `valid` is what onnxruntime's CPU provider cannot run in float32 either."""


def judge(case, asked, runtime):
    """One line on a case: how it came out, and after a colon what is wrong."""
    once = pipeline.rewrite(case.data, asked).model
    if once == case.data:
        return "unchanged"
    wrong = verdict(case, once)
    if wrong:
        return f"invalid: {wrong}"
    if pipeline.rewrite(once, asked).model != once:
        return "unstable: a second rewrite changes it again"
    before = runtime.run(case.data, case.feeds)
    return "valid, and float32 does not run" if before.failure else ran(case, once, before, runtime)


def ran(case, once, before, runtime):
    """The same for a case that runs in float32."""
    after = runtime.run(once, case.feeds)
    if after.failure:
        return f"fails: {after.failure[:200]}"
    if (after.inputs, after.outputs) != (before.inputs, before.outputs):
        return f"other borders: {after.inputs} {after.outputs}"
    far = [name for name, value in before.values.items() if not close(value, after.values[name])]
    return f"far: {far}" if far else "good"


def close(before, after):
    """Whether two outputs are near each other; what is no float array must be equal."""
    if isinstance(before, list):
        return all(map(close, before, after))
    if not isinstance(before, np.ndarray) or before.dtype.kind != "f":
        return np.array_equal(before, after)
    return np.allclose(after, before, rtol=CLOSE, atol=CLOSE, equal_nan=True)


@pytest.mark.slow
def test_every_case_is_counted(cases):
    """Coverage knows no case that it fails on, and counts each node of it once."""
    for case in cases:
        found = measure_coverage(case.model)
        assert found.nodes.total == sum(row.nodes.total for row in found.rows) == len(found.parts), case.name
