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
from amp_rewrite import demo
from amp_rewrite.cli.flag_builders import Choice
from amp_rewrite.errors import AmpRewriteError, FeedError, ModelError, OptionError, OutputError
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.policy import operator_lists
from amp_rewrite.policy.options import Beside, ExternalData, IOTypes, Level, Options, Pins
from amp_rewrite.policy.targets import ANY
from amp_rewrite.rewriting import plan_files
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.tolerances import Tolerances
from amp_rewrite.testing import assert_coverage
from tests.commands import rows
from tests.labels import label
from tests.refusals import refusal
from tests.text import RUNS

MODEL = demo.network()
IMAGE = demo.feeds()["image"]


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


def test_other_dataclasses_take_the_short_form(tmp_path):
    """One pattern is a pattern and no string of characters, a word an enum, a path a list of one."""
    assert Pins(keep_full="head_.*").keep_full == ("head_.*",)
    assert Pins(force_half=["a", "b"]).force_half == ("a", "b")
    assert ExternalData("always", np.int64(5)) == ExternalData(Beside.ALWAYS, 5)
    assert Options(check=np.bool_(False)).check is False
    assert Data("in.npz") == Data(["in.npz"]) == Data((Path("in.npz"),))
    assert assert_coverage(MODEL, forbid_half="Softmax").nodes.half == 0
    file = tmp_path / "ours.yaml"
    file.write_text("name: ours\nallow:\n  MatMul: fast\n")
    assert Options(lists=file).lists.name == Options(lists=str(file)).lists.name == "ours"


def test_options_are_copied_and_changed_like_any_dataclass():
    """`replace` takes the short forms too; copies and pickles are equal."""
    asked = replace(Options(follow=False), half="bfloat16", keep_io="x")
    assert asked == Options(half=BFLOAT16, follow=False, keep_io=("x",))
    assert copy.deepcopy(asked) == pickle.loads(pickle.dumps(asked)) == asked
    with pytest.raises(FrozenInstanceError):
        asked.half = FLOAT16


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


# ---- what is refused, by the name of the field or of the argument

