import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from amp_rewrite import certify, pipeline
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.model.output_paths import WRITTEN
from amp_rewrite.numerics.half import BFLOAT16
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.options import IOTypes, Level, Options
from amp_rewrite.running.blame import blame
from amp_rewrite.running.sessions import Device
from tests import real_models
from tests.real_models import INDEX, MODELS
from tests.repairs import OnSamples, repaired
from tests.sampling import every
from tests.sessions import Runtime

if not INDEX:
    pytest.skip(real_models.MISSING, allow_module_level=True)

AT_MOST = 0.2
"""The relative L2 error that passes, in a runtime that computes half in float32: a loose bound."""

VARIANTS = {
    "tensorflow": Options(lists=operator_lists.load("tensorflow"), follow=False),
    "bfloat16": Options(half=BFLOAT16),
    "forced": Options(level=Level.UNSAFE_FORCE_ALL),
    "half-io": Options(io=IOTypes.HALF),
}
RUNTIME = Runtime()


@dataclass(frozen=True)
class Case:
    """A model of the index, whether its file `stays`, and a `result`, or an `error` of ours."""

    name: str
    entry: dict
    source: Path
    target: Path
    stays: bool
    result: pipeline.Result | None = None
    error: AmpRewriteError | None = None


def rewritten(entry, folder, asked):
    """What becomes of a model; errors that are not ours are not caught."""
    source, target = MODELS / entry["file"], folder / f"{entry['name']}.onnx"
    before, result, refused = digest(source), None, None
    try:
        result = pipeline.rewrite(source, asked, output=target)
    except AmpRewriteError as error:
        refused = error
    return Case(entry["name"], entry, source, target, digest(source) == before, result, refused)


def digest(path):
    """What identifies the content of a file."""
    return hashlib.sha256(path.read_bytes()).digest()


def name_of(entry):
    """What pytest calls a model."""
    return entry["name"] if isinstance(entry, dict) else None


@pytest.fixture(scope="module", params=every(4, INDEX, name_of))
def case(request, tmp_path_factory):
    """One model at the defaults, rewritten once for all tests of it."""
    return rewritten(request.param, tmp_path_factory.mktemp("models"), Options(check=False))


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    yield
    RUNTIME.close()


@functools.cache
def original(name):
    """The run of an original, once for all variants."""
    return RUNTIME.run(str(real_models.path(name)), real_models.feeds(name))


@functools.cache
def complaint(path):
    """What onnx's checker has against a file, in full; nothing if it is valid."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:
        return str(error)
    return ""


def borders(ran):
    """Names, types and shapes of inputs and outputs, as the session says."""
    return ran.inputs, ran.outputs


def test_only_errors_of_ours(case):
    """A model that runs is rewritten; any other is, or is refused in one line."""
    assert case.error is None or not case.entry["runs"]
    assert case.error is None or "\n" not in str(case.error)


def test_the_input_file_stays(case):
    """The file that was read is the same afterwards, byte for byte."""
    assert case.stays


def test_valid_where_the_original_is(case):
    """onnx's checker accepts, in full, whatever it accepted before."""
    if case.result is None or complaint(case.source):
        return
    assert not complaint(case.target)


def test_nothing_is_broken_by_our_own_account(case):
    """The report has nothing to say against the result."""
    assert case.result is None or case.result.report.ok


def test_it_is_proved(case):
    """From the two files alone: the result is the original but for precision."""
    assert case.result is None or unproved(case) == ""


def unproved(case):
    """What the certificate has against a result; nothing if it is proved."""
    found = certify(case.source, case.target)
    return "" if found.proved else str(found)


def test_twice_is_once(case):
    """A second rewrite changes nothing but the name of the source."""
    if case.result is None:
        return
    again = case.target.with_suffix(".again.onnx")
    pipeline.rewrite(case.target, Options(check=False), output=again)
    assert without_source(again) == without_source(case.target)


