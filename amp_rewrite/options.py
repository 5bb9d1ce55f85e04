"""What a user asks for: one frozen value for a whole run."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from amp_rewrite.half import FLOAT16, Half
from amp_rewrite.lists import OpLists, load
from amp_rewrite.targets import ONNXRUNTIME_CUDA, Target


class Level(enum.Enum):
    """How far to go, with Grappler's names (`TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL`).

    DEFAULT: the rules as they are. TENSOR_CORES_ONLY: only what is on the allow list. TREAT_INFER_AS_DENY:
    INFER is DENY. UNSAFE_FORCE_ALL: whatever the types allow, whatever becomes of the numbers.
    """

    DEFAULT = "default"
    TENSOR_CORES_ONLY = "tensor-cores-only"
    TREAT_INFER_AS_DENY = "treat-infer-as-deny"
    UNSAFE_FORCE_ALL = "unsafe-force-all"


class Borders(enum.Enum):
    """Which type the model's float32 inputs and outputs have afterwards: KEEP theirs, or HALF."""

    KEEP = "keep"
    HALF = "half"


class Beside(enum.Enum):
    """When a result that is a file has its weights in files beside it.

    AUTO: where the model had, and where one file cannot hold them (2 GiB). ALWAYS. NEVER.
    """

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Where a result that is a file keeps its weights.

    With `largest`, no data file has more bytes than that, but for one that holds a single larger tensor.
    """

    beside: Beside = Beside.AUTO
    largest: int | None = None


@dataclass(frozen=True, slots=True)
class Pins:
    """Nodes that the user decides, by name or by a regular expression that matches the whole name."""

    keep_full: tuple[str, ...] = ()
    force_half: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """How to rewrite.

    `half` is the low-precision type. `lists` sort the operators; `None` stands for the shipped list of that
    type. `target` is the runtime that the model is for. `follow` is the rule that keeps a matrix product
    and what follows it in one piece. `borders` types the inputs and outputs, save those in `keep_io`.
    `keep_functions` leaves calls of model-local functions as they are, in float32, instead of inlining
    them. `check` has onnx check the result, `metadata` leaves the decisions in the metadata of the result.
    `external_data` says where a result that is a file keeps its weights.
    """

    half: Half = FLOAT16
    lists: OpLists | None = None
    target: Target = ONNXRUNTIME_CUDA
    level: Level = Level.DEFAULT
    follow: bool = True
    pins: Pins = field(default_factory=Pins)
    borders: Borders = Borders.KEEP
    keep_io: tuple[str, ...] = ()
    keep_functions: bool = False
    check: bool = True
    metadata: bool = True
    external_data: ExternalData = ExternalData()

    def operator_lists(self) -> OpLists:
        """The lists to go by; ListError when a shipped one is damaged."""
        return self.lists or load(SHIPPED_FOR[self.half.name])


SHIPPED_FOR = {"float16": "default", "bfloat16": "bfloat16"}
"""The shipped list that goes with each half type."""