FIELDS = """
Options(half="flaot16") | Options.half: 'flaot16' is not one of float16, bfloat16; did you mean float16?$
Options(half="float8") | Options.half: 'float8' is not one of float16, bfloat16$
Options(half=np.float16) | Options.half: the class float16 is not one of float16, bfloat16
Options(half=None) | Options.half: None is not one of
Options(io="keeep") | Options.io: 'keeep' is not one of keep, half, state; did you mean keep?$
Options(level=2) | Options.level: 2 is not one of default, tensor-cores-only
Options(target="coreml") | Options.target: 'coreml' is not one of onnxruntime-cuda, onnxruntime-webgpu
Options(lists=["MatMul"]) | Options.lists: list is not an operator list; give an OpLists (amp_rew
Options(lists="") | Options.lists: '' is not an operator list
Options(lists="tensorflo") | tensorflo: there is no such list; did you mean tensorflow?
Options(follow="no") | Options.follow: 'no' is neither True nor False
Options(pins="head_.*") | Options.pins: 'head_.*' is not of type Pins; write Pins(keep_full=
Options(pins=Pins) | Options.pins: the class Pins is not of type Pins
Options(keep_io=None) | Options.keep_io: None is not a string, or a list of strings
Options(keep_io=["a", 1]) | Options.keep_io: 1 is not a string
Options(external_data=True) | Options.external_data: True is not one of auto, always, never
Options(external_data="2GB") | Options.external_data: '2GB' is not one of auto, always, never; for a size
Pins(5) | Pins.keep_full: 5 is not a string, or a list of strings
Pins(Path("a")) | Pins.keep_full: PosixPath is not a string
Pins(force_half=[None]) | Pins.force_half: None is not a string
ExternalData("sometimes") | ExternalData.beside: 'sometimes' is not one of auto
ExternalData(largest=0) | ExternalData.largest: 0 is not an integer of at least 1
ExternalData(largest=np.int64(-5)) | ExternalData.largest: -5 is
Tolerances(relative_l2="0.01") | Tolerances.relative_l2: '0.01' is not a number; give a number, or
Tolerances(relative_l2=np.float32("nan")) | Tolerances.relative_l2: nan is
Tolerances(non_finite=0.5) | Tolerances.non_finite: 0.5 is not an integer of at least 0
Tolerances(top1=99) | Tolerances.top1: 99 is not from 0 to 1
Data(5) | Data.paths: 5 is not a path, or a list of paths
Data([b"in.npz"]) | Data.paths: b'in.npz' is not a path
Data("a" * 5000) | Data.paths: '
Data(dims={"batch": "4"}) | Data.dims["batch"]: '4' is not an integer of at least 0
Data(dims=[("batch", 4)]) | Data.dims: list is not a mapping; write it as in {"batch": 4}
Data(seed=-1) | Data.seed: -1 is not an integer of at least 0
Data(samples=0) | Data.samples: 0 is not an integer of at least 1
plan_files.load(3) | path: 3 is not a path
operator_lists.load(3) | name_or_path: 3 is not a path
decide(MODEL, options={"half": "bfloat16"}) | options: dict is not of type Options; write Options(...)
decide(MODEL, options=Options) | options: the class Options is not of type Options
decide(MODEL, observed=[1]) | observed: list is not a mapping; write it as in observed=amp_rewrite.observe(
decide(MODEL, observed={"image": IMAGE}) | observed["image"]: ndarray is not of type Extremes; give what
decide(MODEL, imprecise_outputs=["y"])
  | imprecise_outputs: list is not a mapping; write it as in imprecise_outputs={"waveform": 0.07}
decide(MODEL, imprecise_outputs={"y": "0.1"})
  | imprecise_outputs["y"]: '0.1' is not a number from 0 up; give the error of rounding
decide(MODEL, imprecise_outputs={"y": -0.1}) | imprecise_outputs["y"]: -0.1 is not a number from 0 up
decide(MODEL, imprecise_outputs={"image": 0.1})
  | imprecise_outputs: the model has no output 'image'; name its outputs
decide(MODEL, replay="plan.json")
  | replay: 'plan.json' is not of type SavedPlan; read a saved plan with amp_rewrite.load_plan
decide(MODEL, progress=True) | progress: True is not callable
rewrite(MODEL, on_plan="plan.json") | on_plan: 'plan.json' is not callable
rewrite(MODEL, in_place="yes") | in_place: 'yes' is neither True nor False
rewrite(MODEL, in_place=True) | in_place is for a path; other models are returned
rewrite(MODEL, output="x.onnx") | output is for a path; other models are returned
rewrite("m.onnx", output=b"x.onnx") | output: b'x.onnx' is not a path
rewrite("m.onnx", output="a\\0b.onnx") | output: 'a\\x00b.onnx' has a character that is not valid in a path
rewrite("m.onnx", output="a" * 5000) | output: 'aaaaaaaaaaaa...aaaaaaaaaaaaa' is longer than a path can be
count(MODEL, dims={"batch": "4"}) | dims["batch"]: '4' is not an integer of at least 0
count(MODEL, dims={"batch": 10**30}) | dims["batch"]: is larger than any dimension
count(MODEL, dims=[1]) | dims: list is not a mapping; write it as in {"batch": 4}
count(MODEL, dims={3: 4}) | dims: the key 3 is not a string
count(MODEL, dims={"btach": 4}) | the model has no open dimension 'btach'; did you mean batch?
assert_coverage(MODEL) | no rule was given; give one, such as min_flops=0.95
assert_coverage(MODEL, require={}, forbid_half=(), dims={}) | no rule was given
assert_coverage(MODEL, min_flops="0.95") | min_flops '0.95' is not a share; write a share from 0 to 1
assert_coverage(MODEL, min_weights=95) | min_weights 95 is not a share
assert_coverage(MODEL, require="MatMul") | require: 'MatMul' is not a mapping; write it as in {"MatMul": 1.0}
assert_coverage(MODEL, require={"MatMul": "all"}) | MatMul 'all' is not a share
assert_coverage(MODEL, forbid_half=5) | forbid_half: 5 is not a string, or a list of strings
assert_coverage(MODEL, forbid_half="Sotfmax") | no operator is called Sotfmax; did you mean Softmax?
assert_coverage(MODEL, max_casts=-1) | max_casts: -1 is not an integer of at least 0
assert_coverage(MODEL, baseline={"flops": 0.9}) | baseline: dict is not a path
assert_coverage(MODEL, baseline="a" * 5000) | baseline: '
AmpPass(Options) | options: the class Options is not of type Options; write AmpPass(Options(...))
AmpPass()("m.onnx") | model: 'm.onnx' is not of type Model; give an onnx_ir.Model
feeds.feeds(MODEL, {"seed": 3}) | data: dict is not of type Data
amp_rewrite.emulate(MODEL, late="yes") | late: 'yes'
"""
"""Calls, and how the line begins with which they are refused; before a `$` stands all of it."""

NAMES = {name: getattr(amp_rewrite, name) for name in amp_rewrite.__all__}
NAMES |= {"amp_rewrite": amp_rewrite, "assert_coverage": assert_coverage, "demo": demo, "feeds": feeds}
NAMES |= {"Data": Data, "ExternalData": ExternalData, "Tolerances": Tolerances, "Path": Path, "np": np}
NAMES |= {"operator_lists": operator_lists, "plan_files": plan_files, "onnx": onnx, "ir": ir}
NAMES |= {"Tensor": Tensor, "ONNXProgram": ONNXProgram, "MODEL": MODEL, "IMAGE": IMAGE}
TWICE = (
    {"decide": amp_rewrite.rewrite, "count": amp_rewrite.measure_coverage},
    {"decide": amp_rewrite.analyze, "count": assert_coverage},
)
"""Names that stand for two functions."""


@pytest.mark.parametrize(("call", "said"), rows(FIELDS), ids=label)
def test_what_is_wrong_is_named(call, said):
    """What is no value of a field or an argument is refused when it is given, by its name."""
    for names in TWICE:
        line = refusal(eval, call, {**NAMES, **names})
        assert f"{line}$".startswith(said)


