"""What a stranger gives to the Python API: taken where it is clear, else one line that names the argument."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_rewrite
from amp_rewrite import AmpPass, demo
from amp_rewrite.cli.flag_builders import Choice
from amp_rewrite.errors import FeedError, ModelError, OptionError, OutputError
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.options import Beside, ExternalData, IOTypes, Level, Options, Pins
from amp_rewrite.policy.targets import ANY
from amp_rewrite.rewriting import plan_files
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.tolerances import Tolerances
from amp_rewrite.testing import assert_coverage
from tests.labels import label
from tests.refusals import refusal

ARRAY_WITH_MORE = 'samples[0]["image"]: is an array with a mask or with fields'
WANTED = "samples[0]: input 'image' is float32[batch,3,32,32], but"


class Tensor:
    """An array of another library."""


class ONNXProgram:
    """What PyTorch's exporter returns."""

    model = None


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"half": "bfloat16"}, {"half": BFLOAT16}),
        ({"half": "Float16"}, {"half": FLOAT16}),
        ({"lists": "tensorflow"}, {"lists": operator_lists.load("tensorflow")}),
        ({"target": "any"}, {"target": ANY}),
        ({"level": "unsafe-force-all"}, {"level": Level.UNSAFE_FORCE_ALL}),
        ({"io": "half"}, {"io": IOTypes.HALF}),
        ({"keep_io": "image"}, {"keep_io": ("image",)}),
        ({"keep_io": ["a", "b"]}, {"keep_io": ("a", "b")}),
        ({"external_data": "always"}, {"external_data": ExternalData(Beside.ALWAYS)}),
        ({"external_data": Beside.NEVER}, {"external_data": ExternalData(Beside.NEVER)}),
    ],
    ids=label,
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
    assert Options(check=np.bool_(False)).check is False


def test_options_are_copied_and_changed_like_any_dataclass():
    """`replace` takes the short forms too; copies and pickles are equal."""
    asked = replace(Options(follow=False), half="bfloat16", keep_io="x")
    assert asked == Options(half=BFLOAT16, follow=False, keep_io=("x",))
    assert copy.deepcopy(asked) == pickle.loads(pickle.dumps(asked)) == asked
    with pytest.raises(FrozenInstanceError):
        asked.half = FLOAT16


def test_a_list_may_be_a_path(tmp_path):
    """`lists` takes the path of a file, as text or as a Path."""
    file = tmp_path / "ours.yaml"
    file.write_text("name: ours\nallow:\n  MatMul: fast\n")
    for path in (file, str(file)):
        assert Options(lists=path).lists.name == "ours"


OPTIONS = [
    # another name of a choice is known, and what is near to none is not guessed at
    ({"half": "flaot16"}, "Options.half: 'flaot16' is not one of float16, bfloat16; did you mean float16?\n"),
    ({"half": "int8"}, "Options.half: 'int8' is not one of float16, bfloat16\n"),
    ({"half": "float8"}, "Options.half: 'float8' is not one of float16, bfloat16\n"),
    ({"half": np.float16}, "Options.half: the class float16 is not one of float16, bfloat16"),
    ({"half": onnx.TensorProto.FLOAT16}, "Options.half: 10 is not one of float16, bfloat16"),
    ({"half": ir.DataType.FLOAT16}, "Options.half: FLOAT16 is not one of float16, bfloat16"),
    ({"half": None}, "Options.half: None is not one of"),
    ({"io": "x"}, "Options.io: 'x' is not one of keep, half"),
    ({"io": "keeep"}, "Options.io: 'keeep' is not one of keep, half, state; did you mean keep?\n"),
    ({"io": True}, "Options.io: True is not one of keep, half"),
    ({"level": 2}, "Options.level: 2 is not one of default, tensor-cores-only"),
    (
        {"target": "coreml"},
        "Options.target: 'coreml' is not one of onnxruntime-cuda, onnxruntime-webgpu, tensorrt, any",
    ),
    (
        {"lists": ["MatMul"]},
        "Options.lists: list is not an operator list; give an OpLists (amp_rew",
    ),
    ({"lists": ""}, "Options.lists: '' is not an operator list"),
    ({"lists": "tensorflo"}, "tensorflo: there is no such list; did you mean tensorflow?"),
    ({"follow": "no"}, "Options.follow: 'no' is neither True nor False"),
    ({"check": None}, "Options.check: None is neither True nor False"),
    ({"metadata": 1}, "Options.metadata: 1 is neither True nor False"),
    ({"keep_functions": "all"}, "Options.keep_functions: 'all' is neither True nor False"),
    ({"pins": "head_.*"}, "Options.pins: 'head_.*' is not of type Pins; write Pins(keep_full="),
    ({"pins": {"keep_full": "a"}}, "Options.pins: dict is not of type Pins"),
    ({"pins": Pins}, "Options.pins: the class Pins is not of type Pins"),
    ({"keep_io": None}, "Options.keep_io: None is not a string, or a list of strings"),
    ({"keep_io": ["a", 1]}, "Options.keep_io: 1 is not a string"),
    ({"keep_io": {"a": 1}}, "Options.keep_io: dict is not a string"),
    ({"external_data": True}, "Options.external_data: True is not one of auto, always, never"),
    # the command line takes 2GB: who writes that in Python reads what to write instead
    (
        {"external_data": "2GB"},
        "Options.external_data: '2GB' is not one of auto, always, never; for a size, give ExternalData(l",
    ),
]
"""What is given, and how the line begins; with a line end, all of it."""


