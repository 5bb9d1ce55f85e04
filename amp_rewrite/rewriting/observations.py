"""The observed extremes of a model's values: a mapping that can be saved as JSON, loaded and merged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from amp_rewrite import arguments
from amp_rewrite.analysis.observed import NOTHING, Extremes, Seen
from amp_rewrite.errors import OptionError
from amp_rewrite.files import reading
from amp_rewrite.model import output_paths, writing
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.rewriting import records
from amp_rewrite.rewriting.records import Count

FORMAT = 1
"""The version of the file format; a file of another version is refused."""


class Observed(Mapping[str, Extremes]):
    """The extremes of a model's values, by name, over a number of samples.

    `model` identifies the model by its structure (`plan_files.fingerprint`), not by its weights: observations
    of another model are refused. Those on synthetic inputs keep values in float32, and free none. `where` is
    the file or argument that errors name.

    Examples:
        >>> from amp_rewrite import observe, rewrite
        >>> from amp_rewrite.demo import feeds, network
        >>> seen = observe(network(), feeds())
        >>> seen
        Observed(54 values, 1 samples)
        >>> round(seen["square"].high, 1)
        15.1
        >>> rewrite(network(), observed=seen).report.observed
        0
    """

    def __init__(
        self, model: str, samples: int, values: Seen, where: str = "observed", *, is_synthetic: bool = False
    ) -> None:
        self.where = where
        self.is_synthetic = is_synthetic
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
        """Return the extremes over the samples of both; OptionError when the other is of another model.

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
        extremes = {name: self.get(name, NOTHING).join(other.get(name, NOTHING)) for name in names}
        is_synthetic = self.is_synthetic or other.is_synthetic
        samples = self.samples + other.samples
        return Observed(self.model, samples, extremes, self.where, is_synthetic=is_synthetic)

    def save(self, path: arguments.PathLike, *, force: bool = False) -> None:
        """Write a JSON file atomically, with bytes that depend on the observations alone.

        Raises OptionError for a file that is no report of amp-rewrite, but with `force`, and OutputError.

        Examples:
            >>> import tempfile
            >>> from amp_rewrite import Observed
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Observed('of one model', 64, {}).save(f"{folder}/seen.json")
            ...     print(Observed.load(f"{folder}/seen.json").samples)
            64
        """
        place = arguments.path("path", path)
        output_paths.refuse_foreign(place, output_paths.FileKind.REPORT, force=force)
        writing.write_json(self.to_json(), place)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON data.

        Examples:
            >>> from amp_rewrite import Observed
            >>> Observed("of one model", 64, {}).to_json()
            {'format': 1, 'model': 'of one model', 'samples': 64, 'values': {}}
        """
        values = {
            name: {**dataclasses.asdict(each), "low": float(each.low) + 0.0, "high": float(each.high) + 0.0}
            for name, each in self.items()  # a zero of any sign, by the order of samples, is 0
        }
        synthetic = {"synthetic": True} if self.is_synthetic else {}
        return {"format": FORMAT, "model": self.model, "samples": self.samples, **synthetic, "values": values}

    @classmethod
    def load(cls, path: arguments.PathLike) -> Observed:
        """Load a file written by `save`; OptionError when it is missing, damaged, or of another format.

        Examples:
            >>> from amp_rewrite import Observed
            >>> Observed.load("missing.json")
            Traceback (most recent call last):
                ...
            amp_rewrite.errors.OptionError: missing.json: cannot be read (No such file or ...
        """
        file = arguments.path("path", path)
        try:
            content = records.parse(reading.read(file), _ObservedFile, FORMAT)
            values = {name: _extremes(name, row) for name, row in content.values.items()}
        except OSError as error:
            raise OptionError(reading.problem(error), where=file, remedy=reading.remedy(error)) from error
        except ValueError as error:
            raise OptionError(
                f"does not hold observed values ({error})", where=file, remedy=_AGAIN
            ) from error
        return cls(content.model, content.samples, values, str(file), is_synthetic=content.synthetic)

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers of samples and values, and how many of these were `beyond` float16's range, and
        had elements that are `flushed` to 0 by it.
        """
        return {
            "samples": self.samples,
            "values": len(self),
            "beyond": sum(extremes.most > FLOAT16.largest for extremes in self.values()),
            "flushed": sum(extremes.flushed > 0 for extremes in self.values()),
        }


_AGAIN = "make it again with `Observed.save`"


def _extremes(name: str, row: _Row) -> Extremes:
    """Return the extremes in a row; ValueError for numbers that contradict each other."""
    if row.low > row.high:
        raise ValueError(f"values[{name!r}] has a low above its high")
    if row.beyond + row.flushed + row.not_finite > row.counted:
        raise ValueError(f"values[{name!r}] counts more elements than it has")
    return Extremes(**{field.name: getattr(row, field.name) for field in dataclasses.fields(Extremes)})


_LARGEST = 3.4028235e38
"""The largest number of float32, rounded up."""

_Finite = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    low: _Finite
    high: _Finite
    samples: Count
    counted: Count
    beyond: Count
    flushed: Count
    not_finite: Count


class _ObservedFile(msgspec.Struct):
    format: Count
    model: str
    samples: Count
    values: dict[str, _Row]
    synthetic: bool = False
