"""The benchmark for a GPU, tried on the CPU: every network converts, is valid, and stays close in half."""

import json
import sys
from pathlib import Path

import onnx
import pytest

from amp_rewrite import pipeline
from amp_rewrite.running import latency, sessions, verification
from amp_rewrite.running.sessions import Device

FOLDER = Path(__file__).parents[1] / "benchmarks"
NETWORKS = ("resnet50", "mobilenet", "bert", "gpt2", "gpt2_past", "vit", "unet", "lstm")


@pytest.fixture(scope="module")
def modules():
    """The modules of the benchmark, imported as its script imports them."""
    pytest.importorskip("onnxruntime")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FOLDER))
        import gpu  # noqa: PLC0415 - it is no package, and its folder is known to nobody else
        import kernels  # noqa: PLC0415
        import networks  # noqa: PLC0415
        import peers  # noqa: PLC0415

        yield {"gpu": gpu, "kernels": kernels, "networks": networks, "peers": peers}
    for name in ("gpu", "kernels", "networks", "peers", "layers"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_valid_and_close_in_half(modules, name):
    """Each that the issue asks for is valid in full, is the same every time, is rewritten to something valid,
    and is close under emulation.
    """
    assert tuple(modules["networks"].RECIPES) == NETWORKS
    network = modules["networks"].make(name, small=True)
    again = modules["networks"].make(name, small=True)
    assert network.model == again.model
    assert all((network.feeds[name] == again.feeds[name]).all() for name in network.feeds)
    onnx.checker.check_model(network.model, full_check=True)
    result = pipeline.rewrite(network.model)
    assert result.report.ok
    assert result.report.nodes.half > result.report.nodes.full
    verdict = verification.verify(network.model, result.model, [network.feeds], device=Device.CPU)
    assert verdict.ok, verdict


# ---- kernels


def test_the_kernel_table_is_what_the_page_describes(modules, tmp_path, monkeypatch):
    """A kernel a line, with the fields of docs/gpu.md; CPU kernels of Relu take float32. A crash of the child
    is an error, and not our end.
    """
    path = tmp_path / "results" / "kernels.json"
    count = modules["kernels"].write(path)
    table = json.loads(path.read_text())
    assert len(table["kernels"]) == count > 500
    fields = {"provider", "domain", "operator", "since", "until", "types"}
    assert all(kernel.keys() == fields for kernel in table["kernels"])
    relu = [kernel for kernel in table["kernels"] if kernel["operator"] == "Relu" and not kernel["domain"]]
    assert any(kernel["types"]["T"] == ["tensor(float)"] for kernel in relu)
    assert all(kernel["until"] is None or kernel["until"] >= kernel["since"] for kernel in relu)
    monkeypatch.setattr(modules["kernels"], "_CHILD", "import os; os.abort()")
    with pytest.raises(RuntimeError, match="cannot list its kernels"):
        modules["kernels"].kernels()


def kernel(operator, until=None, provider="CUDAExecutionProvider", domain="", **types):
    """A kernel of a table, with bare names of types."""
    kinds = {name: [f"tensor({kind})" for kind in text.split()] for name, text in types.items()}
    where = {"provider": provider, "domain": domain, "operator": operator}
    return {**where, "since": 13, "until": until, "types": kinds}


def test_condensing_keeps_what_decides(modules, tmp_path):
    """Only CUDA's kernels for floats are kept, each combination of types once, in one line an operator."""
    kernels = [
        kernel("MatMul", T="float"),
        kernel("MatMul", T="float16"),
        kernel("MatMul", T="float16"),
        kernel("MatMul", until=13, T="float double"),
        kernel("MatMul", provider="CPUExecutionProvider", T="bfloat16"),
        kernel("Shape", T="int64"),
        kernel("Skip", domain="com.microsoft", T="float16", U="float", I="int64"),
    ]
    source, path = tmp_path / "table.json", tmp_path / "cuda.json"
    source.write_text(json.dumps({"onnxruntime": "1.0", "kernels": kernels}))
    assert modules["kernels"].write_condensed(source, path) == 2
    condensed = json.loads(path.read_text())
    assert (condensed["onnxruntime"], condensed["provider"]) == ("1.0", "CUDAExecutionProvider")
    assert condensed["operators"] == {
        "MatMul": [
            {"since": 13, "until": None, "types": [{"T": ["float"]}, {"T": ["float16"]}]},
            {"since": 13, "until": 13, "types": [{"T": ["float"]}]},
        ],
        "com.microsoft:Skip": [{"since": 13, "until": None, "types": [{"T": ["float16"], "U": ["float"]}]}],
    }
    assert len(path.read_text().splitlines()) == 4


# ---- peers


def test_a_peer_that_is_not_there_or_fails_says_why(modules, tmp_path):
    """Environments are those that somebody made; a failure is the last line of an error, or lack of time."""
    peers = modules["peers"]
    assert peers.convert(peers.AUTOCAST, tmp_path / "m.onnx", None, 1.0).failure == "not installed"
    assert peers.python_of(peers.OURS, None) == Path(sys.executable)
    python = tmp_path / "modelopt_autocast" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert peers.python_of(peers.AUTOCAST, tmp_path) == python
    assert peers.python_of(peers.CONVERTER_COMMON, tmp_path) is None
    failing = peers.Peer("failing", "", "raise ValueError('cannot')")
    assert peers.convert(failing, tmp_path / "m.onnx", None, 60.0).failure == "ValueError: cannot"
    sleeping = peers.Peer("sleeping", "", "time.sleep(60)")
    assert "no result in" in peers.convert(sleeping, tmp_path / "m.onnx", None, 0.1).failure


# ---- the script


def rows_of(modules, path, *flags):
    """The rows that a short run writes, by network and model."""
    modules["gpu"].main(["--small", "--seconds", "0", "--json", str(path), *flags])
    return {(row["network"], row["model"]): row for row in json.loads(path.read_text())["rows"]}


@pytest.mark.slow
def test_the_script_runs_without_a_gpu(modules, tmp_path, capsys):
    """Networks have rows for float32, for us, and for onnxruntime's converter; one table comes last."""
    path, kernels = tmp_path / "g.json", tmp_path / "k.json"
    some = [word for name in ("gpt2_past", "lstm") for word in ("--network", name)]
    rows = rows_of(modules, path, "--provider", "cpu", *some, "--kernels", str(kernels))
    made = json.loads(path.read_text())
    assert made["small"] is True
    assert {"date", "device", "onnxruntime", "python"} <= made.keys()
    assert len({network for network, _ in rows}) == 2
    for (_, model), row in rows.items():
        assert not model.startswith("amp-rewrite") or (row["problem"] == "" and row["p50"] > 0)
        assert model != "amp-rewrite" or (row["error"] <= 1e-2 and row["lost"] == 0)
    assert json.loads(kernels.read_text())["kernels"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("LSTM")


@pytest.mark.slow
def test_the_path_for_cuda_runs(modules, monkeypatch, tmp_path):
    """With the CPU in CUDA's place, all columns are filled: TF32, emulation, nodes on the CPU."""
    bind = latency.bind
    monkeypatch.setattr(sessions, "check_device", lambda _: Device.CUDA)
    monkeypatch.setattr(sessions, "providers", lambda *_, **__: ["CPUExecutionProvider"])
    monkeypatch.setattr(latency, "bind", lambda session, arrays, _: bind(session, arrays, Device.CPU))
    rows = {model: row for (_, model), row in rows_of(modules, tmp_path / "g", "--network", "unet").items()}
    ours = rows["amp-rewrite"]
    assert rows["float32, TF32"]["error"] == 0
    assert 0 < ours["emulation"] < 1e-2
    assert ours["faster_tf32"] > 0
    assert ours["on_cpu"] > 0


def test_no_time_left_is_said(modules, tmp_path):
    """A network that would begin too late has a row that says so."""
    rows = rows_of(modules, tmp_path / "g.json", "--provider", "cpu", "--minutes", "0")
    assert {row["problem"] for row in rows.values()} == {"skipped: no time left"}