@pytest.mark.parametrize(
    ("field", "words", "name"),
    [
        ("half", "fp16 FP16 f16 half", "float16"),
        ("half", "bf16 BF16 bfp16", "bfloat16"),
        ("target", "trt TRT", "tensorrt"),
        ("target", "cuda gpu ort onnxruntime", "onnxruntime-cuda"),
        ("target", "webgpu web", "onnxruntime-webgpu"),
        ("io", "half HALF", "half"),  # its own name comes first
    ],
)
def test_other_names_are_understood(field, words, name):
    """In Python, and by the flag of the command line."""
    own = getattr(Options(**{field: name}), field)
    assert all(getattr(Options(**{field: word}), field) is own for word in words.split())
    kind = Choice([name], case_sensitive=False)
    assert {kind.convert(word, None, None) for word in words.split()} == {name}


@pytest.mark.parametrize(("given", "line"), OPTIONS, ids=label)
def test_options_name_the_field_that_is_wrong(given, line):
    """What is no value of a field is refused when it is given, by the field's name."""
    assert f"{refusal(Options, **given)}\n".startswith(line)


@pytest.mark.parametrize(
    ("call", "given", "line"),
    [
        (Pins, {"keep_full": 5}, "Pins.keep_full: 5 is not a string, or a list of strings"),
        (Pins, {"force_half": [None]}, "Pins.force_half: None is not a string"),
        (
            ExternalData,
            {"beside": "sometimes"},
            "ExternalData.beside: 'sometimes' is not one of auto",
        ),
        (ExternalData, {"largest": "2GB"}, "ExternalData.largest: '2GB' is not an integer of at least 1"),
        (ExternalData, {"largest": 0}, "ExternalData.largest: 0 is not an integer of at least 1"),
        (
            ExternalData,
            {"largest": 1e9},
            "ExternalData.largest: 1000000000.0 is not an integer of at least 1",
        ),
        (
            Tolerances,
            {"relative_l2": "0.01"},
            "Tolerances.relative_l2: '0.01' is not a number; give a number, or",
        ),
        (Tolerances, {"relative_l2": -1}, "Tolerances.relative_l2: -1 is not from 0 to inf"),
        (Tolerances, {"max_abs": float("nan")}, "Tolerances.max_abs: nan is not from 0 to inf"),
        (Tolerances, {"non_finite": 0.5}, "Tolerances.non_finite: 0.5 is not an integer of at least 0"),
        (Tolerances, {"top1": 99}, "Tolerances.top1: 99 is not from 0 to 1"),
        (Data, {"paths": 5}, "Data.paths: 5 is not a path, or a list of paths"),
        (Data, {"paths": [b"in.npz"]}, "Data.paths: b'in.npz' is not a path"),
        (Data, {"dims": {"batch": "4"}}, "Data.dims[\"batch\"]: '4' is not an integer of at least 0"),
        (Data, {"dims": [("batch", 4)]}, 'Data.dims: list is not a mapping; write it as in {"batch": 4}'),
        (Data, {"seed": -1}, "Data.seed: -1 is not an integer of at least 0"),
        (Data, {"samples": 0}, "Data.samples: 0 is not an integer of at least 1"),
        # numbers of NumPy are shown as numbers, without their type
        (Tolerances, {"relative_l2": np.float32("nan")}, "Tolerances.relative_l2: nan is"),
        (ExternalData, {"largest": np.int64(-5)}, "ExternalData.largest: -5 is"),
        (plan_files.load, {"path": 3}, "path: 3 is not a path"),
        (operator_lists.load, {"name_or_path": 3}, "name_or_path: 3 is not a path"),
    ],
    ids=label,
)
def test_other_dataclasses_name_their_fields(call, given, line):
    """What users construct besides Options refuses what it cannot hold as Options do."""
    assert refusal(call, **given).startswith(line)


