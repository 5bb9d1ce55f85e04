import functools

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
from tests.commands import every
from tests.conformance import judging
from tests.real_models import INDEX, MODELS
from tests.repairs import OnSamples, repaired
from tests.sessions import Runtime

if not INDEX:
    pytest.skip(real_models.MISSING, allow_module_level=True)

AT_MOST = 0.2
"""The relative L2 error that passes, in a runtime that computes half in float32: a loose bound."""

VARIANTS = {
    "defaults": Options(check=False),
    "tensorflow": Options(lists=operator_lists.load("tensorflow"), follow=False),
    "bfloat16": Options(half=BFLOAT16),
    "forced": Options(level=Level.UNSAFE_FORCE_ALL),
    "half-io": Options(io=IOTypes.HALF),
}
RUNTIME = Runtime()
complaint = functools.cache(judging.complaint)


@pytest.fixture(scope="module", autouse=True)
def _runtime():
    yield
    RUNTIME.close()


@functools.cache
def original(name):
    """The run of an original, once for all variants."""
    return RUNTIME.run(str(real_models.path(name)), real_models.feeds(name))


def without_source(path):
    """The model in a file, without the name of what it was made from."""
    proto = onnx.load(path, load_external_data=False)
    entries = [entry for entry in proto.metadata_props if entry.key != WRITTEN]
    del proto.metadata_props[:]
    proto.metadata_props.extend(entries)
    return proto


def faults(entry, variant, folder):
    """What is wrong with a rewrite of a file of the index: nothing, or a line for each. A model that runs is
    rewritten; any other is, or is refused in one line. Errors that are not ours are not caught.
    """
    source, target, again = MODELS / entry["file"], folder / f"{entry['name']}.onnx", folder / "again.onnx"
    before = source.read_bytes()
    try:
        result = pipeline.rewrite(source, VARIANTS[variant], output=target)
    except AmpRewriteError as error:
        if entry["runs"] or "\n" in str(error):
            yield f"refused: {error}"
        return
    if source.read_bytes() != before:
        yield "the file that was read is another"
    if complaint(str(target)) and not complaint(str(source)):
        yield f"not valid: {complaint(str(target))}"
    yield from result.report.broken
    proof = certify(source, target)
    if not proof.proved:
        yield f"not proved: {proof}"
    pipeline.rewrite(target, VARIANTS[variant], output=again)
    if (without_source(again) == without_source(target)) is ((variant, entry["name"]) in UNSTABLE):
        yield "a second rewrite changes more, or less, than the name of the source"
    if entry["runs"]:
        yield from _faults_of_a_run(entry["name"], variant, target)


def _faults_of_a_run(name, variant, target):
    """What is wrong in onnxruntime's CPU provider: borders at other types than before, or values far off."""
    before, feeds = original(name), real_models.feeds(name)
    after = RUNTIME.run(str(target), feeds) if variant == "defaults" else RUNTIME.load(str(target))
    if after.failure:
        if variant != "bfloat16" or not _lacks_kernel(after.failure):
            yield after.failure
        return
    if variant != "half-io" and (after.inputs, after.outputs) != (before.inputs, before.outputs):
        yield f"other inputs and outputs: {after.inputs} {after.outputs}"
    for output, error in errors(before.values, after.values) if after.values else ():
        if error > AT_MOST:
            yield f"{output}: {error}"


def _lacks_kernel(failure):
    """Whether a kernel is missing, or an operator is expanded into such as have no bfloat16."""
    return "NOT_IMPLEMENTED" in failure or "tensor(bfloat16)" in failure


def errors(before, after):
    """(name, relative L2 error) of each float32 output; infinite where finite no more."""
    for name, value in before.items():
        if not isinstance(value, np.ndarray) or value.dtype != np.float32:
            continue
        finite = np.isfinite(value)
        difference = after[name][finite].astype(np.float32) - value[finite]
        error = np.linalg.norm(difference) / max(np.linalg.norm(value[finite]), 1e-30)
        yield name, float(error) if np.isfinite(error) else np.inf


def name_of(entry):
    """What pytest calls a model."""
    return entry["name"] if isinstance(entry, dict) else None


@pytest.mark.parametrize("entry", every(4, INDEX, name_of))
def test_a_model_at_the_defaults(entry, tmp_path):
    """Valid, proved, stable, loaded with the same borders, and close; the file that was read stays."""
    assert not original(entry["name"]).failure or not entry["runs"]
    assert list(faults(entry, "defaults", tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("entry", [entry for entry in INDEX if entry["runs"]], ids=name_of)
def test_nothing_finite_is_lost_under_emulation(entry, tmp_path):
    """As the command line does it: all that is finite stays so, and what is not close has a node to blame."""
    source, given = MODELS / entry["file"], real_models.feeds(entry["name"])
    proof = repaired(OnSamples(source, [given], tmp_path / "half.onnx"))
    assert not proof.verification.signature
    assert [output.name for output in proof.verification.outputs if output.metrics.non_finite] == []
    assert proof.verification.ok or blame(source, proof.result.model, given, device=Device.CPU).worst.node


OTHERS = [variant for variant in VARIANTS if variant not in ("bfloat16", "defaults")]
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
    assert list(faults(entry, variant, tmp_path)) == []
