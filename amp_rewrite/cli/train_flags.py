"""The flags of `amp-rewrite train` that say what the step is, and what its loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amp_rewrite.cli.flags import Record, flag
from amp_rewrite.errors import OptionError
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy.options import FLOAT32
from amp_rewrite.training import spec
from amp_rewrite.training.spec import DynamicLossScale, LossScale, TrainSpec

_SETTINGS = {"initial": "initial_scale", "period": "increment_period", "multiplier": "multiplier"}
_SKIP_NONFINITE = "skip-nonfinite"
_START = DynamicLossScale()


@dataclass(frozen=True)
class StepNames(Record, title="The train step", argument="said"):
    """What is known of the step; the command gets a `TrainSpec`, and the suffix that pairs state."""

    loss: str | None = flag("--loss NAME", "The output that is the loss.")
    seed_value: str | None = flag("--seed NAME", "The value that every gradient is linear in.")
    state: tuple[str, ...] = flag(
        "--state IN=OUT|SUFFIX...",
        "An input, and the output that is its new value; or the suffix of all such outputs, as in .new.",
        short="An input, and the output that is its new value.",
    )

    gradient: tuple[str, ...] = flag("--gradient NAME...", "A value that is a gradient.")

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Any:
        """Return what is known of the step, and the suffix that pairs state, if it is given."""
        state, suffixes = (
            [text for text in values["state"] if ("=" in text) is pairs] for pairs in (True, False)
        )
        if len(suffixes) > 1:
            problem = f"--state {suffixes[1]}: the suffix is {suffixes[0]}"
            raise OptionError(problem, remedy="give one suffix, or pairs as in --state w=w.new")
        try:
            pairs = spec.pairs("--state", state)
        except OptionError as error:
            raise OptionError(f"--state: {error.problem}", remedy="write it as in --state w=w.new") from error
        step = TrainSpec(values["loss"] or "", values["seed_value"] or "", pairs, values["gradient"])
        return step, next(iter(suffixes), None)


@dataclass(frozen=True)
class ScaleFlags(Record, title=StepNames.title, argument="scaling"):
    """The parts of `--loss-scale`."""

    loss_scale: tuple[str, ...] = flag(
        "--loss-scale PART...",
        "auto (the default): dynamic for float16, none for bfloat16; dynamic: adapted in every step; "
        f"none; a number: fixed. Of a dynamic one, initial=N ({_START.initial_scale:g}); period=N, the "
        f"steps with finite gradients until it grows ({_START.increment_period}); multiplier=N, by which "
        f"it grows, and shrinks where gradients are not finite ({_START.multiplier:g}). Of a fixed one, "
        f"{_SKIP_NONFINITE}: keep the state where gradients are not finite. Commas may join parts.",
        short="auto, dynamic, none or a number, and settings.",
    )

    @property
    def parts(self) -> list[str]:
        """The parts, whether they were joined or not."""
        return [part.strip().lower() for text in self.loss_scale for part in text.split(",")]

    @property
    def skips_nonfinite(self) -> bool:
        """Whether the state is kept where gradients are not finite."""
        return _SKIP_NONFINITE in self.parts

    def settled(self, half: Half | None) -> LossScale | None:
        """Return the loss scale for a half type, or None; raise OptionError for parts without effect."""
        words = [part for part in self.parts if "=" not in part and part != _SKIP_NONFINITE]
        if len(words) > 1:
            raise OptionError(f"--loss-scale is both {words[0]} and {words[1]}", remedy="give it once")
        word, settings = words[0] if words else spec.AUTO, self._settings()
        scale = _scale(word, settings, half)
        if settings and not isinstance(scale, DynamicLossScale):
            of_half = "" if half is FLOAT16 else f" for {half.name if half else FLOAT32}"
            raise OptionError(
                f"--loss-scale {word}{of_half} has no {' nor '.join(settings)}",
                remedy="say --loss-scale dynamic, or leave them out",
            )
        if self.skips_nonfinite and scale is None:
            problem = "--loss-scale skip-nonfinite is for a loss scale"
            raise OptionError(problem, remedy="say --loss-scale 1, or more")
        return scale

    def _settings(self) -> dict[str, float]:
        """Return the settings of a dynamic scale by the names that the flag gives them."""
        settings: dict[str, float] = {}
        for part in (part for part in self.parts if "=" in part):
            name, _, number = part.partition("=")
            if name in settings:
                raise OptionError(f"--loss-scale gives {name} twice", remedy="give it once")
            try:
                settings[name] = int(number) if number.isdecimal() else float(number)
            except ValueError as error:
                raise _no_scale(part) from error
            if name not in _SETTINGS:
                raise _no_scale(part)
        return settings


def _scale(word: str, settings: Mapping[str, float], half: Half | None) -> LossScale | None:
    if word == "none" or (word == spec.AUTO and half is not FLOAT16):
        return None
    if word in (spec.AUTO, spec.DYNAMIC):
        try:
            return DynamicLossScale(**{_SETTINGS[name]: number for name, number in settings.items()})  # pyright: ignore[reportArgumentType]
        except OptionError as error:
            name = next(name for name, field in _SETTINGS.items() if error.where.endswith(field))
            raise OptionError(f"--loss-scale {name}=: {error.problem}", remedy=error.remedy) from error
    try:
        return spec.parse_scale(float(word))
    except (ValueError, OptionError) as error:
        raise _no_scale(word) from error


def _no_scale(text: str) -> OptionError:
    remedy = f"say auto, dynamic, none, or a number from 1 up; {', '.join(f'{n}=N' for n in _SETTINGS)}"
    return OptionError(f"--loss-scale {text} is not a loss scale", remedy=f"{remedy}, or {_SKIP_NONFINITE}")