def test_a_path_object_is_no_text():
    """A Path where texts are meant is a slip."""
    assert refusal(Pins, Path("a")).startswith("Pins.keep_full: PosixPath is not a string")


MODEL = demo.network()
IMAGE = demo.feeds()["image"]

REWRITE = [
    ({"options": {"half": "bfloat16"}}, "options: dict is not of type Options; write Options(...)"),
    ({"options": "bfloat16"}, "options: 'bfloat16' is not of type Options"),
    ({"options": Pins("a")}, "options: Pins is not of type Options"),
    ({"options": Options}, "options: the class Options is not of type Options"),
    (
        {"observed": [1]},
        "observed: list is not a mapping; write it as in observed=amp_rewrite.observe(model, samples)",
    ),
    ({"observed": True}, "observed: True is not a mapping"),
    (
        {"observed": {"image": IMAGE}},
        'observed["image"]: ndarray is not of type Extremes; give what amp_rewrite.observe ret',
    ),
    (
        {"imprecise_outputs": ["y"]},
        'imprecise_outputs: list is not a mapping; write it as in imprecise_outputs={"waveform": 0.07}',
    ),
    (
        {"imprecise_outputs": {"y": "0.1"}},
        "imprecise_outputs[\"y\"]: '0.1' is not a number from 0 up; give the error of rounding",
    ),
    ({"imprecise_outputs": {"y": -0.1}}, 'imprecise_outputs["y"]: -0.1 is not a number from 0 up'),
    (
        {"imprecise_outputs": {"image": 0.1}},
        "imprecise_outputs: the model has no output 'image'; name its outputs",
    ),
    (
        {"replay": "plan.json"},
        "replay: 'plan.json' is not of type SavedPlan; read a saved plan with amp_rewrite.load_plan",
    ),
    ({"replay": {}}, "replay: dict is not of type SavedPlan"),
    ({"progress": True}, "progress: True is not callable"),
]


@pytest.mark.parametrize("call", [amp_rewrite.rewrite, amp_rewrite.analyze])
@pytest.mark.parametrize(("given", "line"), REWRITE, ids=label)
def test_rewrite_and_analyze_name_the_argument(call, given, line):
    """What is of another type than an argument takes is an OptionError that names the argument."""
    assert refusal(call, MODEL, **given).startswith(line)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"on_plan": "plan.json"}, "on_plan: 'plan.json' is not callable"),
        ({"in_place": "yes"}, "in_place: 'yes' is neither True nor False"),
        ({"in_place": True}, "in_place is for a path; other models are returned"),
        ({"output": "x.onnx"}, "output is for a path; other models are returned"),
    ],
    ids=label,
)
def test_rewrite_of_a_model_in_memory_names_the_argument(given, line):
    """Where nothing is written, a place to write is refused and not passed over."""
    assert refusal(amp_rewrite.rewrite, MODEL, **given).startswith(line)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (5, "output: 5 is not a path"),
        ("", "output: '' is not a path"),
        (b"x.onnx", "output: b'x.onnx' is not a path"),
        (True, "output: True is not a path"),
        ("a\0b.onnx", "output: 'a\\x00b.onnx' has a character that is not valid in a path"),
        ("a" * 5000, "output: 'aaaaaaaaaaaa...aaaaaaaaaaaaa' is longer than a path can be"),
    ],
)
def test_an_output_that_is_no_path_is_refused(output, line):
    """`output` takes a path; nothing is looked up or written before that is known."""
    assert refusal(amp_rewrite.rewrite, "m.onnx", output=output).startswith(line)