@pytest.mark.parametrize("output", [".", "/", "", "a\0b", "x" * 5000])
def test_no_place_for_a_result(tmp_path, output):
    """It is refused before anything is written."""
    (tmp_path / "m.onnx").write_bytes(MODEL.SerializeToString())
    with pytest.raises((OutputError, OptionError)):
        amp_rewrite.rewrite(tmp_path / "m.onnx", output=output)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    "model",
    [None, [], "", ".", Path(), b"", b"junk", bytearray(b"x"), MODEL.graph, "a\0b", "a" * 5000],
    ids=label,
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


def test_what_has_a_model_is_not_one():
    """Its attribute `model` is what is wanted, in every function that takes a model."""
    result = amp_rewrite.rewrite(MODEL)
    assert "Result is not a model; give the model in it" in refusal(amp_rewrite.restore, result)
    assert "such as its attribute model" in refusal(amp_rewrite.certify, MODEL, result)
    for call in (amp_rewrite.rewrite, amp_rewrite.analyze, amp_rewrite.emulate, amp_rewrite.restore):
        said = "ONNXProgram is not a model; give the model in it, its attribute model"
        assert said in refusal(call, ONNXProgram())


RUNNING = """
verify(MODEL, MODEL, IMAGE) | samples: ndarray is not a sample; give arrays by the names of the inputs
verify(MODEL, MODEL, iter([IMAGE])) | samples[0]: ndarray is not a sample
observe(MODEL, [IMAGE]) | samples[0]: ndarray is not a sample
verify(MODEL, MODEL, [demo.feeds(), "x"]) | samples[1]: 'x' is not a sample
verify(MODEL, MODEL, [{1: IMAGE}]) | samples[0]: 1 is not the name of an input
verify(MODEL, MODEL, "in.npz") | samples: 'in.npz' is not a sample
verify(MODEL, MODEL, []) | there is no sample
verify(MODEL, MODEL, {"image": np.ma.masked_array(IMAGE, mask=True)})
  | samples[0]["image"]: is an array with a mask or with fields
verify(MODEL, MODEL, {"image": np.zeros(IMAGE.shape, [("a", "f4")])})
  | samples[0]["image"]: is an array with a mask or with fields
verify(MODEL, MODEL, [{"x": IMAGE}]) | samples[0]: the model has no input 'x'; it has image
verify(MODEL, MODEL, [{}]) | samples[0]: input 'image' is missing; add it, as float32[batch,3,32,32]
verify(MODEL, MODEL, [{"image": "hello"}])
  | samples[0]: input 'image' is float32[batch,3,32,32], but 'hello' was given, which is no NumPy array; give
verify(MODEL, MODEL, [{"image": Tensor()}])
  | samples[0]: input 'image' is float32[batch,3,32,32], but Tensor was given, which is no NumPy array; give
verify(MODEL, MODEL, [{"image": IMAGE * 1j}])
  | samples[0]: input 'image' is float32[batch,3,32,32], but complex64[2,3,32,32] was given; give it in that
verify(MODEL, MODEL, [demo.feeds(), {"image": IMAGE[0]}])
  | samples[1]: input 'image' is float32[batch,3,32,32], but float32[3,32,32] was given
verify(MODEL, MODEL, demo.feeds(), bounds={"relative_l2": 0.1})
  | bounds: dict is not of type Tolerances; write Tolerances(error=0.02
verify(MODEL, MODEL, demo.feeds(), bounds=0.01) | bounds: 0.01 is not of type Tolerances
verify(MODEL, MODEL, demo.feeds(), io="x") | io: 'x' is not one of keep, half
verify(MODEL, MODEL, demo.feeds(), device="npu") | device: 'npu' is not one of cuda, cpu
verify(MODEL, MODEL, demo.feeds(), inputs="my.npz") | inputs: 'my.npz' is not of type InputSource; omit it
verify(None, MODEL, demo.feeds()) | original: None is not a model
verify(MODEL, MODEL.graph, demo.feeds()) | rewritten: GraphProto is not a model
verify(MODEL, "missing.onnx", demo.feeds()) | missing.onnx: there is no such file
verify(".", MODEL, demo.feeds()) | .: is a folder; name the
verify(ONNXProgram(), MODEL, demo.feeds()) | original: ONNXProgram is not a model; give the model in it
observe("missing.onnx", demo.feeds()) | missing.onnx: there is no such file
observe(MODEL, demo.feeds(), timeout=True) | timeout is not a number of seconds
"""


@pytest.mark.skipif(not RUNS, reason="onnxruntime is not installed")
class TestRunning:
    @pytest.mark.parametrize(("call", "said"), rows(RUNNING), ids=label)
    def test_what_is_wrong_with_a_run_is_named(self, call, said):
        """Samples are mappings from names to arrays, and of many the one that is wrong is named."""
        is_of_samples = said.startswith("samples[")
        with pytest.raises(FeedError if is_of_samples else AmpRewriteError) as caught:
            eval(call, NAMES)
        assert str(caught.value).startswith(said)

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
