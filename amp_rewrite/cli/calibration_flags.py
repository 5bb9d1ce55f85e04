"""The flags that run the float32 model on many samples before anything is decided, and save what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from amp_rewrite.cli.decision_flags import DecisionFlags
from amp_rewrite.cli.executor_flag import executor_flag, opened
from amp_rewrite.cli.fields_as_flags import as_argument
from amp_rewrite.cli.flag_builders import PATH, grouped, repeatable, written_file
from amp_rewrite.cli.progress import counting, tell
from amp_rewrite.errors import OptionError
from amp_rewrite.policy.options import Level
from amp_rewrite.process.interruptible import TimeLimit
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.inputs.feeds import Data
from amp_rewrite.running.observation import observe
from amp_rewrite.running.sessions import Libraries

_FLAGS = (
    repeatable(
        "--calibrate",
        "PATH",
        "Run the float32 model on these samples first, and keep in float32 what leaves half's "
        "range on them: .npz files, directories of them, or ONNX test_data_set_* directories.",
        type=PATH,
    ),
    written_file(
        "--save-observed",
        "Write the ranges that --calibrate saw, merged with --observed, as JSON for --observed.",
    ),
    executor_flag("What runs the samples of --calibrate"),
)


@dataclass(frozen=True, slots=True)
class CalibrationFlags:
    """Where the samples are, where to save what they show, and who runs them."""

    paths: tuple[Path, ...]
    save: Path | None
    executor: str | None

    def seen(
        self,
        model: Path,
        asked: DecisionFlags,
        limit: TimeLimit,
        progress: Progress | None,
        libraries: Libraries = (),
    ) -> Observed | None:
        """What was observed before, with what these samples show; None where neither was asked for.

        Raises as `observe` does, OptionError where it can have no effect, and OutputError.
        """
        self._refuse_ineffective(asked)
        known = asked.seen
        if self.paths:
            found = self._calibrate(model, limit, progress, libraries)
            known = found if known is None else known.merge(found)
        if self.save is not None and known is not None:
            known.save(self.save)
        return known

    def _calibrate(
        self, model: Path, limit: TimeLimit, progress: Progress | None, libraries: Libraries
    ) -> Observed:
        data = Data(self.paths)
        source = feeds.input_source(data)
        tell(progress, "calibrate")
        with opened(self.executor) as executor, limit.running():
            samples = feeds.feeds(model, data)
            on_sample = counting(progress, len(source.files))
            return observe(
                model,
                samples,
                inputs=source,
                on_sample=on_sample,
                executor=executor,
                custom_ops=libraries,
            )

    def _refuse_ineffective(self, asked: DecisionFlags) -> None:
        if self.save is not None and not self.paths and asked.seen is None:
            raise OptionError(
                "--save-observed has nothing to save: it takes what --calibrate sees, or --observed holds",
                remedy=f"add --calibrate {_samples()}",
            )
        if self.executor is not None and not self.paths:
            raise OptionError("--executor is for --calibrate", remedy="add --calibrate PATH")
        settled = "--plan" if asked.replay else ""
        if asked.options.level is Level.UNSAFE_FORCE_ALL:
            settled = f"--level {asked.options.level.value}"
        if self.paths and settled:
            raise OptionError(f"{settled} decides all, whatever is observed", remedy="leave out --calibrate")


def _samples() -> str:
    """The inputs of the comparison, which are samples as well, where they were given."""
    context = click.get_current_context(silent=True)
    given: tuple[Path, ...] = context.params.get("data", ()) if context is not None else ()
    return " --calibrate ".join(map(as_argument, given)) or "PATH"


def _read(flags: Mapping[str, Any]) -> CalibrationFlags:
    return CalibrationFlags(tuple(flags["calibrate"]), flags["save_observed"], flags["executor"])


calibration_flags = grouped(_FLAGS, "calibration", _read)
"""Adds these flags to a command, which gets them as `CalibrationFlags` in `calibration`."""