@pytest.mark.parametrize("output", [".", "/", "", "a\0b", "x" * 5000])
def test_no_place_for_a_result(tmp_path, output):
    """It is refused before anything is written."""
    (tmp_path / "m.onnx").write_bytes(MODEL.SerializeToString())
    with pytest.raises((OutputError, OptionError)):
        amp_rewrite.rewrite(tmp_path / "m.onnx", output=output)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    "model", [None, 5, [], "", ".", "/", Path(), b"", b"junk", bytearray(b"x"), MODEL.graph], ids=label
)
@pytest.mark.parametrize(
    "call",
    [
        amp_rewrite.rewrite,
        amp_rewrite.analyze,
        amp_rewrite.emulate,
        amp_rewrite.measure_coverage,
        assert_coverage,
        lambda model: feeds.feeds(model, Data()),
        lambda model: amp_rewrite.observe(model, demo.feeds()),
    ],
)
def test_what_is_no_model_is_a_model_error(call, model):
    """Whatever is given in the place of a model, one line says that it is none; of a folder, what to name."""
    with pytest.raises(ModelError) as caught:
        call(model)
    assert isinstance(model, (str, Path, bytes)) or "give a path, bytes, a ModelProto" in str(caught.value)
    assert model != "." or str(caught.value) == ".: is a folder; name the model in it"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"dims": {"batch": "4"}}, "dims[\"batch\"]: '4' is not an integer of at least 0"),
        ({"dims": {"batch": -4}}, 'dims["batch"]: -4 is not an integer of at least 0'),
        ({"dims": {"batch": 2.5}}, 'dims["batch"]: 2.5 is not an integer of at least 0'),
        ({"dims": {"batch": 10**30}}, 'dims["batch"]: is larger than any dimension'),
        ({"dims": [1]}, 'dims: list is not a mapping; write it as in {"batch": 4}'),
        ({"dims": "batch=4"}, "dims: 'batch=4' is not a mapping"),
        ({"dims": {3: 4}}, "dims: the key 3 is not a string"),
        ({"dims": {"btach": 4}}, "the model has no open dimension 'btach'; did you mean batch?"),
    ],
    ids=label,
)
def test_coverage_names_the_dimension(given, line):
    """A size that is none, or of a dimension that is not open, is refused by name, by both calls."""
    assert refusal(amp_rewrite.measure_coverage, MODEL, **given).startswith(line)
    assert refusal(assert_coverage, MODEL, **given).startswith(line)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        # an assertion that asserts nothing would always hold; sizes alone are no rule
        *(
            (given, "no rule was given; give one, such as min_flops=0.95")
            for given in ({}, {"require": {}}, {"forbid_half": ()}, {"dims": {}})
        ),
        ({"min_flops": "0.95"}, "min_flops '0.95' is not a share; write a share from 0 to 1"),
        ({"min_nodes": True}, "min_nodes True is not a share"),
        ({"min_weights": 95}, "min_weights 95 is not a share"),
        ({"require": "MatMul"}, "require: 'MatMul' is not a mapping; write it as in {\"MatMul\": 1.0}"),
        ({"require": ["MatMul"]}, "require: list is not a mapping"),
        ({"require": {"MatMul": "all"}}, "MatMul 'all' is not a share"),
        ({"require": {"MatMul": None}}, "MatMul None is not a share"),
        ({"forbid_half": 5}, "forbid_half: 5 is not a string, or a list of strings"),
        ({"forbid_half": [5]}, "forbid_half: 5 is not a string"),
        ({"forbid_half": "Sotfmax"}, "no operator is called Sotfmax; did you mean Softmax?"),
        ({"max_casts": "3"}, "max_casts: '3' is not an integer of at least 0"),
        ({"max_casts": -1}, "max_casts: -1 is not an integer of at least 0"),
        ({"baseline": 5}, "baseline: 5 is not a path"),
        ({"baseline": {"flops": 0.9}}, "baseline: dict is not a path"),
    ],
    ids=label,
)
def test_assert_coverage_names_the_rule(given, line):
    """A rule that could not be held against a model is refused by its name."""
    assert refusal(assert_coverage, MODEL, **given).startswith(line)


