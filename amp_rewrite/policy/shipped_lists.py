"""The operator lists that come with the package: their names, and the folder that holds them."""

from __future__ import annotations

import functools
from pathlib import Path

from amp_rewrite.errors import ListError


def names() -> tuple[str, ...]:
    """The names of the shipped lists, in order; ListError if there are none."""
    return _names_in(folder())


def folder() -> Path:
    """Where the shipped lists are: in an installed package, or beside it in a checkout.

    Raises ListError when they are in neither place.
    """
    return _above(__file__)


@functools.cache
def _above(module: str) -> Path:
    """Looked for once: a rewrite asks ten times, which was an eighth of the time of a small one."""
    package = Path(module).resolve().parents[1]
    places = (package / "oplists", package.parent / "oplists")
    # A folder of that name beside an installed package may be anybody's.
    for place in places:
        if (place / "default.yaml").is_file():
            return place
    raise ListError(
        f"the shipped operator lists are in neither {places[0]} nor {places[1]}",
        remedy="install amp-rewrite again",
    )


@functools.cache
def holds(file: Path) -> bool:
    """Whether a file is one of the shipped lists."""
    return file.resolve().parent == folder().resolve()


@functools.cache
def _names_in(place: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in place.glob("*.yaml")))