def without_source(path):
    """The model in a file, without the name of what it was made from."""
    proto = onnx.load(path, load_external_data=False)
    entries = [entry for entry in proto.metadata_props if entry.key != WRITTEN]
    del proto.metadata_props[:]
    proto.metadata_props.extend(entries)
    return proto


def test_loads_with_the_same_borders(case):
    """onnxruntime loads the result; inputs and outputs keep their names, types and shapes."""
    if not case.entry["runs"]:
        return
    before, after = original(case.name), RUNTIME.load(str(case.target))
    assert not before.failure
    assert not after.failure, after.failure
    assert borders(after) == borders(before)


def test_outputs_stay_close(case, record_property):
    """What is finite stays finite and close, in onnxruntime's CPU provider."""
    if not case.entry["runs"]:
        return
    before, after = original(case.name), RUNTIME.run(str(case.target), real_models.feeds(case.name))
    assert not after.failure, after.failure
    for name, error in errors(before.values, after.values):
        record_property(f"relative_l2:{name}", error)
        assert error <= AT_MOST, f"{name}: {error}"


@pytest.mark.slow
@pytest.mark.parametrize("entry", [entry for entry in INDEX if entry["runs"]], ids=name_of)
def test_nothing_finite_is_lost_under_emulation(entry, tmp_path):
    """As the command line does it: all that is finite stays so, and what is not close has a node to blame."""
    source, given = MODELS / entry["file"], real_models.feeds(entry["name"])
    proof = repaired(OnSamples(source, [given], tmp_path / "half.onnx"))
    assert not proof.verification.signature
    assert [output.name for output in proof.verification.outputs if output.metrics.non_finite] == []
    assert proof.verification.ok or blame(source, proof.result.model, given, device=Device.CPU).worst.node


def errors(before, after):
    """(name, relative L2 error) of each float32 output; infinite where finite no more."""
    for name, value in before.items():
        if not isinstance(value, np.ndarray) or value.dtype != np.float32:
            continue
        finite = np.isfinite(value)
        difference = after[name][finite].astype(np.float32) - value[finite]
        error = np.linalg.norm(difference) / max(np.linalg.norm(value[finite]), 1e-30)
        yield name, float(error) if np.isfinite(error) else np.inf


OTHERS = [variant for variant in VARIANTS if variant != "bfloat16"]
TURNS = [
    pytest.param(variant, entry, id=f"{variant}-{entry['name']}")
    for i, entry in enumerate(INDEX)
    for variant in ("bfloat16", OTHERS[i % len(OTHERS)])
]
"""Every model in bfloat16, and by one of the other variants in turn."""

UNSTABLE = {("forced", "onnxscript_nested_functions")}
"""Where a second rewrite goes on. The weight behind a norm of an input stays float32 where the norm is
forced into half, and once it is half the norm is not recognised any more.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "entry"), TURNS)
def test_variants_are_valid_and_load(variant, entry, tmp_path):
    """Other lists, bfloat16, all forced, half inputs and outputs: valid, proved, stable, and it loads."""
    case = rewritten(entry, tmp_path, VARIANTS[variant])
    assert case.error is None or not entry["runs"]
    if case.result is None:
        return
    assert case.result.report.ok, case.result.report.broken
    assert unproved(case) == ""
    again = tmp_path / "again.onnx"
    pipeline.rewrite(case.target, VARIANTS[variant], output=again)
    is_stable = without_source(again) == without_source(case.target)
    assert is_stable == ((variant, case.name) not in UNSTABLE)
    _loads(variant, case)


def _loads(variant, case):
    if not case.entry["runs"]:
        return
    after = RUNTIME.load(str(case.target))
    if variant == "bfloat16" and _lacks_kernel(after.failure):
        pytest.skip("onnxruntime's CPU provider lacks kernels for bfloat16")
    assert not after.failure, after.failure
    if variant != "half-io":
        assert borders(after) == borders(original(case.name))


def _lacks_kernel(failure):
    """Whether a kernel is missing, or an operator is expanded into such as have no bfloat16."""
    return "NOT_IMPLEMENTED" in failure or "tensor(bfloat16)" in failure