def test_one_operator_may_be_forbidden_without_a_list():
    """`forbid_half="Softmax"` is about Softmax, not about S, o, f, t, m, a and x."""
    assert assert_coverage(MODEL, forbid_half="Softmax").nodes.half == 0


@pytest.mark.parametrize("options", ["x", {"half": "bfloat16"}, Options], ids=label)
def test_a_pass_refuses_other_options_when_it_is_made(options):
    """What is not of type Options is refused where it is written, not in the middle of a pipeline."""
    assert "is not of type Options; write AmpPass(Options(...))" in refusal(AmpPass, options)


def test_a_pass_takes_models_of_onnx_ir_alone():
    """A path that was slipped in is not rewritten beside itself, and a ModelProto not passed on."""
    for model in ("m.onnx", MODEL, None):
        assert "give an onnx_ir.Model" in refusal(AmpPass(), model)


@pytest.mark.parametrize("path", ["a\0b.onnx", "a" * 5000 + ".onnx"], ids=["NUL", "long"])
def test_a_path_that_no_file_can_have_is_refused(path):
    """Python's own errors for these are no OSError, or name no cause."""
    for call in (amp_rewrite.rewrite, amp_rewrite.analyze):
        assert " is not a model" in refusal(call, path)
    for call in (amp_rewrite.emulate, amp_rewrite.measure_coverage):
        assert ".onnx: " in refusal(call, path)
    assert refusal(amp_rewrite.observe, path, demo.feeds())
    assert refusal(assert_coverage, MODEL, baseline=path).startswith("baseline: '")
    assert refusal(Data, path).startswith("Data.paths: '")


def test_data_that_is_no_data_is_refused():
    """`feeds` takes a Data."""
    assert refusal(feeds.feeds, MODEL, {"seed": 3}).startswith("data: dict is not of type Data")
    assert Data("in.npz") == Data(["in.npz"]) == Data((Path("in.npz"),))


@pytest.mark.parametrize("late", ["yes", None, 1])
def test_emulate_names_late(late):
    """`late` is a truth value."""
    assert refusal(amp_rewrite.emulate, MODEL, late=late).startswith("late: ")


