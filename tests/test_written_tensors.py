"""Large tensors are proved while they are written, and read again only where that is worth nothing."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from amp_rewrite import Options, Pins, certify, rewrite
from amp_rewrite.certificate import stored_tensors
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.certificate.element_checks import WrittenTensors
from amp_rewrite.certificate.stored_tensors import Held
from amp_rewrite.certificate.tensors import Folder
from amp_rewrite.errors import CertificateError
from amp_rewrite.model.constants import ConvertedTensor
from tests import model_files, text

SIDE = 1 << 10
"""The rows and columns of a weight: 4 MiB, which are converted as they are written."""

ALL_HALF = Options(pins=Pins(force_half=("m0", "m1")))


@pytest.fixture
def source(tmp_path):
    """A model of two products whose weights are in a file, one of them beyond half's range in each block."""
    weights = np.random.default_rng(0).normal(0, 0.02, (2, SIDE, SIDE)).astype(np.float32)
    weights[1, :: SIDE // 4, 5:9] = [1e6, -1e6, np.inf, np.nan]
    model = text.model(
        f"""g (float[4,{SIDE}] v0) => (float[4,{SIDE}] v2)
        <float[{SIDE},{SIDE}] w0, float[{SIDE},{SIDE}] w1> {{
        [m0] v1 = MatMul (v0, w0) [m1] v2 = MatMul (v1, w1) }}""",
        {f"w{i}": weight for i, weight in enumerate(weights)},
    )
    model_files.save_external(model, tmp_path / "model.onnx", "weights")
    return tmp_path / "model.onnx"


@pytest.fixture
def read_whole(monkeypatch):
    """The sizes of the tensors that a proof reads from end to end."""
    sizes, checked = [], stored_tensors.check_parts

    def counting(check, old, new):
        sizes.append(old.size)
        return checked(check, old, new)

    monkeypatch.setattr(stored_tensors, "check_parts", counting)
    return sizes


def test_what_was_seen_while_it_was_written_is_not_read_again(source, read_whole):
    """And the certificate is that of a proof that reads all."""
    result = source.with_name("half.onnx")
    report = rewrite(source, ALL_HALF, output=result).report
    assert not read_whole
    again = certify(source, result)
    assert read_whole == [SIDE * SIDE, SIDE * SIDE]
    assert again.proved
    assert report.certificate == again
    assert again.licences == {Licence.OVERFLOWED: 8}


@pytest.fixture
def faulty(monkeypatch):
    """Makes the conversion of every tensor err in one bit of the element at a place."""
    convert = ConvertedTensor.__init__

    def at(place):
        def with_fault(self, tensor, conversion, dtype, name):
            convert(self, tensor, _faulty(conversion, tensor, place), dtype, name)

        monkeypatch.setattr(ConvertedTensor, "__init__", with_fault)

    return at


def _faulty(conversion, tensor, place):
    wrong = tensor.numpy().reshape(-1)[place]

    def convert(block):
        found = conversion(block).copy()
        found.view(np.uint16)[block == wrong] ^= 1
        return found

    return convert


@pytest.mark.parametrize("place", [0, 123_457, SIDE * SIDE - 1])
def test_a_conversion_that_errs_is_not_written(source, faulty, place):
    """One bit of one element, wherever it is, of a block for which more than one result would be right."""
    faulty(place)
    with pytest.raises(CertificateError, match=f"element {place:,} was"):
        rewrite(source, ALL_HALF, output=source.with_name("half.onnx"))
    assert not source.with_name("half.onnx").exists()


def test_where_one_result_is_right_it_is_what_is_written(source, faulty):
    """The conversion is not asked: its fault has no effect on weights that half holds."""
    faulty(123_457)
    result = source.with_name("half.onnx")
    rewrite(source, Options(pins=Pins(keep_full=("m1",))), output=result)
    stored, original = (text.stored(onnx.load(path)) for path in (result, source))
    (half,) = (array for array in stored.values() if array.dtype == np.float16)
    np.testing.assert_array_equal(half, original["w0"].astype(np.float16))


@pytest.mark.parametrize(("place", "is_sealed"), [(500_001, True), (0, False), (SIDE * SIDE - 1, False)])
def test_a_file_that_another_writes_to_is_read(source, monkeypatch, place, is_sealed):
    """An element that no spot check reads, once the file is complete; before that, where one does."""
    close = WrittenTensors.close

    def damaging(self, path):
        if is_sealed:
            close(self, path)
        with path.open("r+b") as file:
            file.seek(2 * place)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        if not is_sealed:
            close(self, path)

    monkeypatch.setattr(WrittenTensors, "close", damaging)
    with pytest.raises(CertificateError, match=f"element {place:,} was"):
        rewrite(source, output=source.with_name("half.onnx"))


def written(tmp_path, old, data_type, made, exponent=0):
    """Two tensors in files, of which the second was seen to be written from the first, in another type."""
    (tmp_path / "old").write_bytes(old.tobytes())
    before = held(tmp_path, "old", helper.np_dtype_to_tensor_dtype(old.dtype), old.size)
    seen = WrittenTensors()
    with (tmp_path / "new").open("w+b") as file:
        extent = stored_tensors.tensors.extent(before.tensor, before.folder)
        blocks, power = [old[:50], old[50:]], old.dtype.type(2.0**-exponent)
        seen.write(file, data_type, extent, blocks, lambda block: (block * power).astype(made), exponent)
    seen.close(tmp_path / "new")
    return before, held(tmp_path, "new", data_type, old.size, seen)


def held(tmp_path, name, data_type, size, seen=None, offset=0):
    """A tensor in a file."""
    tensor = TensorProto(name="w", dims=[size], data_type=data_type, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", name), ("offset", str(offset))):
        tensor.external_data.add(key=key, value=value)
    return Held(tensor, Folder.of(tmp_path / "model.onnx", seen))


def test_what_holds_of_all_blocks_counts_once(tmp_path, read_whole):
    """As where a tensor is read."""
    old = np.arange(100).astype(np.float16)
    both = written(tmp_path, old, TensorProto.FLOAT, np.float32)
    assert stored_tensors.compare(*both).uses == {Licence.WIDENED: 1}
    assert not read_whole


def test_what_was_rescaled_while_it_was_written_is_read_to_the_first_difference(tmp_path, read_whole):
    """Which tells the exponent for which it was checked."""
    before, after = written(tmp_path, np.arange(100, dtype=np.float32), TensorProto.FLOAT16, np.float16, 3)
    comparison = stored_tensors.compare(before, after)
    assert (comparison.problem, comparison.exponent, len(read_whole)) == ("", 3, 1)
    (tmp_path / "new").write_bytes(bytes(200))
    assert stored_tensors.compare(before, after).problem


@pytest.mark.parametrize("other", ["place", "type", "size", "source"])
def test_only_the_tensor_that_was_written_is_what_was_seen(tmp_path, read_whole, other):
    """From where it was read to where it was written, of the same type, and all of it."""
    old = np.arange(100, dtype=np.float32)
    before, after = written(tmp_path, old, TensorProto.FLOAT16, np.float16)
    seen = after.folder.written
    assert stored_tensors.compare(before, after).uses == Counter()
    assert not read_whole
    if other == "place":
        before, after = held(tmp_path, "old", 1, 99), held(tmp_path, "new", 10, 99, seen, offset=2)
    elif other == "type":
        after = held(tmp_path, "new", TensorProto.BFLOAT16, 100, seen)
    elif other == "size":
        before, after = held(tmp_path, "old", 1, 40), held(tmp_path, "new", 10, 40, seen)
    else:
        before = held(tmp_path, "old", 1, 100, offset=0)
        (tmp_path / "old").write_bytes((old + 1).tobytes())
    assert bool(stored_tensors.compare(before, after).problem) == (other != "size")
    assert read_whole
