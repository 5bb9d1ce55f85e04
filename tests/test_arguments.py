"""What a stranger gives to the Python API: taken where it is clear, else one line that names the argument."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_rewrite import lists
from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.half import BFLOAT16, FLOAT16
from amp_rewrite.options import Beside, Borders, ExternalData, Level, Options, Pins
from amp_rewrite.targets import ANY


def refusal(call, *arguments, **fields):
    """The one line of the error of ours that a call ends with."""
    with pytest.raises(AmpRewriteError) as caught:
        call(*arguments, **fields)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 300
    return line


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"half": "bfloat16"}, {"half": BFLOAT16}),
        ({"half": "Float16"}, {"half": FLOAT16}),
        ({"lists": "tensorflow"}, {"lists": lists.load("tensorflow")}),
        ({"target": "any"}, {"target": ANY}),
        ({"level": "unsafe-force-all"}, {"level": Level.UNSAFE_FORCE_ALL}),
        ({"borders": "half"}, {"borders": Borders.HALF}),
        ({"keep_io": "image"}, {"keep_io": ("image",)}),
        ({"keep_io": ["a", "b"]}, {"keep_io": ("a", "b")}),
        ({"external_data": "always"}, {"external_data": ExternalData(Beside.ALWAYS)}),
        ({"external_data": Beside.NEVER}, {"external_data": ExternalData(Beside.NEVER)}),
    ],
    ids=str,
)
def test_options_take_the_short_form(given, held):
    """Names and values stand for what they name, one text for a tuple of one, a list for a tuple."""
    assert Options(**given) == Options(**held)
    ((field, value),) = held.items()
    assert getattr(Options(**given), field) == value


def test_pins_and_external_data_take_the_short_form():
    """One pattern is a pattern and no string of characters; the word stands for the enum."""
    assert Pins(keep_full="head_.*").keep_full == ("head_.*",)
    assert Pins(force_half=["a", "b"]).force_half == ("a", "b")
    assert ExternalData("always", np.int64(5)) == ExternalData(Beside.ALWAYS, 5)


def test_a_list_may_be_a_path(tmp_path):
    """`lists` takes the path of a file, as text or as a Path."""
    file = tmp_path / "ours.yaml"
    file.write_text("name: ours\nallow:\n  MatMul: fast\n")
    for path in (file, str(file)):
        assert Options(lists=path).lists.name == "ours"


OPTIONS = [
    ({"half": "fp16"}, "Options.half: 'fp16' is not one of float16, bfloat16"),
    ({"half": np.float16}, "Options.half: the class float16 is not one of float16, bfloat16"),
    ({"half": onnx.TensorProto.FLOAT16}, "Options.half: 10 is not one of float16, bfloat16"),
    ({"half": ir.DataType.FLOAT16}, "Options.half: FLOAT16 is not one of float16, bfloat16"),
    ({"half": None}, "Options.half: None is not one of"),
    ({"borders": "x"}, "Options.borders: 'x' is not one of keep, half"),
    ({"borders": True}, "Options.borders: True is not one of keep, half"),
    ({"level": 2}, "Options.level: 2 is not one of default, tensor-cores-only"),
    ({"target": "cuda"}, "Options.target: 'cuda' is not one of onnxruntime-cuda, any"),
    ({"lists": ["MatMul"]}, "Options.lists: a list is no operator list; give an OpLists, one of"),
    ({"lists": ""}, "Options.lists: an empty text is no path"),
    ({"lists": "tensorflo"}, "tensorflo: there is no such list; did you mean tensorflow?"),
    ({"follow": "no"}, "Options.follow: 'no' is neither True nor False"),
    ({"check": None}, "Options.check: None is neither True nor False"),
    ({"metadata": 1}, "Options.metadata: 1 is neither True nor False"),
    ({"keep_functions": "all"}, "Options.keep_functions: 'all' is neither True nor False"),
    ({"pins": "head_.*"}, "Options.pins: 'head_.*' is no Pins; write Pins(keep_full="),
    ({"pins": {"keep_full": "a"}}, "Options.pins: a dict is no Pins"),
    ({"pins": Pins}, "Options.pins: the class Pins is no Pins"),
    ({"keep_io": None}, "Options.keep_io: None is not a text, or a list of texts"),
    ({"keep_io": ["a", 1]}, "Options.keep_io: 1 is no text"),
    ({"keep_io": {"a": 1}}, "Options.keep_io: a dict is not a text"),
    ({"external_data": True}, "Options.external_data: True is not one of auto, always, never"),
]


@pytest.mark.parametrize(("given", "line"), OPTIONS, ids=lambda value: str(value)[:40])
def test_options_name_the_field_that_is_wrong(given, line):
    """What is no value of a field is refused when it is given, by the field's name."""
    assert refusal(Options, **given).startswith(line)


@pytest.mark.parametrize(
    ("call", "given", "line"),
    [
        (Pins, {"keep_full": 5}, "Pins.keep_full: 5 is not a text, or a list of texts"),
        (Pins, {"force_half": [None]}, "Pins.force_half: None is no text"),
        (
            ExternalData,
            {"beside": "sometimes"},
            "ExternalData.beside: 'sometimes' is not one of auto, always",
        ),
        (ExternalData, {"largest": "2GB"}, "ExternalData.largest: '2GB' is no whole number from 1 up"),
        (ExternalData, {"largest": 0}, "ExternalData.largest: 0 is no whole number from 1 up"),
        (ExternalData, {"largest": 1e9}, "ExternalData.largest: 1000000000.0 is no whole number from 1 up"),
    ],
    ids=str,
)
def test_the_parts_of_options_name_their_fields(call, given, line):
    """Pins and ExternalData refuse what they cannot hold as Options do."""
    assert refusal(call, **given).startswith(line)


def test_a_path_object_is_no_text():
    """A Path where texts are meant is a slip."""
    assert refusal(Pins, Path("a")).startswith("Pins.keep_full: a PosixPath is not a text")
