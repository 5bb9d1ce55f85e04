"""The fields of `Options`: the types of their values, the checks of arguments, and their flags."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike, Texts
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import Half
from amp_rewrite.policy import devices, open_sizes, operator_lists, targets
from amp_rewrite.policy.flags import Flag
from amp_rewrite.policy.operator_lists import OpLists, load
from amp_rewrite.policy.targets import Target

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


class Beside(enum.Enum):
    """The condition for external data, weights in files beside a result that is a file.

    AUTO: where the model had external data, or exceeds one file (2 GiB). ALWAYS. NEVER.

    Examples:
        >>> from amp_rewrite import Options
        >>> Options(external_data="always").external_data.beside
        <Beside.ALWAYS: 'always'>
    """

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class ExternalData:
    """The storage of weights of a result that is a file.

    With `largest`, no data file has more bytes than that, but for one that holds a single larger tensor.
    `beside` may be given by its value. Raises OptionError for an invalid `beside` or size.

    Examples:
        >>> from amp_rewrite.options import ExternalData
        >>> ExternalData(largest=2 * 10**9).beside
        <Beside.AUTO: 'auto'>
    """

    beside: Beside
    largest: int | None

    def __init__(self, beside: Beside | str = Beside.AUTO, largest: int | None = None) -> None:
        hold = partial(object.__setattr__, self)
        hold("beside", arguments.choice("ExternalData.beside", beside, Beside))
        hold(
            "largest", None if largest is None else arguments.whole("ExternalData.largest", largest, least=1)
        )


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


STORAGE_ONLY = "storage-only"
"""The level of the command line for `Options.storage_only`."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A field of Options: the check that converts a name and an argument to its value, the flags that decide
    it, and whether a saved plan has it: what it has not is about the result.

    A field with a `step`, and what `skipping` it means, is decided by `--skip`.
    """

    check: Callable[[str, Any], Any]
    flags: tuple[Flag, ...] = ()
    in_plan: bool = True
    step: str = ""
    skipping: str = ""


def _choice(kind: type[Any], choices: Mapping[str, Any], flag: str, about: str, **more: Any) -> Declared:
    check = partial(arguments.named, kind=kind, choices=choices)
    return Declared(check, (Flag(name=flag, about=about, values=tuple(choices), **more),))


def _values(kind: type[enum.Enum]) -> Mapping[str, Any]:
    return {str(member.value): member for member in kind}


def _texts(name: str, metavar: str, about: str, **more: Any) -> Flag:
    """Return a flag whose texts are the values of a field."""
    return Flag(name=name, metavar=metavar, about=about, repeats=True, **more)


def _step(name: str, skipping: str, *, in_plan: bool = True) -> Declared:
    return Declared(arguments.flag, in_plan=in_plan, step=name, skipping=skipping)


_NODES = "Node names, or regular expressions that match a whole name."
_KINDS = {
    "allow": "it becomes half",
    "infer": "half between half nodes, unless its inputs come from a denied one",
    "clear": "it does no arithmetic, and takes the type of its neighbours",
    "deny": "it stays float32, and so do nodes that depend on its result",
}
_LIST = (
    "Operator lists: a shipped one (default, bfloat16, tensorflow), a YAML file, or an operator to put on a "
    f"list: infer=OP ({_KINDS['infer']}), clear=OP ({_KINDS['clear']}), allow=OP, deny=OP."
)
_LEVEL = (
    "How much becomes half: what the lists and rules decide (default); only operators on the allow list "
    "(tensor-cores-only); the default, with the infer list treated as denied (treat-infer-as-deny); "
    "everything that the types allow, whatever that does to accuracy (unsafe-force-all); or weights alone, "
    f"each with a Cast to float32, in which all arithmetic stays ({STORAGE_ONLY})."
)
_OPSET = (
    "The opset of the result: every node must mean the same. If not given: raised where that gives more half "
    "kernels, and with keep not even then."
)
_STORAGE = (
    "Store weights in files beside the result: if the model does so, or they exceed 2 GiB (auto); "
    "always, in one file; never; or in files of at most SIZE, such as 2GB."
)

DECLARED: Mapping[str, Declared] = {
    "half": _choice(Half, halves.BY_NAME, "--to", "The half type."),
    "target": _choice(
        Target,
        targets.BY_NAME,
        "--target",
        "The runtime that will run the model.",
        short="The runtime, such as tensorrt; else onnxruntime.",
    ),
    "lists": Declared(
        _lists,
        (
            _texts(
                "--list",
                "NAME|FILE|KIND=OP",
                _LIST,
                rare=True,
                sets={f"OpLists.override({kind})": f"{kind}=" for kind in ("infer", "clear")},
            ),
            _texts(
                "--allow",
                "OP",
                f"Put an operator on the allow list: {_KINDS['allow']}.",
                short="This operator becomes half.",
                sets={"OpLists.override(allow)": ""},
            ),
            _texts(
                "--deny",
                "OP",
                f"Put an operator on the deny list: {_KINDS['deny']}.",
                short="This operator stays float32.",
                sets={"OpLists.override(deny)": ""},
            ),
        ),
    ),
    "pins": Declared(
        partial(arguments.instance, kind=Pins, remedy='write Pins(keep_full="head_.*")'),
        (
            _texts("--keep-full", "REGEX", f"Keep these nodes in float32. {_NODES}"),
            _texts("--force-half", "REGEX", f"Put these nodes in half. {_NODES}"),
            _texts(
                "--only",
                "REGEX",
                f"Put in half only these nodes and those between them. {_NODES}",
                rare=True,
            ),
        ),
    ),
    "level": Declared(
        partial(arguments.named, kind=Level, choices=_values(Level)),
        (
            Flag(
                name="--level",
                about=_LEVEL,
                values=(*_values(Level), STORAGE_ONLY),
                rare_values=(Level.TREAT_INFER_AS_DENY.value,),
                rare=True,
                sets={"Options.storage_only": STORAGE_ONLY},
            ),
        ),
    ),
    "follow": _step("follow", "float32 before the first and after the last matrix product"),
    "io": _choice(
        IOTypes,
        _values(IOTypes),
        "--io",
        "The type of the model's float32 inputs and outputs.",
        short="The type of float32 inputs and outputs.",
    ),
    "keep_io": Declared(
        arguments.texts,
        (
            _texts(
                "--keep-io",
                "REGEX",
                "With --io: these (names, or RE2) stay float32.",
                short="With --io: these stay float32.",
            ),
        ),
    ),
    "keep_functions": _step("inline", "model-local functions stay, in float32"),
    "fold": _step("fold", "constants and BatchNormalizations are not folded into weights"),
    "keep_opset": Declared(arguments.flag),
    "opset": Declared(
        _opset,
        (
            Flag(
                name="--opset", metavar="N|keep", about=_OPSET, rare=True, sets={"Options.keep_opset": "keep"}
            ),
        ),
    ),
    "check": _step("check", "onnx's checker does not run", in_plan=False),
    "metadata": _step("metadata", "the result does not carry the decisions", in_plan=False),
    "external_data": Declared(
        _external_data,
        (
            Flag(
                name="--external-data",
                metavar="auto|always|never|SIZE",
                about=_STORAGE,
                rare=True,
                default="auto",
            ),
        ),
        in_plan=False,
    ),
    "device": Declared(
        devices.named,
        (
            Flag(
                name="--device",
                about="The device for which times are predicted; others by TFLOPS in two types, and TB/s.",
                metavar="NAME,HALF/SINGLE,TB/S",
                values=tuple(devices.BY_NAME),
                rare=True,
            ),
        ),
    ),
    "gate": Declared(
        arguments.flag,
        (
            Flag(
                name="--gate",
                about="Leave the model unchanged if half is predicted to be no faster.",
                rare=True,
            ),
        ),
    ),
    "free": _step("bounds", "denied operators stay float32 even where bounds prove that they fit"),
    "rescale": _step("rescale", "values that leave float16's range stay float32, not times powers of two"),
    "unscaled": Declared(arguments.texts),
    "storage_only": Declared(arguments.flag),
    "keep_softmax": Declared(arguments.flag),
    "keep_overridable": _step("defaults", "inputs that have a default do not become constants"),
    "certify": _step("certify", "the result is written without the proof of it", in_plan=False),
    "dims": Declared(open_sizes.given),
    "op_types": Declared(
        operator_lists.declarations,
        (
            _texts(
                "--op-type",
                "DOMAIN:OP=TYPES",
                "Types that the kernels of a custom operator take: autoware:Op=float16, or half,IN1:float32.",
                rare=True,
            ),
        ),
    ),
    "ranges": Declared(
        checked,
        (
            _texts(
                "--range",
                "NAME=LO:HI",
                "The range of an input; the ranges of all other values are derived from it.",
                rare=True,
            ),
        ),
    ),
}
"""Every field of Options, declared once, in the order of the checks; the command's flags derive from it."""
