"""The flag `--placement`: the HTML report shows what onnxruntime's CUDA provider executes of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.placement import comparison, opening, placing, saved_graph, stub_libraries
from amp_rewrite.placement.comparison import Comparison
from amp_rewrite.placement.placement import Placement
from amp_rewrite.placement.placing import Execution, Open
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.reporting import executed_graph
from amp_rewrite.reporting.drawn_graph import Box
from amp_rewrite.reporting.executed_graph import PlacementView
from amp_rewrite.running.sessions import Device, Libraries

_DEVICE = Device.CUDA


def refuse_without_runtime() -> None:
    """Raises, before any work, what keeps models from being opened, as `stub_libraries.folder` does."""
    if opening.needs_stubs(_DEVICE):
        stub_libraries.folder()


@dataclass(frozen=True, slots=True)
class Placing:
    """Places results within a time limit, beside the original; None where it is not known. `libraries` are
    those of custom operators.
    """

    original: Path | None = None
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(None))
    libraries: Libraries = ()

    def view(self, result: Path, planned: Sequence[Box]) -> PlacementView:
        """What the report shows of a result, of which `planned` are the boxes in its plan."""
        with placing.opener(_DEVICE, self.libraries) as opened:
            before = self._opened(opened, self.original).placement if self.original else None
            execution = self._opened(opened, result)
        drawn = executed_graph.build(execution, saved_graph.load(result), planned)
        return PlacementView(Comparison(comparison.runtime(_DEVICE), execution.placement, before), drawn)

    def _opened(self, opened: Open, model: Path) -> Execution:
        """What comes of a model; the report on one that cannot be opened here says why."""
        try:
            with self.limit.running():
                return opened(model, None)
        except AmpRewriteError as error:
            return Execution(Placement(refused=error.problem))
