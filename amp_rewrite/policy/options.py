"""The options of a rewrite: one frozen value for a whole run, and the checks of its fields."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.arguments import Beside, ExternalData, PathLike, Texts
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import BFLOAT16, FLOAT16, Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy import devices, open_sizes, operator_lists, targets
from amp_rewrite.policy.devices import H200, Device
from amp_rewrite.policy.entries import Operator
from amp_rewrite.policy.open_sizes import NONE_GIVEN, Dims, GivenSizes
from amp_rewrite.policy.operator_lists import OpLists, load
from amp_rewrite.policy.targets import ONNXRUNTIME_CUDA, Target

# The parts of the options: levels, types of inputs and outputs, placement of weights, and pins.


class Level(enum.Enum):
    """The level of aggressiveness, with Grappler's names (`TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL`).

    DEFAULT: the rules as they are. TENSOR_CORES_ONLY: only the allow list. TREAT_INFER_AS_DENY: INFER is
    DENY. UNSAFE_FORCE_ALL: everything that the types allow, without regard to the numbers.

    Examples:
        >>> from amp_rewrite import Options
        >>> Options(level="tensor-cores-only").level
        <Level.TENSOR_CORES_ONLY: 'tensor-cores-only'>
    """

    DEFAULT = "default"
    TENSOR_CORES_ONLY = "tensor-cores-only"
    TREAT_INFER_AS_DENY = "treat-infer-as-deny"
    UNSAFE_FORCE_ALL = "unsafe-force-all"


class IOTypes(enum.Enum):
    """The type of the result's inputs and outputs that were float32: KEEP it, HALF, or HALF for STATE alone,
    inputs and outputs that pair up by name, such as `past.0.key` and `present.0.key`.

    Examples:
        >>> from amp_rewrite import Options
        >>> Options(io="half").io
        <IOTypes.HALF: 'half'>
    """

    KEEP = "keep"
    HALF = "half"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Pins:
    """Nodes that the user decides, by name or by a regular expression that matches the whole name.

    With `only`, or `only_op` for operators, the nodes named and those between them become half, as far as no
    list denies them and no analysis holds them, and all others stay float32. Each is one text or several.
    Raises OptionError for anything else.

    Examples:
        >>> from amp_rewrite import Pins
        >>> Pins(keep_full=["head_.*", "rms_div"], force_half="gelu_erf").keep_full
        ('head_.*', 'rms_div')
    """

    keep_full: tuple[str, ...]
    force_half: tuple[str, ...]
    only: tuple[str, ...]
    only_op: tuple[str, ...]

    def __init__(
        self, keep_full: Texts = (), force_half: Texts = (), only: Texts = (), only_op: Texts = ()
    ) -> None:
        patterns = {"keep_full": keep_full, "force_half": force_half, "only": only, "only_op": only_op}
        for name, value in patterns.items():
            object.__setattr__(self, name, arguments.texts(f"Pins.{name}", value))

    @property
    def restriction(self) -> str:
        """The patterns and operators to which half is restricted; empty without a restriction."""
        return ", ".join((*self.only, *self.only_op))


# Declared ranges of inputs: by name, the least and the greatest number that an element has.

Ranges = Mapping[str, tuple[float, float]]
"""The range of each input that is declared."""

_EXAMPLE = '{"pixels": (0, 255)}'


def checked(name: str, value: object) -> Ranges:
    """Return the ranges of an argument; none for None. Raises OptionError unless each is an interval."""
    ranges = arguments.mapping(name, {} if value is None else value, _EXAMPLE)
    return {key: _pair(f'{name}["{key}"]', ends) for key, ends in ranges.items()}


def _pair(name: str, value: Any) -> tuple[float, float]:
    ends = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(ends) != 2 or not all(map(arguments.is_number, ends)):
        raise arguments.refused(
            name, f"{arguments.describe(value)} is not two numbers", f"write it as in {_EXAMPLE}"
        )
    low, high = map(float, ends)
    if math.isnan(low) or math.isnan(high):
        raise arguments.refused(name, "NaN is no end of a range", "give two numbers, the lower one first")
    if low > high:
        raise arguments.refused(name, f"{low:g} is above {high:g}", "give the lower number first")
    return low, high


def _lists(name: str, value: OpLists | PathLike | None) -> OpLists | None:
    if value is None or isinstance(value, OpLists):
        return value
    if not arguments.is_path(value):
        names = ", ".join(operator_lists.names())
        remedy = f"give an OpLists (amp_rewrite.load_lists), one of {names}, or the path of a file"
        raise arguments.refused(name, f"{arguments.describe(value)} is not an operator list", remedy)
    return load(value if isinstance(value, str) else Path(value))


def _opset(name: str, value: int | None) -> int | None:
    return None if value is None else arguments.whole(name, value, least=1)


def _external_data(name: str, value: ExternalData | Beside | str) -> ExternalData:
    if isinstance(value, ExternalData):
        return value
    remedy = "for a size, give ExternalData(largest=BYTES), which is in amp_rewrite.options"
    return ExternalData(arguments.choice(name, value, Beside, remedy))


_CONVERSIONS: Mapping[str, Callable[[str, Any], Any]] = {
    "half": partial(arguments.named, kind=Half, choices=halves.BY_NAME),
    "target": partial(arguments.named, kind=Target, choices=targets.BY_NAME),
    "lists": _lists,
    "pins": partial(arguments.instance, kind=Pins, remedy='write Pins(keep_full="head_.*")'),
    "level": partial(arguments.choice, kind=Level),
    "follow": arguments.flag,
    "io": partial(arguments.choice, kind=IOTypes),
    "keep_io": arguments.texts,
    "keep_functions": arguments.flag,
    "fold": arguments.flag,
    "keep_opset": arguments.flag,
    "opset": _opset,
    "check": arguments.flag,
    "metadata": arguments.flag,
    "external_data": _external_data,
    "device": devices.named,
    "gate": arguments.flag,
    "free": arguments.flag,
    "rescale": arguments.flag,
    "unscaled": arguments.texts,
    "storage_only": arguments.flag,
    "keep_softmax": arguments.flag,
    "keep_overridable": arguments.flag,
    "certify": arguments.flag,
    "dims": open_sizes.given,
    "op_types": operator_lists.declarations,
    "ranges": checked,
}
"""The function that converts the argument for each field of Options, in the order of the checks."""
OF_RESULT = ("check", "metadata", "external_data", "certify")
"""The fields about the result, which no saved plan has."""


_AS_IT_WAS = ExternalData()
_NO_PINS = Pins()


@dataclass(frozen=True, slots=True)
class Form:
    """The preparation of a model, in float32, for a half type and a target.

    `keep_functions` leaves calls of functions alone. `fold` computes what depends on stored values alone,
    and merges a BatchNormalization into its producer; `raise_opset` takes an opset that has more kernels
    where that changes nothing else, `opset` the one that is asked for; `idioms` rewrites subgraphs that
    spell one operator to the form that runtimes recognise; `keep_overridable` leaves inputs that have a
    default. Nodes that `kept_nodes` match (patterns of pins), and `kept_operators`, stay as they are.
    """

    half: Half
    target: Target
    keep_functions: bool
    fold: bool
    raise_opset: bool
    idioms: bool
    kept_nodes: tuple[str, ...]
    kept_operators: tuple[Operator, ...]
    opset: int | None = None
    keep_overridable: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a rewrite.

    `half` is the low-precision type. `lists` sort the operators; `None` stands for the shipped list of that
    type. `target` is the runtime that the model is for, and `device` what it runs on: parts that are
    predicted not to pay there stay float32, and with `gate` the whole model, if it is predicted not to pay.
    With `rescale`, values that were observed to leave float16's range are stored times powers of two, where
    that is predicted to be faster than float32 (rescaling), but for those called `unscaled`; bfloat16 needs
    none.
    `ranges` declares intervals of inputs, by name, from which values are bounded; with `free`, operators that
    the shipped list denies for their range are not denied where bounds prove that they fit.
    `dims` are the sizes of open dimensions of inputs, by symbol or as `input:axis`, for predictions, counts
    and sums; others count as 64.
    `keep_softmax` keeps a softmax that makes an output in float32.
    `follow` is the rule that keeps a matrix product and its epilogue in one piece. `io` types the inputs
    and outputs, save those that `keep_io` names or matches. `keep_functions` leaves calls of model-local
    functions as they are, in float32, instead of inlining them. `fold` computes what depends on stored values
    alone, and merges BatchNormalizations, before any decision; `keep_opset` leaves the opset as it is, and
    `opset` sets it, where every node means the same. `check` runs onnx's checker on the result, `certify`
    proves that the result is the model but for precision, or writes none, `metadata` stores the decisions in
    the metadata of the result. `external_data` is the storage of weights of a result that is a file. With
    `storage_only`, weights that half holds are stored in it, each with a Cast, and all arithmetic stays
    float32. `op_types` declares the types that kernels of custom operators take, as
    `{"autoware:Op": "float16,IN1:float32"}`: all float inputs and outputs of a node are float32, or all are
    float16, but for the second input. Such an operator is allowed, unless it is on a list. Inputs that
    have a default (a stored value, from IR version 4 on) become constants of the result, since most are
    weights; `keep_overridable` keeps them.

    `half`, `target`, `device`, `level`, `io` and `external_data` may be given by name or value (`"bfloat16"`,
    `"any"`, `"unsafe-force-all"`, `"half"`, `"always"`), `lists` by the name of a shipped list or the path
    of a file, `keep_io` as one name or several. Raises OptionError, which names the field, for anything
    else, and ListError for a list that is not there or is wrong.

    Examples:
        >>> from amp_rewrite import Options, Pins
        >>> options = Options(half="bfloat16", io="half", pins=Pins(keep_full="head_.*"))
        >>> options.half.name, options.io
        ('bfloat16', <IOTypes.HALF: 'half'>)
        >>> Options(half="float8")
        Traceback (most recent call last):
            ...
        amp_rewrite.errors.OptionError: Options.half: 'float8' is not one of float16, bfloat16
    """

    half: Half
    lists: OpLists | None
    target: Target
    level: Level
    follow: bool
    pins: Pins
    io: IOTypes
    keep_io: tuple[str, ...]
    keep_functions: bool
    fold: bool
    keep_opset: bool
    check: bool
    metadata: bool
    external_data: ExternalData
    device: Device
    gate: bool
    ranges: Ranges
    free: bool
    keep_softmax: bool
    certify: bool
    dims: GivenSizes
    rescale: bool
    unscaled: tuple[str, ...]
    storage_only: bool
    opset: int | None
    op_types: Mapping[str, str]
    keep_overridable: bool

    def __init__(  # the arguments accept more types than the fields: type checkers read both
        self,
        half: Half | str = FLOAT16,
        lists: OpLists | PathLike | None = None,
        target: Target | str = ONNXRUNTIME_CUDA,
        level: Level | str = Level.DEFAULT,
        follow: bool = True,
        pins: Pins = _NO_PINS,
        io: IOTypes | str = IOTypes.KEEP,
        keep_io: Texts = (),
        keep_functions: bool = False,
        fold: bool = True,
        keep_opset: bool = False,
        check: bool = True,
        metadata: bool = True,
        external_data: ExternalData | Beside | str = _AS_IT_WAS,
        device: Device | str = H200,
        gate: bool = False,
        ranges: Ranges | None = None,
        free: bool = True,
        keep_softmax: bool = False,
        certify: bool = True,
        dims: Dims | GivenSizes = NONE_GIVEN,
        rescale: bool = True,
        unscaled: Texts = (),
        storage_only: bool = False,
        opset: int | None = None,
        op_types: Mapping[str, str] | None = None,
        keep_overridable: bool = False,
    ) -> None:
        arguments_by_name = locals()
        for name, convert in _CONVERSIONS.items():
            object.__setattr__(self, name, convert(f"Options.{name}", arguments_by_name[name]))

    @property
    def only_lists(self) -> bool:
        """True if the lists and Grappler's rules decide alone: no numbers, form or predicted times."""
        return self.operator_lists().alone

    @property
    def follows(self) -> bool:
        """True if half goes on behind a half node."""
        return self.follow and not self.only_lists

    @property
    def rescales(self) -> bool:
        """True if values may be stored times powers of two."""
        is_summed_in_float32 = self.target.longest_sum is None  # else sums may overflow
        is_decided = self.level is not Level.UNSAFE_FORCE_ALL
        return self.rescale and self.half is FLOAT16 and is_summed_in_float32 and is_decided

    @property
    def prunes(self) -> bool:
        """True if unprofitable parts return to float32; False with lists that decide alone, and with those
        that have every layer in half.
        """
        has_own_rules = self.only_lists or self.operator_lists().name == CASTING
        return not has_own_rules and self.level is not Level.UNSAFE_FORCE_ALL

    @property
    def form(self) -> Form:
        """The preparation of a model. Nodes that a user pins or moves to another list keep their form; for
        lists that decide alone, and with `storage_only`, the whole model does. Raises ListError when a
        shipped list is damaged.
        """
        ours = not (self.only_lists or self.storage_only)
        return Form(
            half=self.half,
            target=self.target,
            keep_functions=self.keep_functions,
            fold=self.fold and ours,
            raise_opset=not self.keep_opset and ours and self.opset is None,
            opset=self.opset,
            idioms=ours,
            kept_nodes=(*self.pins.keep_full, *self.pins.force_half, *self.pins.only),
            kept_operators=(*self.operator_lists().moved, *map(schema.parse, self.pins.only_op)),
            keep_overridable=self.keep_overridable,
        )

    def operator_lists(self) -> OpLists:
        """Return the lists in effect; ListError when a shipped one is damaged.

        Examples:
            >>> from amp_rewrite import Options
            >>> Options(half="bfloat16").operator_lists().name
            'bfloat16'
        """
        return (self.lists or load(SHIPPED_FOR[self.half.name])).declaring(self.op_types)


SHIPPED_FOR = {"float16": "default", "bfloat16": "bfloat16"}
"""The shipped list that goes with each half type."""
CASTING = "casting"
"""The name of lists that have every layer in half (training.spec)."""

FLOAT32 = "float32"
KERAS: Mapping[str, Half | None] = {
    "mixed_float16": FLOAT16,
    "mixed_bfloat16": BFLOAT16,
    FLOAT32: None,
}
"""The precision policies of Keras for train steps, with the half type; None where nothing becomes half."""
