"""What to compare two models on: given samples, or synthetic ones, with images in each possible range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from amp_rewrite.model import loading
from amp_rewrite.running.inputs import feeds, synthetic
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.inputs.input_source import ImageRange, InputSource
from amp_rewrite.running.sessions import Feeds


@dataclass(frozen=True, slots=True)
class Trial:
    """Samples, and their source."""

    samples: Iterable[Feeds]
    source: InputSource


def trials(model: onnx.ModelProto | str | Path, data: Data) -> tuple[Trial, ...]:
    """The samples for a model, as `feeds` has them; where images are synthetic and the graph does not say
    their range, once for each range. Raises what `feeds` raises.
    """
    source = feeds.input_source(data)
    if not source.is_synthetic:
        return (Trial(feeds.feeds(model, data), source),)
    said = synthetic.image_ranges(loading.load(model).model, data.dims, data.ranges)
    ranges = tuple(ImageRange) if None in said else tuple(said)
    if len(ranges) == len(said) > 1:
        ranges = ()  # images of both ranges
    sources = [replace(source, images=images) for images in ranges] or [source]
    return tuple(Trial(feeds.feeds(model, of_source(data, found)), found) for found in sources)


def of_source(data: Data, source: InputSource) -> Data:
    """The data from which a trial with this source has its samples."""
    seed = data.seed if source.seed is None else source.seed
    return replace(data, images=source.images or data.images, seed=seed)
