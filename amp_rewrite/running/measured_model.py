"""A float32 model in a session that gives the extremes of all its float values, and counts their elements.

Small values are handed out and reduced by NumPy; others, and those of bodies, are reduced within the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

import numpy as np
import onnx

from amp_rewrite.errors import ModelError
from amp_rewrite.running import (
    array_extremes,
    blocked_values,
    followers,
    handed_out,
    measurements,
    measuring_sessions,
    metrics,
    reductions,
    sessions,
)
from amp_rewrite.running.array_extremes import Floats
from amp_rewrite.running.handed_out import HandedOut
from amp_rewrite.running.light_model import LightModel
from amp_rewrite.running.measurements import Measurement
from amp_rewrite.running.measuring_sessions import Optimisation, Setting
from amp_rewrite.running.reductions import Treat
from amp_rewrite.running.sessions import Device, Feeds, Libraries
from amp_rewrite.running.slots import Slot, Treatment
from amp_rewrite.running.value_reductions import SINCE_COUNTS


class MeasuredModel:
    """A model in a session that gives numbers of its float values.

    Opening raises MissingPackageError and ModelError, running RunError. `can_count` says whether elements can
    be counted within a run; `handed_out` has the values that the session which is open hands out.
    """

    def __init__(self, model: LightModel, device: Device, libraries: Libraries = ()) -> None:
        self._model = model
        self._device = device
        self._libraries = libraries
        self._session: Any = None
        self._reduced: Sequence[Slot] = ()
        self.handed_out: Sequence[Slot] = ()
        self._chosen = HandedOut()
        self._in_blocks = device is Device.CPU and blocked_values.are_likely(model.proto.graph)
        self._uncertain: Sequence[int] = ()
        self._in_order = frozenset[str]()
        self.can_count = model.opset >= SINCE_COUNTS

    @property
    def is_open(self) -> bool:
        """Whether there is a session for what is chosen."""
        return self._session is not None

    @property
    def abreast(self) -> int:
        """How many runs are made side by side."""
        return 1 if self._device is not Device.CPU or self._libraries else self._chosen.abreast

    @property
    def is_for_few(self) -> bool:
        """Whether another session takes less for runs that do not count."""
        return self.counts_within or bool(self._chosen.constants) or (self._in_blocks and bool(self._reduced))

    @property
    def counts_within(self) -> bool:
        """Whether elements are counted within the runs of the session that is open."""
        return any(slot.treatment is not Treatment.REDUCED for slot in self._reduced)

    def fits(self, feeds: Feeds) -> bool:
        """Whether what was chosen to be handed out is small enough for these inputs too."""
        return self._chosen.fits(feeds)

    def choose(self, feeds: Feeds, where: str) -> None:
        """Chooses what is handed out from the sizes of values for these inputs: of one run, which tells them.

        No session is open then.
        """
        self._session, proto = None, self._model.copy()
        values = handed_out.sources(proto.graph, self._model.types)
        own = [name for name, source in values.items() if name == source]
        found = dict[str, int]()
        if own:
            handed_out.measure(proto.graph, own)
            session = measuring_sessions.open_session(proto, self._setting(), Optimisation.NONE)
            told = sessions.run_session(session, feeds, where=where).values()
            found = dict(zip(own, map(int, told), strict=True))
        constants = handed_out.folded(self._model.proto, found)
        self._chosen = handed_out.chosen(values, found, feeds, constants)

    def open(self, treat: Treat, *, many: bool = False, alone: bool = False) -> None:
        """Opens a session, in place of the last one, in which values are treated so, or handed out.

        For `many` runs it is optimised, and where little was added to it. Each run has all threads if it is
        made `alone`.
        """
        self._session = None  # first: two of them would take twice the memory
        model, proto = self._model, self._model.copy()
        names = self._handed_out_to_many(treat) if many else self._chosen.names
        slots = reductions.add(proto, model.types, model.opset, treat, names)
        self._reduced = [slot for slot in slots if slot.treatment is not Treatment.HANDED_OUT]
        self.handed_out = slots[len(self._reduced) :]
        self._session = self._opened(proto, self._setting(1 if alone else self.abreast), many=many)

    def read_in_order(self, names: Set[str]) -> None:
        """Has the next sessions reduce these values in order; all whose zeros may show, the second time."""
        if self._in_order:
            names = {self._reduced[at].names[0] for at in self._uncertain}
        self._in_order |= names
        self._session = None

    def _handed_out_to_many(self, treat: Treat) -> frozenset[str]:
        """What a session for many runs hands out: where elements are counted, NumPy is quicker."""
        chosen = self._chosen
        reduced = {name for name in chosen.bulky if treat(name) is Treatment.REDUCED}
        return chosen.names - chosen.constants - reduced

    def _setting(self, abreast: int = 1) -> Setting:
        return Setting(self._device, self._model.folder, self._libraries, abreast)

    def _opened(self, proto: onnx.ModelProto, setting: Setting, *, many: bool) -> Any:
        """A session that is optimised as far as it pays: not at all for a few runs that count elements."""
        self._uncertain = ()
        if not self._reduced:
            return measuring_sessions.open_session(proto, setting, Optimisation.ALL)
        session = self._opened_in_blocks(proto, setting) if many and self._in_blocks else None
        if session is not None:
            return session
        is_optimised = many or not self.counts_within
        optimisation = Optimisation.LAYOUT_KEPT if is_optimised else Optimisation.NONE
        return measuring_sessions.open_session(proto, setting, optimisation)

    def _opened_in_blocks(self, proto: onnx.ModelProto, setting: Setting) -> Any | None:
        """A session that reduces values in blocks; None, once and for all, where none is kept in blocks, or
        where onnxruntime does not take back what it made of the model.
        """
        names = {slot.names[0] for slot in self._reduced}
        change = partial(blocked_values.reduce, checked=names - self._in_order)
        with contextlib.suppress(ModelError):
            changed = measuring_sessions.open_changed_session(proto, setting, change)
            if changed is not None:
                session, zeros = changed
                self._uncertain = [at for at, slot in enumerate(self._reduced) if slot.names[0] in zeros]
                return session
        self._in_blocks = False
        return None

    def run(self, feeds: Feeds, where: str, *, counts: bool, counted: Set[str] = frozenset()) -> Measurement:
        """What one run shows; the elements of inputs and of what is handed out are counted with `counts`,
        and of values that are in `counted`.
        """
        outputs = sessions.run_session(self._session, feeds, where=where)
        return self._measured(feeds, outputs, counts=counts, counted=counted)

    def run_side_by_side(
        self, samples: Iterable[tuple[str, Feeds]], *, counts: bool, counted: Set[str]
    ) -> list[Measurement]:
        """As `run`, of samples that have names for errors."""
        show = partial(self._measured, counts=counts, counted=counted)
        return sessions.run_side_by_side(self._session, samples, show)

    def _measured(
        self, feeds: Feeds, outputs: Mapping[str, Any], *, counts: bool, counted: Set[str]
    ) -> Measurement:
        """What the outputs of a run show."""
        first = _VECTORS if self._reduced else 0
        vectors = list(outputs.values())[:first]
        arrays = list(outputs.values())[first:] if self.handed_out else []
        lows, highs = array_extremes.ends(arrays)
        shown = array_extremes.fit(lows, highs) & (not counts)
        found = Measurement(lows=lows, highs=highs, shown=shown, uncertain=self._zeros(vectors))
        for name, array in self._given(feeds):
            found.add([name], array_extremes.of(array, counts=counts))
        self._add_arrays(found, arrays, counts=counts, counted=counted)
        is_broken = measurements.add_rows(found, self._reduced, [vector.tolist() for vector in vectors])
        if is_broken or np.isnan(lows).any():  # ReduceMax and ReduceMin leave out elements beside a NaN
            uncounted = (slot for slot in self._reduced if slot.treatment is Treatment.REDUCED)
            found.uncounted.update(*(slot.all_names for slot in uncounted))
        return found

    def _zeros(self, vectors: Sequence[Floats]) -> frozenset[str]:
        """The values of whose extremes one may be a zero that fills a block."""
        names = (self._reduced[at].names[0] for at in self._uncertain if not all(v[at] for v in vectors[:2]))
        return frozenset(names)

    def _add_arrays(
        self, found: Measurement, arrays: Sequence[Floats], *, counts: bool, counted: Set[str]
    ) -> None:
        """Adds what is to be counted of what was handed out, or has elements that float16 does not hold."""
        for at, slot in enumerate(self.handed_out if counted else ()):
            if not counted.isdisjoint((slot.names[0], *followers.names(slot.followers))):
                found.shown[at] = False
        for at in np.flatnonzero(~found.shown).tolist():
            slot, given = self.handed_out[at], (arrays[at], float(found.lows[at]), float(found.highs[at]))
            own = counts or slot.names[0] in counted
            found.add(slot.names, array_extremes.between(*given, counts=own))
            for name in followers.names(slot.followers):
                found.add([name], array_extremes.cut(*given, counts=counts or name in counted))

    def _given(self, feeds: Feeds) -> Iterator[tuple[str, Any]]:
        types: Mapping[str, int] = self._model.types[0]
        for name, value in feeds.items():
            if name in types and isinstance(value, np.ndarray) and metrics.is_float(value):
                yield name, value


_VECTORS = 3
"""The outputs that hold what was reduced."""
