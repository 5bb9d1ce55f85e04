"""Inputs read from files, and the flags for them."""

import click
import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from amp_rewrite.errors import FeedError
from tests.real_models import INDEX, MODELS
from tests.sampling import every
from tests.sessions import Runtime
from tests.text import model

pytest.importorskip("onnxruntime")
from amp_rewrite.cli.input_flags import input_flags
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
    """Its arrays are the inputs, by name."""
    (sample,) = given(saved(x=X, n=N))
    assert sample.keys() == {"x", "n"}
    np.testing.assert_array_equal(sample["x"], X)


def test_a_directory_of_npz_is_a_sample_each(saved, tmp_path):
    """In the order of their names, with numbers by value."""
    for i in (10, 2, 1):
        saved(f"s{i}.npz", x=X * i, n=N)
    assert [sample["x"][0, 0] for sample in given(tmp_path)] == [1, 2, 10]


def test_a_test_data_set_follows_the_model_s_order(tmp_path):
    """input_0.pb is the first input, whatever name is in it; outputs are not read."""
    folder = tmp_path / "test_data_set_0"
    save_data_set(folder, numpy_helper.from_array(X, "n"), numpy_helper.from_array(N, "odd"))
    (sample,) = given(folder)
    np.testing.assert_array_equal(sample["x"], X)
    np.testing.assert_array_equal(sample["n"], N)


def test_a_directory_of_test_data_sets(tmp_path):
    """A folder with several data sets has a sample each; ten comes after two."""
    for i in (10, 2):
        x, n = numpy_helper.from_array(X * i), numpy_helper.from_array(N)
        save_data_set(tmp_path / f"test_data_set_{i}", x, n)
    assert [sample["x"][0, 0] for sample in given(tmp_path)] == [2, 10]


def test_a_data_set_without_inputs(tmp_path):
    """The data set of a model without inputs has outputs only."""
    save_data_set(tmp_path / "test_data_set_0")
    text = "g () => (float[2] y) { y = Constant <value_floats = [1.0, 2.0]> () }"
    assert given(tmp_path / "test_data_set_0", text) == [{}]


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


def test_samples_are_read_one_at_a_time(saved):
    """An invalid second sample does not prevent reading the first."""
    good, bad = saved("good.npz", x=X, n=N), saved("bad.npz", x=X)
    samples = feeds(model(TWO), Data((good, bad)))
    np.testing.assert_array_equal(next(samples)["x"], X)
    with pytest.raises(FeedError, match="input 'n' is missing"):
        next(samples)


@pytest.mark.parametrize("name", ["nothing", "nothing.npz", "empty", "other.txt"])
def test_paths_that_hold_no_samples(tmp_path, name):
    """Missing, empty and other paths are refused before anything runs."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.txt").write_text("1 2 3")
    with pytest.raises(FeedError, match=r"give an \.npz file, a directory of them, or an ONNX test_data_set"):
        feeds(model(TWO), Data((tmp_path / name,)))


# --- what fits


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.float64([0.1, 1e-30]), "float"),
        (np.float16([0.5, 2]), "float"),
        (np.float32([0.5, np.nan]), "float16"),
        (np.int32([1, -2]), "int64"),
        (np.int64([1, 255]), "uint8"),
        (np.array([0.5, 2], ml_dtypes.bfloat16), "bfloat16"),
    ],
)
def test_numbers_are_converted_to_the_declared_type(saved, array, wanted):
    """If no number changes, and from float64 to float32 also with rounding."""
    text = f"g ({wanted}[2] x) => ({wanted}[2] y) {{ y = Identity (x) }}"
    (sample,) = given(saved(x=array), text)
    assert sample["x"].dtype.name == {"float": "float32"}.get(wanted, wanted)
    np.testing.assert_allclose(sample["x"].astype(float), array.astype(float), rtol=1e-6)


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.float32([0.1, 1]), "float16"),
        (np.float64([0.1, 1]), "float16"),
        (np.int64([1, 256]), "uint8"),
        (np.int64([1, 2]), "float"),
        (np.float32([1, 2]), "int64"),
        (np.array([True, False]), "int64"),
        (np.array(["a", "b"]), "float"),
        (np.int64([1, 2]), "string"),
    ],
)
def test_numbers_that_would_change_are_refused(saved, array, wanted):
    """Numbers of another category or out of range are refused; both types are named."""
    text = f"g ({wanted}[2] x) => ({wanted}[2] y) {{ y = Identity (x) }}"
    said = refusal(saved(x=array), text)
    shown = {"float": "float32"}.get(wanted, wanted)
    assert f"input 'x' is {shown}[2], but {array.dtype}[2] was given" in said


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X}, "input 'n' is missing; add it, as int64[2]"),
        ({"x": X, "n": N, "z": N}, "the model has no input 'z'; it has x, n"),
        ({"x": X[0], "n": N}, "input 'x' is float32[batch,3], but float32[3] was given"),
        ({"x": X[:, :2], "n": N}, "input 'x' is float32[batch,3], but float32[4,2] was given"),
    ],
)
def test_what_does_not_fit_says_why(saved, arrays, said):
    """For missing and unknown inputs and other shapes, one line names the file and both sides."""
    path = saved(**arrays)
    assert refusal(path).startswith(f"{path}: {said}")


def test_pickled_arrays_are_refused(saved):
    """Python objects in an .npz are not loaded: unpickling could run code."""
    assert "holds Python objects" in refusal(saved(x=np.array([{}], object), n=N))


def test_files_that_are_damaged_are_refused(tmp_path):
    """An .npz that is not an archive, and a truncated tensor."""
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    assert "cannot be read" in refusal(tmp_path / "bad.npz")
    save_data_set(tmp_path / "test_data_set_0", numpy_helper.from_array(X), numpy_helper.from_array(N))
    (tmp_path / "test_data_set_0" / "input_1.pb").write_bytes(b"\x08")
    assert "input 'n' cannot be read" in refusal(tmp_path / "test_data_set_0")


def test_a_data_set_with_too_many_inputs(tmp_path):
    """It is refused, since it belongs to another model."""
    tensor = numpy_helper.from_array(N)
    save_data_set(tmp_path / "test_data_set_0", tensor, tensor, tensor)
    assert "has 3 inputs, and the model has 2" in refusal(tmp_path / "test_data_set_0")


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


@click.command()
@input_flags
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
