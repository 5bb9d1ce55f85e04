"""The models of a folder, and the samples that lie beside them: what the benchmarks of real models run on.

Any folder will do. Every `.onnx` file in it counts, as deep as it lies. Its samples are those of

* `m.npz` beside `m.onnx`: arrays by the names of the inputs, as `numpy.savez` writes them; one sample;
* else the folders `test_data_set_*` beside it, as in ONNX's model zoo, for inputs that are no tensors.

A model without either is not run. It is named after its path; `bert/model.onnx` is `bert`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from amp_rewrite.running.inputs.feeds import Data, feeds, given_sizes
from amp_rewrite.running.sessions import Feeds


@dataclass(frozen=True, slots=True)
class Model:
    """A model and its samples: a file of them, folders, or nothing."""

    name: str
    path: Path
    data: tuple[Path, ...]

    @property
    def runs(self) -> bool:
        """Whether there is anything to run it on."""
        return bool(self.data)

    def samples(self, count: int) -> Iterator[Feeds]:
        """So many samples, repeated where there are fewer, from the files; FeedError if one does not fit."""
        return islice(cycle(feeds(self.path, Data(self.data))), count)

    def sample(self) -> Feeds:
        """The first sample; FeedError if it does not fit."""
        return next(self.samples(1))

    def dims(self) -> dict[str, int]:
        """The sizes of open dimensions in the first sample, as `input:axis`; none without a sample."""
        return dict(given_sizes(self.path, Data(self.data)).dims) if self.runs else {}


def models(folder: Path) -> list[Model]:
    """The models of a folder, sorted by name. Raises SystemExit where it holds none."""
    found = sorted((_model(folder, path) for path in folder.rglob("*.onnx")), key=lambda each: each.name)
    if not found:
        raise SystemExit(f"{folder}: holds no .onnx file")
    return found


def named(folder: Path, name: str) -> Model:
    """The model of that name."""
    return next(model for model in models(folder) if model.name == name)


def _model(folder: Path, path: Path) -> Model:
    place = path.relative_to(folder).with_suffix("")
    alone = place.name == "model" and len(place.parts) > 1
    return Model((place.parent if alone else place).as_posix(), path, _data(path))


def _data(path: Path) -> tuple[Path, ...]:
    sample = path.with_suffix(".npz")
    if sample.is_file():
        return (sample,)
    return tuple(sorted(each for each in path.parent.glob("test_data_set_*") if each.is_dir()))
