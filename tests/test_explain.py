"""`amp-rewrite explain`: of a model, of its result without the original, of a plan without the model."""

import onnx
import pytest

from amp_rewrite import analyze, rewrite
from tests import text
from tests.commands import run

MODEL = """g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) {
  [product] a = MatMul (x, w) [exponential] e = Exp (a) [root] r = Sqrt (e) [second] y = MatMul (r, w) }"""


def told(*arguments):
    """What `explain` prints on standard output, in lines; on standard error, that it decided now, if so."""
    result = run("explain", *arguments)
    assert result.exit_code == 0, result.output
    assert not result.stderr or result.stderr.startswith("note     ")
    assert result.stderr.count("\n") <= 1
    return result.stdout.splitlines()


def test_damaged_metadata_is_a_warning(tmp_path):
    """What cannot be read is said in one line, and the model is analysed as it stands."""
    made = rewrite(text.model(MODEL)).model
    made.metadata_props[0].value = "[]"
    rewritten = tmp_path / "m.onnx"
    onnx.save(made, rewritten)
    result = run("explain", rewritten, "root")
    assert result.exit_code == 0
    line, decided = result.stderr.splitlines()
    assert line.startswith("warning  the decisions in its metadata are damaged")
    assert line.endswith("what follows is a new analysis")
    assert decided.startswith("note ")
    assert result.stdout.splitlines()[0] == "Sqrt 'root'"


@pytest.mark.parametrize(
    ("operator", "said"), [("MatMul", "fault of amp-rewrite's own"), ("MatMule", "is not a valid model")]
)
def test_who_is_blamed(tmp_path, monkeypatch, operator, said):
    """What fails in no way of ours is blamed on the model where onnx's checker refuses that as well."""

    def fails(*_):
        raise TypeError

    path = tmp_path / "model.onnx"
    onnx.save(text.unchecked(MODEL.replace("= MatMul (x", f"= {operator} (x")), path)
    monkeypatch.setattr("amp_rewrite.reporting.explanations.advise", fails)
    result = run("explain", path, "--show=advice")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.slow
def test_a_long_chain_is_explained_in_linear_time_and_space(tmp_path):
    """What holds back thousands of nodes is found, and a chain is told by its ends."""
    count = 2_000
    body = "".join(f"[n{i}] v{i + 1} = Sqrt(v{i})  " for i in range(count))
    path = tmp_path / "model.onnx"
    onnx.save(text.model(f"g (float[4] x) => (float[4] v{count}) {{ [e] v0 = Exp(x)  {body} }}"), path)
    assert told(path)[0] == f"{count + 1:,} nodes, 100% of FLOPs: downstream of Exp 'e'"
    lines = told(path, f"n{count - 1}")
    assert len(lines) < 30
    assert "more, down to" in lines[-4]
    assert "Exp 'e'" in lines[-3]
    assert lines[-2].startswith("  no flag frees any (tried: ")
    assert lines[-1] == f"  this node in float16 (not compared): --force-half n{count - 1}"


def test_origins():
    """The end of every chain is found at once, as `why` finds it one by one."""
    source = """g (float[4, 4] x) => (float[4, 4] y) {
      a = MatMul(x, x) b = Exp(a) c = Sqrt(b) d = Abs(c) f = Log(d) h = MatMul(f, x) y = Softmax(h) }"""
    found = analyze(text.model(source)).decisions()
    assert found.origins() == tuple(found.why(unit)[-1] for unit in range(len(found.all)))
