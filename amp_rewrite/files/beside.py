"""Where weights are: in the file of a model, or in files beside it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from numbers import Integral

from amp_rewrite.errors import OptionError


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
        member = next((each for each in Beside if beside in (each, each.value)), None)
        if member is None:
            names = ", ".join(each.value for each in Beside)
            raise OptionError(f"{beside!r} is not one of {names}", where="ExternalData.beside")
        if largest is not None and (not isinstance(largest, Integral) or largest < 1):
            raise OptionError(f"{largest} is not an integer of at least 1", where="ExternalData.largest")
        object.__setattr__(self, "beside", member)
        object.__setattr__(self, "largest", None if largest is None else int(largest))
