"""onnx in a process of its own."""

import os
import sys

import onnx
import pytest

from amp_rewrite import apart, apart_child, rewrite

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
VALID = onnx.parser.parse_model(
    f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relu (x) }}"
).SerializeToString()
DEADLY = [
    """g (float[2,2,2] x, int64[2,1] i) => (float[2,2] y) {
      w = Constant <value = float[2,2] {1, 2, 3, 4}> () h = MatMul (x, w)
      y = GatherND <batch_dims = -100> (h, i)
    }""",
    """g (float[2,2] x, float[2] s) => (float[2,2] y) {
      w = Constant <value = float[2,2] {1, 2, 3, 4}> () h = MatMul (x, w)
      y, m, d = LayerNormalization <axis = 2147483648> (h, s)
    }""",
]
deadly = pytest.mark.parametrize("body", DEADLY, ids=["GatherND", "LayerNormalization"])


def model(body):
    """A model that kills whoever infers its shapes."""
    return onnx.parser.parse_model(f"{HEADER} {body}")


@deadly
def test_a_question_that_kills_has_no_answer_and_the_next_one_has(body):
    """The process dies alone, and another one takes its place."""
    assert apart.ask(apart_child.complaint, model(body).SerializeToString(), full=True) is None
    assert apart.ask(apart_child.complaint, VALID, full=True) == ""


@deadly
def test_a_model_that_kills_the_checker_is_rewritten_with_a_warning(body):
    """The checker dies of the original as well: a word about it, and the result is there."""
    result = rewrite(model(body))
    assert result.report.changed
    assert result.report.warnings == ("onnx's checker refuses this model: onnx's checker crashed",)
    assert not result.report.broken


def test_what_the_checker_says_arrives():
    """A complaint crosses over as text, and a path does as a path."""
    unknown = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Relue (x) }}")
    assert "Relue" in apart.ask(apart_child.complaint, unknown.SerializeToString(), full=True)
    assert "/no/such/file" in apart.ask(apart_child.complaint, "/no/such/file", full=True)


def test_one_process_answers_all():
    """It starts once, ahead of the first question where that is asked for."""
    apart.start()
    first = apart._APART._process.pid
    for _ in range(3):
        assert apart.ask(apart_child.complaint, VALID, full=True) == ""
    apart.start()
    assert apart._APART._process.pid == first != os.getpid()


def test_a_process_that_somebody_ended_is_replaced():
    """That it is gone is no answer to the next question."""
    apart.start()
    apart._APART._process.kill()
    apart._APART._process.wait()
    assert apart.ask(apart_child.complaint, VALID, full=True) == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads, from Python 3.12 on
def test_a_fork_asks_a_process_of_its_own():
    """Two that share a pipe would get each other's answers."""
    apart.start()
    child = os.fork()
    if not child:
        before = apart._APART._process.pid
        found = apart.ask(apart_child.complaint, VALID, full=True)
        ours = apart._APART._process.pid
        apart._APART.end()
        os._exit(0 if found == "" and ours != before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert apart.ask(apart_child.complaint, VALID, full=True) == ""


@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_where_no_process_starts_ours_answers(executable, monkeypatch):
    """An interpreter inside another program has no file that could be started."""
    apart._APART.end()
    monkeypatch.setattr(sys, "executable", executable)
    apart.start()
    assert apart.ask(apart_child.complaint, VALID, full=True) == ""
    assert apart._APART._process is None


def test_an_interrupt_leaves_no_answer_behind(monkeypatch):
    """Who is interrupted while waiting does not get that answer to the next question."""

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(apart.pickle, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            apart.ask(apart_child.complaint, b"no model", full=True)
    assert apart.ask(apart_child.complaint, VALID, full=True) == ""