class TestRunning:
    @pytest.fixture(autouse=True)
    def _needs_onnxruntime(self):
        pytest.importorskip("onnxruntime")

    def test_one_sample_may_stand_alone(self):
        """A mapping is a sample; a list of one is the same."""
        alone, listed = (amp_rewrite.observe(MODEL, samples) for samples in (demo.feeds(), [demo.feeds()]))
        assert alone == listed
        verdicts = [amp_rewrite.verify(MODEL, MODEL, samples) for samples in (demo.feeds(), [demo.feeds()])]
        assert verdicts[0] == verdicts[1]
        assert verdicts[0].samples == 1

    def test_models_of_all_kinds_are_run(self):
        """What `rewrite` takes and returns, `verify` and `observe` take too; a device by its name."""
        data, held = MODEL.SerializeToString(), ir.from_proto(MODEL)
        assert amp_rewrite.verify(data, held, demo.feeds(), io="half", device="cpu").ok
        assert amp_rewrite.observe(held, demo.feeds(), device="CPU") == amp_rewrite.observe(
            data, demo.feeds()
        )

    @pytest.mark.parametrize(
        ("samples", "line"),
        [
            (IMAGE, "samples: ndarray is not a sample; give arrays by the names of the inputs"),
            ([IMAGE], "samples[0]: ndarray is not a sample"),
            ([demo.feeds(), "x"], "samples[1]: 'x' is not a sample"),
            ((iter([IMAGE])), "samples[0]: ndarray is not a sample"),
            ([{1: IMAGE}], "samples[0]: 1 is not the name of an input"),
            ("in.npz", "samples: 'in.npz' is not a sample"),
            (Data(), "samples: Data is not a sample"),
            ([], "there is no sample"),
            # a mask, or the fields of a record, would be dropped without a word
            ({"image": np.ma.masked_array(IMAGE, mask=True)}, ARRAY_WITH_MORE),
            ({"image": np.zeros(IMAGE.shape, [("a", "f4")])}, ARRAY_WITH_MORE),
            ([{"x": IMAGE}], "samples[0]: the model has no input 'x'; it has image"),
            ([{}], "samples[0]: input 'image' is missing; add it, as float32[batch,3,32,32]"),
            ([{"image": "hello"}], f"{WANTED} 'hello' was given, which is no NumPy array; give a numpy"),
            ([{"image": Tensor()}], f"{WANTED} Tensor was given, which is no NumPy array; give a numpy"),
            ([{"image": IMAGE * 1j}], f"{WANTED} complex64[2,3,32,32] was given; give it in that type and"),
            (
                [demo.feeds(), {"image": IMAGE[0]}],
                f"{WANTED.replace('0', '1', 1)} float32[3,32,32] was given",
            ),
        ],
        ids=label,
    )
    def test_what_is_no_sample_is_a_feed_error(self, samples, line):
        """Samples are mappings from names to arrays; of many, the one that is wrong is named."""
        with pytest.raises(FeedError) as caught:
            amp_rewrite.verify(MODEL, MODEL, samples)
        assert str(caught.value).startswith(line)

    def test_observe_says_the_same_of_samples(self):
        """`observe` takes the samples that `verify` takes; a time limit is a number, and no truth value."""
        assert refusal(amp_rewrite.observe, MODEL, [IMAGE]).startswith("samples[0]: ndarray is not a sample")
        for seconds in ("5", True):
            line = refusal(amp_rewrite.observe, MODEL, demo.feeds(), timeout=seconds)
            assert "not a number of seconds" in line

    @pytest.mark.parametrize(
        ("given", "line"),
        [
            (
                {"bounds": {"relative_l2": 0.1}},
                "bounds: dict is not of type Tolerances; write Tolerances(error=0.02",
            ),
            ({"bounds": 0.01}, "bounds: 0.01 is not of type Tolerances"),
            ({"io": "x"}, "io: 'x' is not one of keep, half"),
            ({"device": "npu"}, "device: 'npu' is not one of cuda, cpu"),
            ({"device": 0}, "device: 0 is not one of cuda, cpu"),
            ({"inputs": "my.npz"}, "inputs: 'my.npz' is not of type InputSource; omit it"),
        ],
        ids=label,
    )
    def test_verify_names_the_argument(self, given, line):
        """Bounds, borders and device are refused by their names."""
        with pytest.raises(OptionError) as caught:
            amp_rewrite.verify(MODEL, MODEL, demo.feeds(), **given)
        assert str(caught.value).startswith(line)

    @pytest.mark.parametrize(
        "model", [None, 5, "missing.onnx", MODEL.graph], ids=lambda value: str(value)[:12]
    )
    def test_verify_and_observe_name_the_model(self, model):
        """Which of two models is none, or which file is not there, is said."""
        named = "missing.onnx: there is no such file" if isinstance(model, str) else " is not a model"
        for models in ((".", MODEL), (MODEL, ".")):
            assert refusal(amp_rewrite.verify, *models, demo.feeds()).startswith(".: is a folder; name the")
        for place, models in (("original", (model, MODEL)), ("rewritten", (MODEL, model))):
            line = refusal(amp_rewrite.verify, *models, demo.feeds())
            assert named in line
            assert isinstance(model, str) or line.startswith(f"{place}: ")
        assert named in refusal(amp_rewrite.observe, model, demo.feeds())

    def test_what_has_a_model_is_not_one(self):
        """Its attribute `model` is what is wanted, in every function that takes a model."""
        result = amp_rewrite.rewrite(MODEL)
        assert "Result is not a model; give the model in it" in refusal(amp_rewrite.restore, result)
        assert "such as its attribute model" in refusal(amp_rewrite.certify, MODEL, result)
        program = ONNXProgram()
        for call in (amp_rewrite.rewrite, amp_rewrite.analyze, amp_rewrite.emulate, amp_rewrite.restore):
            assert "ONNXProgram is not a model; give the model in it, its attribute model" in refusal(
                call, program
            )
        assert "give the model in it" in refusal(amp_rewrite.verify, program, MODEL, demo.feeds())
