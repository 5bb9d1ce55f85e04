"""The placement of a result beside that of its original, and what made them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amp_rewrite.placement import opening
from amp_rewrite.placement.differences import between, totals
from amp_rewrite.placement.placement import Placement
from amp_rewrite.running import sessions
from amp_rewrite.running.sessions import Device


@dataclass(frozen=True, slots=True)
class Runtime:
    """The onnxruntime that was asked: its version, the device, and whether stub libraries stood in for it."""

    version: str
    device: Device
    stubs: bool

    def to_json(self) -> dict[str, object]:
        """The same as plain data."""
        return {"onnxruntime": self.version, "provider": self.device.value.lower(), "stubs": self.stubs}


def runtime(device: Device) -> Runtime:
    """The runtime that places models on a device; MissingPackageError without one."""
    return Runtime(sessions.onnxruntime().__version__, device, opening.needs_stubs(device))


@dataclass(frozen=True, slots=True)
class Count:
    """A number of a result, that of its original (None where that is unknown), and whether it is worse."""

    what: str
    before: int | None
    after: int
    is_worse: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """The placement of a result, and that of its original, None where that is not known."""

    runtime: Runtime
    result: Placement
    original: Placement | None

    def counts(self) -> Iterator[Count]:
        """The totals of a result that loads, beside those of an original that loads."""
        original = None if self.original is None or self.original.refused else self.original
        worse = {row.what for row in between(original, self.result).worse} if original else set[str]()
        if self.result.refused:
            return
        after, before = totals(self.result), totals(original) if original else {}
        for what, number in after.items():
            yield Count(what, before.get(what), number, is_worse=what in worse)

    def to_json(self) -> dict[str, object]:
        """The same as plain data."""
        if self.original is None:
            return {**self.runtime.to_json(), "result": self.result.to_json()}
        against = {"against": between(self.original, self.result).to_json()}
        placements = {"original": self.original.to_json(), "result": {**self.result.to_json(), **against}}
        return {**self.runtime.to_json(), **placements}
