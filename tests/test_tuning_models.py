"""The search for a plan on real models."""

import pytest

import amp_rewrite
from amp_rewrite.analysis import flows
from amp_rewrite.policy.options import Options, Pins

pytest.importorskip("onnxruntime")
from amp_rewrite.running.blame import blame
from amp_rewrite.running.sessions import Device
from amp_rewrite.tuning.tune import tune
from tests import real_models

if not real_models.INDEX:
    pytest.skip(real_models.MISSING, allow_module_level=True)
PINS = 3


@pytest.fixture(scope="module")
def basic_pitch():
    """The path of a model whose front end half takes too far off, and a sample."""
    return shared("basic_pitch_nmp")


def shared(name):
    """The path of a shared model, and a sample."""
    return real_models.path(name), real_models.feeds(name)


@pytest.mark.slow
def test_a_search_mends_what_single_pins_do_not(basic_pitch, tmp_path, monkeypatch):
    """Pins in the order of blame leave the error far above the target; the search keeps the front end.

    The rule that keeps such front ends is switched off for it.
    """
    monkeypatch.setattr(flows, "check", lambda *_: {})
    path, sample = basic_pitch
    kept, errors = (), []
    for _ in range(PINS):
        pins = Options(pins=Pins(keep_full=kept))
        result = amp_rewrite.rewrite(path, pins, output=tmp_path / "pinned.onnx").model
        errors.append(amp_rewrite.verify(path, result, sample, device="cpu").error)
        kept += blame(path, result, sample, device=Device.CPU).keep_full
    assert min(errors) > 1e-2
    found = tune(path, sample, max_error=1e-3, prefer="flops", budget=300)
    assert found.is_met
    assert found.verdict.error <= 1e-3
    assert found.runs <= found.sites / 2
    assert len(found.kept) > 50
    result = amp_rewrite.rewrite(path, output=tmp_path / "tuned.onnx", replay=found.plan).model
    assert amp_rewrite.measure_coverage(result).flops.share >= 0.9


@pytest.mark.slow
def test_a_search_for_less_takes_what_the_first_one_left():
    """Where a plan fails when it is confirmed, all searches together take half as many runs as sites."""
    path, sample = shared("stories260k_past.dynamo")
    found = tune(path, sample, max_error=1e-3, prefer="flops", budget=300)
    assert found.is_met
    assert found.runs <= found.sites / 2
