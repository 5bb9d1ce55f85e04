"""The parts of what a user asks for: levels, types of inputs and outputs, where weights lie, and pins."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial

from amp_rewrite import arguments
from amp_rewrite.arguments import Texts


class Level(enum.Enum):
    """How far to go, with Grappler's names (`TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL`).

    DEFAULT: the rules as they are. TENSOR_CORES_ONLY: only what is on the allow list. TREAT_INFER_AS_DENY:
    INFER is DENY. UNSAFE_FORCE_ALL: whatever the types allow, whatever becomes of the numbers.

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
    """Which type the model's float32 inputs and outputs have afterwards: KEEP theirs, or HALF.

    Examples:
        >>> from amp_rewrite import Options
        >>> Options(io="half").io
        <IOTypes.HALF: 'half'>
    """

    KEEP = "keep"
    HALF = "half"


class Beside(enum.Enum):
    """When a result that is a file has its weights in files beside it.

    AUTO: where the model had, and where one file cannot hold them (2 GiB). ALWAYS. NEVER.

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
    """Where a result that is a file keeps its weights.

    With `largest`, no data file has more bytes than that, but for one that holds a single larger tensor.
    `beside` may be given by its value. Raises OptionError for what is neither, or no size.

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

    Each is one text or several. Raises OptionError for anything else.

    Examples:
        >>> from amp_rewrite import Pins
        >>> Pins(keep_full=["head_.*", "rms_div"], force_half="gelu_erf").keep_full
        ('head_.*', 'rms_div')
    """

    keep_full: tuple[str, ...]
    force_half: tuple[str, ...]

    def __init__(self, keep_full: Texts = (), force_half: Texts = ()) -> None:
        hold = partial(object.__setattr__, self)
        hold("keep_full", arguments.texts("Pins.keep_full", keep_full))
        hold("force_half", arguments.texts("Pins.force_half", force_half))
