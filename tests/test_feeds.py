"""Inputs read from files, and the flags for them."""

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from amp_rewrite.errors import FeedError
from tests.commands import every
from tests.real_models import INDEX, MODELS
from tests.sessions import Runtime
from tests.text import model

pytest.importorskip("onnxruntime")
from amp_rewrite.cli.flags import command
from amp_rewrite.cli.records import Inputs
from amp_rewrite.running.inputs.feeds import Data, feeds

RUNTIME = Runtime()
TWO = "g (float[batch, 3] x, int64[2] n) => (float[batch, 3] y, int64[2] m) { y = Relu (x) m = Neg (n) }"
X, N = np.ones((4, 3), np.float32), np.array([1, 2])


def given(path, text=TWO):
    """The samples at a path, for a model in ONNX text."""
    return list(feeds(model(text), Data((path,))))


@pytest.fixture
def saved(tmp_path):
    """A function that saves arrays in an .npz and returns its path."""

    def save(name="sample.npz", **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    return save


def save_data_set(folder, *protos):
    """Writes an ONNX test data set with these inputs, and an output."""
    folder.mkdir()
    for i, proto in enumerate(protos):
        (folder / f"input_{i}.pb").write_bytes(proto.SerializeToString())
    (folder / "output_0.pb").write_bytes(numpy_helper.from_array(X).SerializeToString())


def refusal(path, text=TWO):
    """The error message for the samples at a path."""
    with pytest.raises(FeedError) as caught:
        given(path, text)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


# --- where samples lie


def test_an_npz_is_one_sample(saved):
    """Its arrays are the inputs, by name. An invalid second sample does not prevent reading the first."""
    samples = feeds(model(TWO), Data((saved(x=X, n=N), saved("bad.npz", x=X))))
    sample = next(samples)
    assert sample.keys() == {"x", "n"}
    np.testing.assert_array_equal(sample["x"], X)
    with pytest.raises(FeedError, match="input 'n' is missing"):
        next(samples)


def test_sequences_and_optionals_in_a_data_set(tmp_path):
    """A sequence is read as a list, an optional as its tensor or as None."""
    text = "g (seq(float[2]) s, optional(float[2]) o) => (bool y) { y = OptionalHasElement (o) }"
    proto = parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    pair, one = [np.zeros(2, np.float32), np.ones(2, np.float32)], np.ones(2, np.float32)
    for name, held in (("a", one), ("b", None)):
        optional = numpy_helper.from_optional(held, dtype=onnx.OptionalProto.TENSOR if held is None else None)
        save_data_set(tmp_path / name, numpy_helper.from_list(pair), optional)
        (sample,) = feeds(proto, Data((tmp_path / name,)))
        np.testing.assert_array_equal(sample["s"], pair)
        assert sample["o"] is None if held is None else (sample["o"] == one).all()


# --- what fits


@pytest.mark.parametrize("version", [3, 8])
def test_weights_that_are_listed_as_inputs(saved, version):
    """In IR 3 they cannot be given; from IR 4 on they can be given or omitted."""
    proto = model("g (float[2, 3] x) => (float[2, 4] y) <float[3, 4] w> { y = MatMul (x, w) }")
    proto.ir_version = version
    proto.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 4]))
    x, w = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    assert next(feeds(proto, Data((saved("x.npz", x=x),)))).keys() == {"x"}
    both = feeds(proto, Data((saved("both.npz", x=x, w=w),)))
    if version == 3:
        with pytest.raises(FeedError, match="no input 'w'"):
            next(both)
    else:
        assert next(both).keys() == {"x", "w"}


# --- flags


@command(Inputs)
def show(data):
    """A command that prints the parsed flags."""
    click.echo(repr((data.paths, dict(data.dims), data.seed, data.samples)))


def test_flags_say_where_inputs_come_from(tmp_path):
    """`--dim` takes a symbol or an input and its axis; names may contain colons and equals signs."""
    asked = ["--dim", "batch=4", "--dim", "x:0:1=2", "--dim", "a=b=3", "--seed", "7", "--samples", "2"]
    assert CliRunner().invoke(show, asked).output == "((), {'batch': 4, 'x:0:1': 2, 'a=b': 3}, 7, 2)\n"
    assert CliRunner().invoke(show, []).output == "((), {}, 0, 1)\n"
    files = CliRunner().invoke(show, ["--data", "a.npz", "--data", str(tmp_path)]).output
    assert "a.npz" in files
    assert str(tmp_path) in files


# --- real data


WITH_DATA = [each["file"] for each in INDEX if each["runs"] and each["feeds"] != "index"]


@pytest.mark.parametrize("file", every(4, WITH_DATA))
def test_real_samples_are_read(file):
    """The samples that come with a model fit it, and run."""
    path = MODELS / file
    (sample,) = feeds(path, Data((path.parent,)))
    assert not RUNTIME.run(str(path), dict(sample)).failure
