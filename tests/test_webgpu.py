"""`--provider webgpu`: real half judges, and one line says what is missing where it cannot."""

import json
import sys

import numpy as np
import onnx
import pytest
from onnx import parser

import amp_rewrite
from amp_rewrite import Options, verify
from amp_rewrite.errors import AmpRewriteError, ModelError, RunError
from amp_rewrite.running import run_arguments, sessions, webgpu, witness_sessions
from amp_rewrite.running.blame import blame
from amp_rewrite.running.sessions import Device
from tests.commands import run
from tests.witness import needs_witness

SQUARE = """
<ir_version: 8, opset_import: ["": 17]>
g (float[2, 8] x) => (float[2, 8] y)
  <float small = {0.001}>
{
  [square] s = Mul (x, x)
  [shrink] y = Mul (s, small)
}
"""
PRODUCT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[8, 8] x) => (float[8, 8] y) { y = MatMul (x, x) }
"""
LARGE = {"x": np.full((2, 8), 300, np.float32)}
FORCED = Options(level="unsafe-force-all")


@pytest.fixture(autouse=True)
def _needs_onnxruntime():
    pytest.importorskip("onnxruntime")


@pytest.fixture
def model(tmp_path):
    """A model whose square overflows half at 300, in a file."""
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(SQUARE), path)
    return path


@pytest.fixture
def large(tmp_path):
    """Its inputs, in a file."""
    np.savez(tmp_path / "large.npz", **LARGE)
    return tmp_path / "large.npz"


def no_package(monkeypatch):
    """A machine without the package of the provider."""
    monkeypatch.setattr(webgpu, "_registered", lambda _: [])
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", None)


def no_adapter(monkeypatch):
    """A machine where the provider finds nothing to run on."""

    def refuse(*_):
        raise ModelError("onnxruntime refuses the model (No supported adapters)")

    monkeypatch.setattr(sessions, "open_session", refuse)


def no_half(monkeypatch):
    """An adapter without shaderFloat16, as the provider answers for one."""

    def refuse(*_, **__):
        raise RunError("the run failed (Program Mul requires f16 but the device does not support it.)")

    monkeypatch.setattr(webgpu, "select", lambda *_: None)
    monkeypatch.setattr(sessions, "run_session", refuse)


def wider(monkeypatch):
    """An adapter that does not overflow."""
    monkeypatch.setattr(webgpu, "select", lambda *_: None)  # the CPU provider, which hides overflow


MISSING = {
    no_package: "running a model on WebGPU needs the package onnxruntime-ep-webgpu; install it with: pip",
    no_adapter: "WebGPU finds no adapter here, neither a GPU nor software; install Mesa 25 or newer",
    no_half: "the WebGPU adapter here has no half arithmetic (shaderFloat16); choose another one with VK_ICD",
    wider: "the WebGPU adapter here computes half in a wider type, and proves nothing; install Mesa 25",
}


@pytest.fixture
def afresh():
    """What was found of an adapter is forgotten before and after."""
    witness_sessions.require.cache_clear()
    yield
    witness_sessions.require.cache_clear()


@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize(
    ("missing", "command"),
    [
        (no_package, "{model} -o {folder}/out.onnx"),
        (no_package, "bench {model}"),
        *((missing, "verify {model} {model}") for missing in MISSING),
    ],
    ids=lambda value: getattr(value, "__name__", None) or value.split()[0],
)
def test_what_is_missing_is_one_line_and_exit_code_2(missing, command, model, monkeypatch):
    """Each line says what would help; nothing is written before."""
    missing(monkeypatch)
    asked = (part.format(model=model, folder=model.parent) for part in command.split())
    result = run(*asked, "--provider", "webgpu")
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"amp-rewrite: {MISSING[missing]}")
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


@pytest.mark.usefixtures("afresh")
def test_python_gets_the_same_errors(model, monkeypatch):
    """`verify` and `observe` raise what the command prints."""
    no_package(monkeypatch)
    for call in (
        lambda: verify(model, model, LARGE, device="webgpu"),
        lambda: run_arguments.device("WEBGPU"),
    ):
        with pytest.raises(AmpRewriteError, match="needs the package onnxruntime-ep-webgpu"):
            call()


CRASHES = "import os; os.kill(os.getpid(), 11)"


def test_a_provider_that_crashes_fails_the_comparison_alone(model, monkeypatch):
    """The command ends with a verdict, and says what became of the rewritten model."""
    monkeypatch.setattr(witness_sessions, "require", lambda: None)
    monkeypatch.setattr(witness_sessions, "_CODE", CRASHES)
    result = run("verify", model, model, "--provider", "webgpu")
    assert result.exit_code == 1, result.output
    assert "onnxruntime's WebGPU provider crashes on the model (SIGSEGV)" in result.output


def test_the_emulating_cpu_is_named_in_the_verdict(model):
    """The JSON of a verdict says which witness judged."""
    found = verify(model, model, LARGE, device="cpu")
    assert found.to_json()["witness"] == "CPU"


class TestWitness:
    @pytest.fixture(autouse=True)
    def _needs_witness(self):
        needs_witness()

    def test_overflow_is_seen_and_blamed(self, model, large, tmp_path):
        """A square beyond half fails the verdict, which names the witness and the node."""
        half = tmp_path / "half.onnx"
        amp_rewrite.rewrite(model, FORCED, output=half)
        result = run(
            "verify", model, half, "--data", large, "-v", "--provider", "webgpu", "--json", tmp_path / "v"
        )
        assert result.exit_code == 1, result.output
        assert "half on WebGPU" in result.output
        assert "square" in result.output
        found = json.loads((tmp_path / "v").read_text())
        assert found["witness"] == "WebGPU"
        assert found["outputs"][0]["metrics"]["non_finite"] == 16
        assert found["blame"]["first_lost"]["node"] == "square"

    def test_blame_runs_on_the_witness(self, model, tmp_path):
        """The values that are compared are those that WebGPU computes."""
        half = amp_rewrite.rewrite(model, FORCED, output=tmp_path / "half.onnx").model
        assert blame(model, half, LARGE, device=Device.WEBGPU).first_lost.node == "square"

    def test_the_comparison_after_a_rewrite_names_it(self, tmp_path):
        """The report's line of the comparison, and its JSON."""
        path = tmp_path / "product.onnx"
        onnx.save(parser.parse_model(PRODUCT), path)
        result = run(path, "-o", tmp_path / "o.onnx", "-v", "--provider", "webgpu", "--json", tmp_path / "r")
        assert result.exit_code == 0, result.output
        assert "float32 on the CPU against half on WebGPU, 3 of 3 nodes there" in result.output
        assert json.loads((tmp_path / "r").read_text())["verification"]["witness"] == "WebGPU"

    def test_bench_says_where_nodes_ran(self, model, tmp_path):
        """Nodes on the CPU are counted beside WebGPU as beside CUDA."""
        asked = ("--rounds", "1", "--warmup", "0", "--provider", "webgpu", "--json", tmp_path / "b")
        result = run("bench", model, *asked)
        assert result.exit_code == 0, result.output
        assert "on WebGPU" in result.output
        found = json.loads((tmp_path / "b").read_text())
        assert found["provider"] == "WebGPU"
        assert found["models"][0]["on_cpu"] == 0
