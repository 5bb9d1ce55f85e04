"""Original against rewritten, in numbers: on CUDA where it works, else on the CPU with half rounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_rewrite.errors import FeedError, ModelError
from amp_rewrite.options import Borders
from amp_rewrite.running import metrics, sessions
from amp_rewrite.running.blame import Blame
from amp_rewrite.running.emulation import emulated
from amp_rewrite.running.metrics import Metrics, Tolerances
from amp_rewrite.running.sessions import Device, Feeds, Runnable
from amp_rewrite.stoppable import Limit


@dataclass(frozen=True, slots=True)
class Output:
    """An output's metrics, the worst of all samples, and the bounds that it breaks, in words."""

    name: str
    metrics: Metrics
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a rewritten model does what the original does.

    `signature` says what differs in names, types and shapes of inputs and outputs and should not, or why
    the rewritten model does not run at all; `how` where the two ran, `samples` on how many inputs. `blame`
    is there when it was asked for.
    """

    outputs: tuple[Output, ...]
    signature: tuple[str, ...]
    how: str
    samples: int
    blame: Blame | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not self.signature and not any(output.broken for output in self.outputs)

    @property
    def is_far(self) -> bool:
        """Whether the outputs are what is wrong: the two models have the same borders, and both run."""
        return not self.signature and not self.ok

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return _plain(asdict(self) | {"ok": self.ok})


def _plain(value: Any) -> Any:
    """The same with numbers that JSON has no word for as text."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def verify(
    original: Runnable,
    rewritten: Runnable,
    samples: Iterable[Feeds],
    bounds: Tolerances | None = None,
    *,
    borders: Borders = Borders.KEEP,
    device: Device | None = None,
    timeout: float | None = None,
) -> Verdict:
    """Runs both models on all samples and compares their outputs.

    With `Borders.HALF`, float32 inputs and outputs may be half in the rewritten model. One that does not run,
    or has other inputs and outputs, has a bad verdict. Raises MissingPackageError without onnxruntime,
    ModelError and FeedError when the original does not run, and TimeLimitError after `timeout` seconds.
    """
    with Limit(timeout).running():
        return _verify(original, rewritten, samples, bounds or Tolerances(), borders, device)


def _verify(
    original: Runnable,
    rewritten: Runnable,
    samples: Iterable[Feeds],
    bounds: Tolerances,
    borders: Borders,
    device: Device | None,
) -> Verdict:
    where = device or sessions.best_device()
    before = sessions.open_session(original, where)
    judged = Verdict(outputs=(), signature=(), how=_HOW[where], samples=0)
    try:
        with emulated(rewritten, where, late=True) as runnable:
            return _judge(judged, before, runnable, samples, bounds, borders, where)
    except _FailedError as error:
        return replace(judged, signature=(f"the rewritten model does not run: {error}",))


class _FailedError(Exception):
    """A run that the original survives and the rewritten model does not."""


def _judge(
    judged: Verdict,
    before: Any,
    rewritten: Runnable,
    samples: Iterable[Feeds],
    bounds: Tolerances,
    borders: Borders,
    where: Device,
) -> Verdict:
    try:
        after = sessions.open_session(rewritten, where)
    except ModelError as error:
        raise _FailedError(error) from error
    judged = replace(judged, signature=tuple(_differences(before, after, borders)))
    if judged.signature:
        return judged
    measured = [_measure(before, after, feeds) for feeds in samples]
    if not measured:
        raise FeedError("there is no sample to run", remedy="give one with --data, or leave it out")
    return replace(judged, outputs=tuple(_outputs(measured, bounds)), samples=len(measured))


_HOW = {
    Device.CUDA: "CUDA, float32 without TF32 against half",
    Device.CPU: "CPU, float32 against half emulated",
}


def _differences(before: Any, after: Any, borders: Borders) -> Iterator[str]:
    for side in ("inputs", "outputs"):
        old, new = (getattr(session, f"get_{side}")() for session in (before, after))
        if [entry.name for entry in old] != [entry.name for entry in new]:
            yield f"the {side} are {_names(new)}, and were {_names(old)}"
            continue
        for was, now in zip(old, new, strict=True):
            halved = borders is Borders.HALF and {was.type, now.type} <= _HALF_OR_FLOAT
            if was.type != now.type and not halved:
                yield f"'{was.name}' is {now.type}, and was {was.type}"
            if was.shape != now.shape:
                yield f"'{was.name}' has the shape {now.shape}, and had {was.shape}"


_HALF_OR_FLOAT = {"tensor(float)", "tensor(float16)", "tensor(bfloat16)"}


def _names(entries: Iterable[Any]) -> str:
    return ", ".join(f"'{entry.name}'" for entry in entries)


Measured = dict[str, tuple[Metrics, bool]]
"""Metrics by output, and whether the output is of floats."""


def _measure(before: Any, after: Any, feeds: Feeds) -> Measured:
    expected = dict(_arrays(sessions.run_session(before, feeds)))
    try:
        actual = dict(_arrays(sessions.run_session(after, feeds)))
    except FeedError as error:
        raise _FailedError(error) from error
    found: Measured = {}
    for name in dict.fromkeys((*expected, *actual)):
        wanted = expected.get(name)
        compared = _compare(wanted, actual.get(name))
        found[name] = (compared, wanted is None or metrics.is_float(wanted))
    return found


def _compare(wanted: NDArray[Any] | None, got: NDArray[Any] | None) -> Metrics:
    if wanted is None or got is None or got.shape != wanted.shape:
        return _INCOMPARABLE
    return metrics.measure(wanted, got)


_INCOMPARABLE = Metrics(np.inf, np.inf, np.inf, 0.0, 0.0, 0.0, 0)
"""An output that is missing or has another shape."""


def _arrays(outputs: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every output as arrays: sequences element by element, maps as their values in the order of keys."""
    for name, value in outputs.items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, Mapping):
            yield name, np.array([value[key] for key in sorted(value)])
        elif isinstance(value, list):
            yield from _arrays({f"{name}[{i}]": element for i, element in enumerate(value)})


def _outputs(measured: list[Measured], bounds: Tolerances) -> Iterator[Output]:
    for name in dict.fromkeys(name for sample in measured for name in sample):
        samples = [sample[name] for sample in measured if name in sample]
        worst, is_float = _worst([found for found, _ in samples]), samples[0][1]
        yield Output(name, worst, tuple(metrics.broken(worst, bounds, is_float=is_float)))


def _worst(samples: list[Metrics]) -> Metrics:
    agreements = [sample.agreement for sample in samples if sample.agreement is not None]
    return replace(
        samples[0],
        max_abs=max(sample.max_abs for sample in samples),
        mean_abs=max(sample.mean_abs for sample in samples),
        relative_l2=max(sample.relative_l2 for sample in samples),
        cosine=min(sample.cosine for sample in samples),
        snr_db=min(sample.snr_db for sample in samples),
        agreement=min(agreements) if agreements else None,
        non_finite=sum(sample.non_finite for sample in samples),
    )
