"""Stored tensors, processed in blocks."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from amp_rewrite.certificate import element_checks
from amp_rewrite.certificate.certificate import Licence
from amp_rewrite.errors import ModelError
from amp_rewrite.model import constants
from amp_rewrite.numerics import rounding
from amp_rewrite.numerics.half import FLOAT16, fit
from tests.test_rounding import HALVES

ROOT = Path(__file__).parents[1]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of five values, tasks of ten, and small tensors of up to four."""
    monkeypatch.setattr(constants, "_SMALL", 4)
    monkeypatch.setattr(constants, "CHUNK", 5)
    monkeypatch.setattr(constants, "_SPAN", 10)


def tensors(array, folder):
    """The array as a tensor in memory, and as an external tensor at an offset."""
    (folder / "data").write_bytes(b"other" + array.tobytes())
    lies = ir.ExternalTensor(
        folder / "data", 5, array.nbytes, ir.DataType.FLOAT, shape=ir.Shape(array.shape), name="w"
    )
    return [ir.Tensor(array, name="w"), lies]


SHAPES = [(0,), (), (1,), (5,), (7, 3), (2, 5, 10)]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_are_the_whole(shape, tmp_path):
    """Reading, checking and converting in blocks gives the same as with the whole tensor."""
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * np.float32(1e-4)
    for tensor in tensors(array, tmp_path):
        parts = [block.copy() for block in constants.read(tensor)]
        assert max((part.size for part in parts), default=0) <= 5
        np.testing.assert_array_equal(np.concatenate([np.empty(0, np.float32), *parts]), array.reshape(-1))
        assert constants.fits([tensor], FLOAT16) == [fit(array, FLOAT16)]
        changed = constants.ConvertedTensor(
            tensor, lambda a: a.astype(np.float16), ir.DataType.FLOAT16, "half"
        )
        with (tmp_path / "written").open("wb") as file:
            changed.tofile(file)
        expected = array.astype(np.float16)
        assert (tmp_path / "written").read_bytes() == changed.tobytes() == expected.tobytes()
        np.testing.assert_array_equal(changed.numpy(), expected)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_halves_are_read_as_well(half, tmp_path):
    """Half tensors can be read and widened, as emulation does."""
    kind = ir.DataType[half.upper()]
    array = np.arange(7, dtype=np.float32).astype(kind.numpy())
    (tmp_path / "data").write_bytes(array.tobytes())
    lies = ir.ExternalTensor(tmp_path / "data", 0, 14, kind, shape=ir.Shape((7,)), name="w")
    wide = constants.ConvertedTensor(lies, lambda a: a.astype(np.float32), ir.DataType.FLOAT, "w")
    np.testing.assert_array_equal(wide.numpy(), np.arange(7))


def test_a_file_that_is_gone(tmp_path):
    """The error names the tensor."""
    _, lies = tensors(np.ones(3, np.float32), tmp_path)
    (tmp_path / "data").unlink()
    with pytest.raises(ModelError, match="the data of 'w' cannot be read"):
        list(constants.read(lies))


PEAK = """
import pathlib, re, sys
sys.path.insert(0, "benchmarks")
import size
from amp_rewrite.cli import main
source = pathlib.Path(sys.argv[1])
size.build(size.layouts(float(sys.argv[2]))["huge"], source)
pathlib.Path("/proc/self/clear_refs").write_text("5")
main([str(source), "--skip=verify", "-q"], standalone_mode=False)
print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux keeps the high-water mark")
def test_memory_does_not_grow_with_the_weights(tmp_path):
    """A model of 768 MiB of weights, in tensors of 256, takes as much memory as one of 96 MiB."""
    peaks = []
    for name, gib in (("small", 0.09375), ("large", 0.75)):
        command = [sys.executable, "-c", PEAK, tmp_path / f"{name}.onnx", str(gib)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(re.findall(r"\d+", done.stdout)[-1]) >> 10)
    assert peaks[1] < peaks[0] + 64, f"peaks in MiB: {peaks}"


# ---- blocks of a large value are compared with what they are rounded to, bit by bit

LARGE = rounding.LARGE


def numbers(size, seed=0):
    """Numbers of all magnitudes of half."""
    random = np.random.default_rng(seed)
    return (random.normal(0, 1, size) * 2.0 ** random.integers(-26, 12, size)).astype(np.float32)


def bits(array):
    """The bits of an array of halves."""
    return array.view(np.uint16)


@HALVES
@pytest.mark.parametrize("size", [4 * LARGE, 4 * LARGE - 1, 7, 0])
def test_any_wrong_bit_of_any_block_is_found(kind, size):
    """Wherever it is."""
    check, old = element_checks.between(1, int(kind.dtype)), numbers(size)
    new = rounding.convert(old, kind)
    assert check(old, new, Counter()) is None
    for place in {0, size // 2, size - 3, size - 1} & set(range(size)):
        for bit in (1, 1 << 9, 1 << 15):
            bits(new)[place] ^= bit
            assert check(old, new, Counter()) == place
            bits(new)[place] ^= bit
            assert check(old, new, Counter()) is None


@HALVES
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4e38, -3.4e38])
def test_what_is_not_finite_is_counted_in_a_block(kind, value):
    """As infinite where the original is finite, and not where it is not; and may not become finite. All
    others are below 2 and of the same sign.
    """
    old, uses = np.copysign(numbers(LARGE) / np.float32(1 << 14), np.float32(value)), Counter()
    old[LARGE // 2] = value
    new = rounding.convert(old, kind)
    check = element_checks.between(1, int(kind.dtype))
    assert check(old, new, uses) is None
    assert uses[Licence.OVERFLOWED] == np.isfinite(value)
    bits(new)[LARGE // 2] = 1
    assert check(old, new, Counter()) == LARGE // 2
