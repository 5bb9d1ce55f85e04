"""What was seen of a model's values, as a mapping that can be saved as JSON, read back, and merged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from amp_rewrite import arguments
from amp_rewrite.analysis.observed import Extremes, Seen
from amp_rewrite.errors import OptionError
from amp_rewrite.files import reading
from amp_rewrite.model import writing
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.rewriting import json_fields
from amp_rewrite.rewriting.json_fields import COUNT, OBJECT, TEXT, JsonField, JsonFields

FORMAT = 1
"""The version of the file format; a file of another version is refused."""


class Observed(Mapping[str, Extremes]):
    """The extremes of a model's values, by name, over a number of samples.

    `model` identifies the model by its structure (`plan_files.fingerprint`), not by its weights: what was
    seen of another is refused. `where` is the file or argument that errors name.

    Examples:
        >>> from amp_rewrite import observe, rewrite
        >>> from amp_rewrite.demo import feeds, network
        >>> seen = observe(network(), feeds())
        >>> seen
        Observed(54 values, 1 samples)
        >>> round(seen["square"].high, 1)
        15.1
        >>> rewrite(network(), seen=seen).report.observed
        0
    """

    def __init__(self, model: str, samples: int, values: Seen, where: str = "seen") -> None:
        self.where = where
        self.model = model
        self.samples = samples
        self._values = {name: values[name] for name in sorted(values)}

    def __getitem__(self, name: str) -> Extremes:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Observed({len(self)} values, {self.samples} samples)"

    def merge(self, other: Observed) -> Observed:
        """What both have seen, of different samples; OptionError when the other is of another model.

        Examples:
            >>> from amp_rewrite import Observed
            >>> Observed("of one model", 64, {}).merge(Observed("of one model", 32, {})).samples
            96
        """
        arguments.instance("other", other, Observed)
        if self.model != other.model:
            raise OptionError(
                f"is of another model than {self.where}",
                where=other.where,
                remedy="merge what is of one model",
            )
        names = {*self, *other}
        joined = {name: _joined(self.get(name), other.get(name)) for name in names}
        return Observed(self.model, self.samples + other.samples, joined, self.where)

    def save(self, path: arguments.PathLike) -> None:
        """Writes a JSON file, in one step, whose bytes depend on nothing but what was seen; OutputError.

        Examples:
            >>> import tempfile
            >>> from amp_rewrite import Observed
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Observed('of one model', 64, {}).save(f"{folder}/seen.json")
            ...     print(Observed.load(f"{folder}/seen.json").samples)
            64
        """
        writing.write_json(self.to_json(), arguments.path("path", path))

    def to_json(self) -> dict[str, Any]:
        """This as JSON data.

        Examples:
            >>> from amp_rewrite import Observed
            >>> Observed("of one model", 64, {}).to_json()
            {'format': 1, 'model': 'of one model', 'samples': 64, 'values': {}}
        """
        values = {name: _row(extremes) for name, extremes in self.items()}
        return {"format": FORMAT, "model": self.model, "samples": self.samples, "values": values}

    @classmethod
    def load(cls, path: arguments.PathLike) -> Observed:
        """Reads what `save` wrote; OptionError when it is missing, damaged, or of another format.

        Examples:
            >>> from amp_rewrite import Observed
            >>> Observed.load("missing.json")
            Traceback (most recent call last):
                ...
            amp_rewrite.errors.OptionError: missing.json: cannot be read (No such file or ...
        """
        file = arguments.path("path", path)
        try:
            content = json.loads(reading.read(file).decode())
        except OSError as error:
            raise OptionError(reading.problem(error), where=file, remedy=reading.remedy(error)) from error
        except (ValueError, RecursionError) as error:
            raise OptionError(f"is not valid JSON ({error})", where=file, remedy=_AGAIN) from error
        try:
            _check(content)
        except ValueError as error:
            raise OptionError(
                f"does not hold observed values ({error})", where=file, remedy=_AGAIN
            ) from error
        values = {name: Extremes(**row) for name, row in content["values"].items()}
        return cls(content["model"], content["samples"], values, str(file))

    @property
    def counts(self) -> dict[str, int]:
        """How many samples and values there are, and how many of these were `beyond` float16's range, and had
        elements that are `flushed` to 0 by it.
        """
        return {
            "samples": self.samples,
            "values": len(self),
            "beyond": sum(extremes.most > FLOAT16.largest for extremes in self.values()),
            "flushed": sum(extremes.flushed > 0 for extremes in self.values()),
        }

    def refuse_other(self, model: str) -> None:
        """OptionError unless `model` is the fingerprint of the model that was observed.

        Examples:
            >>> from amp_rewrite import Observed
            >>> Observed("of one model", 64, {}).refuse_other("of another")
            Traceback (most recent call last):
                ...
            amp_rewrite.errors.OptionError: seen: was observed on another model; observe the ...
        """
        if self.model != model:
            raise OptionError(
                "was observed on another model",
                where=self.where,
                remedy="observe the model that you rewrite",
            )


_AGAIN = "make it again with `Observed.save`"


def _joined(one: Extremes | None, other: Extremes | None) -> Extremes:
    if one is None or other is None:
        known = one or other
        assert known is not None, "a name is in one of the two"
        return known
    return one.join(other)


def _row(extremes: Extremes) -> dict[str, Any]:
    counts = {name: getattr(extremes, name) for name in _VALUE}
    return {**counts, "low": _canonical(extremes.low), "high": _canonical(extremes.high)}


def _canonical(number: float) -> float:
    """The same number, without the sign of a zero: which of two zeros is kept depends on their order."""
    return float(number) + 0.0


def _check(content: object) -> None:
    """ValueError, which says what is wrong, where content is not what `save` writes."""
    if not isinstance(content, dict):
        raise ValueError("the top level is not an object")
    if "format" in content and content["format"] != FORMAT:
        version = content["format"] if type(content["format"]) is int else "another"
        raise ValueError(f"format {version}, and {FORMAT} is read here")
    json_fields.check("", content, _TOP)
    for name, row in content["values"].items():
        path = f"values[{name!r}]"
        if not isinstance(row, dict) or row.keys() != _VALUE.keys():
            raise ValueError(f"{path} does not have the fields {', '.join(_VALUE)}")
        json_fields.check(f"{path}.", row, _VALUE)
        if row["low"] > row["high"]:
            raise ValueError(f"{path} has a low above its high")
        if row["beyond"] + row["flushed"] + row["not_finite"] > row["counted"]:
            raise ValueError(f"{path} counts more elements than it has")


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST  # pyright: ignore[reportArgumentType]


_LARGEST = 3.4028235e38
"""The largest number of float32, rounded up; NaN is not below it either."""

_FINITE = JsonField(_is_finite, "a finite number of float32")
_SMALL_COUNT = JsonField(lambda value: COUNT.holds(value) and value < 1 << 63, "a number from 0 to 2^63")
_TOP: JsonFields = {
    "format": COUNT,
    "model": TEXT,
    "samples": _SMALL_COUNT,
    "values": OBJECT,
}
_VALUE: JsonFields = {
    "low": _FINITE,
    "high": _FINITE,
    "samples": _SMALL_COUNT,
    "counted": _SMALL_COUNT,
    "beyond": _SMALL_COUNT,
    "flushed": _SMALL_COUNT,
    "not_finite": _SMALL_COUNT,
}
