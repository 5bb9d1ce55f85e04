"""How much the float32 model differs from itself: its outputs with and without onnxruntime's optimisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amp_rewrite.errors import AmpRewriteError
from amp_rewrite.running import comparison, metrics, sessions
from amp_rewrite.running.custom_ops import Libraries
from amp_rewrite.running.metrics import Channels
from amp_rewrite.running.sessions import Device, Feeds, Runnable


class Float32Noise:
    """The difference of a model's outputs from those of the same model, which runs unoptimised."""

    def __init__(self, model: Runnable, device: Device, libraries: Libraries = ()) -> None:
        self._model = model
        self._device = device
        self._libraries = libraries
        self._session: Any = None
        self._known: tuple[Feeds, Mapping[str, Any]] | None = None

    def outputs(self, feeds: Feeds) -> Mapping[str, Any] | None:
        """What the model computes unoptimised; kept until other feeds come.

        None where it cannot be had: onnxruntime may run a model with its optimisation only, or no time may be
        left; a verdict without noise is one all the same.
        """
        if self._known is None or self._known[0] is not feeds:
            try:
                self._known = feeds, self._run(feeds)
            except AmpRewriteError:
                return None
        return self._known[1]

    def _run(self, feeds: Feeds) -> Mapping[str, Any]:
        if self._session is None:
            self._session = sessions.open_unoptimised_session(self._model, self._device, self._libraries)
        return sessions.run_session(self._session, feeds)

    def measure(self, feeds: Feeds, outputs: Mapping[str, Any]) -> dict[str, Channels]:
        """The RMS differences from `outputs`, for each floating-point output; none where the model does not
        run unoptimised.
        """
        found = self.outputs(feeds)
        plain = dict(comparison.arrays(found)) if found is not None else {}
        return {
            name: metrics.differences(value, plain[name])
            for name, value in comparison.arrays(outputs)
            if metrics.is_float(value) and name in plain and plain[name].shape == value.shape
        }
