"""The options of a rewrite: one frozen value for a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amp_rewrite.arguments import PathLike, Texts
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.onnx_types import schema
from amp_rewrite.policy.devices import H200, Device
from amp_rewrite.policy.form import Form
from amp_rewrite.policy.open_sizes import NONE_GIVEN, Dims, GivenSizes
from amp_rewrite.policy.operator_lists import OpLists, load
from amp_rewrite.policy.option_fields import (
    DECLARED,
    Beside,
    ExternalData,
    IOTypes,
    Level,
    Pins,
    Ranges,
    checked,
)
from amp_rewrite.policy.targets import ONNXRUNTIME_CUDA, Target

__all__ = [
    "CASTING",
    "DECLARED",
    "SHIPPED_FOR",
    "Beside",
    "ExternalData",
    "IOTypes",
    "Level",
    "Options",
    "Pins",
    "Ranges",
    "checked",
]

_AS_IT_WAS = ExternalData()
_NO_PINS = Pins()


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
    `keep_softmax` keeps a softmax that makes an output in float32 (see Policy).
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
        for name, declared in DECLARED.items():
            object.__setattr__(self, name, declared.check(f"Options.{name}", arguments_by_name[name]))

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
