"""`amp-rewrite certify`, and the proof that every rewrite makes of its own result."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir
import pytest
from onnx import TensorProto

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate.certificate import Certificate
from amp_rewrite.demo import network
from amp_rewrite.errors import CertificateError, ModelError
from amp_rewrite.rewriting import result_checks
from tests import text
from tests.commands import failure, run


def test_a_result_that_no_runtime_takes_is_warned_of(tmp_path):
    """A Cast to the other half type computes the same but for precision, and what reads it wants one type."""
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(network(), paths[0])
    made = rewrite(network()).model
    cast = next(node for node in made.graph.node if node.op_type == "Cast")
    cast.attribute[0].i = TensorProto.BFLOAT16
    onnx.save(made, paths[1])
    done = run("certify", *paths)
    assert done.exit_code == 0
    assert "warning  onnx's checker rejects the result: " in done.stdout


WIDE = "g (float[4,256] x) => (float[4,256] y) <float[256,256] w> { h = MatMul (x, w) y = Relu (h) }"


@pytest.fixture
def wide(tmp_path):
    """A model that becomes half."""
    onnx.save(text.model(WIDE), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_the_main_job_proves_its_result(wide, tmp_path):
    """The report and its JSON say what was proved."""
    told = tmp_path / "r.json"
    done = run(wide, "-o", tmp_path / "out.onnx", "--skip=verify", "-v", "--json", told)
    assert "proof    proved equal but for precision\n" in done.stdout
    assert json.loads(told.read_text())["certificate"]["nodes"] == 2


def test_what_is_not_proved_is_not_written(wide, tmp_path, monkeypatch):
    """One line, exit code 2, and no file; --skip certify writes it, and an older file stays as it was."""
    out = tmp_path / "out.onnx"
    out.write_bytes(b"old")

    def only_itself(original, rewritten, **_):
        return Certificate(original == rewritten, 0, problem="they differ")

    monkeypatch.setattr(result_checks, "certify", only_itself)
    line = failure(wide, "-o", out, "--force", "--skip=verify")
    assert "not proved equal: they differ; please report this fault" in line
    assert "--skip certify writes it all the same" in line
    assert out.read_bytes() == b"old"
    assert run(wide, "-o", out, "--force", "--skip=verify", "--skip=certify").exit_code == 0
    assert certify(wide, out).proved
    with pytest.raises(CertificateError, match="not proved"):
        rewrite(wide.read_bytes(), Options(certify=True))


KINDS = {
    "path": str,
    "bytes": Path.read_bytes,
    "proto": onnx.load,
    "ir": onnx_ir.load,
    "graphsurgeon": lambda path: pytest.importorskip("onnx_graphsurgeon").import_onnx(onnx.load(path)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_certify_as_an_option(wide, tmp_path, kind):
    """From Python, a model of any kind is proved, unless that is not asked for."""
    source = KINDS[kind](wide)
    given = {"output": tmp_path / "out.onnx"} if kind == "path" else {}
    assert rewrite(source, **given).report.certificate.proved
    assert rewrite(source, Options(certify=False), **given).report.certificate is None


def test_a_model_in_memory_is_proved_with_its_weights_in_files(wide, tmp_path):
    """onnx-ir tells where they lie; where they lie in several folders, nothing is proved."""
    onnx.save(onnx.load(wide), wide, save_as_external_data=True, location="w.bin", size_threshold=0)
    found = rewrite(onnx_ir.load(wide)).report
    assert found.changed
    assert found.certificate.proved
    model, folder = onnx_ir.load(wide), tmp_path / "other"
    folder.mkdir()
    (folder / "v.bin").write_bytes(bytes(4))
    shape, kind = onnx_ir.Shape([1]), onnx_ir.DataType.FLOAT
    other = onnx_ir.ExternalTensor("v.bin", 0, 4, kind, shape=shape, name="v", base_dir=folder)
    model.graph.register_initializer(onnx_ir.Value(name="v", const_value=other))
    assert not rewrite(model).report.certificate.proved


def test_what_cannot_be_proved_equal_to_itself_is_written(wide, tmp_path, monkeypatch):
    """A model that the certificate does not understand says nothing of its rewrite; the report says so."""
    monkeypatch.setattr(
        result_checks, "certify", lambda *_, **__: Certificate(False, 0, problem="what is this")
    )
    out = tmp_path / "out.onnx"
    done = run(wide, "-o", out, "--skip=verify", "-v")
    assert done.exit_code == 0
    assert "proof    none: the model is not even proved equal to itself (what is this)" in done.stdout
    assert out.exists()


def test_external_data_is_proved_where_it_lies(wide, tmp_path):
    """Weights in files beside both models are read from there, of the result before it is in place."""
    onnx.save(onnx.load(wide), wide, save_as_external_data=True, location="w.bin", size_threshold=0)
    done = run(wide, "-o", tmp_path / "out.onnx", "--skip=verify", "-v")
    assert "proof    proved equal but for precision" in done.stdout
    link = tmp_path / "elsewhere" / "link.onnx"
    link.parent.mkdir()
    link.symlink_to(wide)
    (link.parent / "w.bin").symlink_to(tmp_path / "w.bin")
    assert certify(link, tmp_path / "out.onnx").proved


@pytest.mark.parametrize(("words", "kind"), [("Sub (a, x)", CertificateError), ("Sub (a)", ModelError)])
def test_what_is_not_proved_of_an_invalid_model_is_no_fault_of_ours(words, kind):
    """It is said what is wrong with the model; of a valid one, that it is to be reported."""
    original = text.unchecked(f"g (float[2] x) => (float[2] y) {{ a = Neg (x) y = {words} }}")
    with pytest.raises(kind) as raised, result_checks.blaming(lambda: original):
        raise CertificateError("the result is not proved", remedy="please report this")
    assert ("report" in str(raised.value)) == (kind is CertificateError)
