"""The flags that decide what becomes half."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import click

from amp_rewrite import pipeline
from amp_rewrite.arguments import Beside, ExternalData
from amp_rewrite.cli.flags import PATH, Flag, Need, Record, as_field, command, flag, written
from amp_rewrite.cli.records import SizeFlags, assignments, holds_ranges, quantity
from amp_rewrite.errors import OptionError
from amp_rewrite.explaining.frozen_analysis import Analysis
from amp_rewrite.numerics import half as halves
from amp_rewrite.numerics.half import FLOAT16, Half
from amp_rewrite.policy import devices, operator_lists, targets
from amp_rewrite.policy.operator_lists import Kind, OpLists
from amp_rewrite.policy.options import CASTING, FLOAT32, KERAS, SHIPPED_FOR, IOTypes, Level, Options, Pins
from amp_rewrite.process.stopwatch import Progress
from amp_rewrite.rewriting import plan_files
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs.feeds import Data

STORAGE_ONLY = "storage-only"
"""The level that stands for `Options.storage_only`."""

_NODES = "Node names, or regular expressions that match a whole name."
_KINDS = {
    "allow": "it becomes half",
    "infer": "half between half nodes, unless its inputs come from a denied one",
    "clear": "it does no arithmetic, and takes the type of its neighbours",
    "deny": "it stays float32, and so do nodes that depend on its result",
}
_LIST = (
    "Operator lists: a shipped one (default, bfloat16, tensorflow), a YAML file, or an operator to put on a "
    f"list: infer=OP ({_KINDS['infer']}), clear=OP ({_KINDS['clear']}), allow=OP, deny=OP."
)
_LEVEL = (
    "How much becomes half: what the lists and rules decide (default); only operators on the allow list "
    "(tensor-cores-only); the default, with the infer list treated as denied (treat-infer-as-deny); "
    "everything that the types allow, whatever that does to accuracy (unsafe-force-all); or weights alone, "
    f"each with a Cast to float32, in which all arithmetic stays ({STORAGE_ONLY})."
)
_LEVEL_OF_STEP = f"{_LEVEL} With casting, every layer that is not denied."
_LEVELS = (*(level.value for level in Level), STORAGE_ONLY)
_FORCED = Level.UNSAFE_FORCE_ALL.value
_OPSET = (
    "The opset of the result: every node must mean the same. If not given: raised where that gives more half "
    "kernels, and with keep not even then."
)
_KEEP_OPSET = "keep"
_STORAGE = (
    "Store weights in files beside the result: if the model does so, or they exceed 2 GiB (auto); "
    "always, in one file; never; or in files of at most SIZE, such as 2GB."
)
_OBSERVED = "Ranges that --save observed=FILE wrote (.json): what left half's range stays float32."
_SAMPLES = (
    "Record value ranges by running the float32 model on these samples; what leaves half's range stays "
    "float32: .npz files, directories of them, or ONNX test_data_set_* directories; or ranges that --save "
    "observed=FILE wrote (.json)."
)
_KERAS = (
    "The half type; or a precision policy under its Keras name: under a mixed one a final softmax stays "
    "float32, and float32 leaves the whole model in float32."
)
VERIFY, REPAIR, ENGINE = "verify", "repair", "tensorrt"
"""The values of `--skip` and `--require` for the comparison of the result with the model, for the attempts
after a failed one, and for a result that TensorRT compiles.
"""
_REQUIREMENTS = {
    "half": "exit with code 1, after writing it, if nothing in it is half",
    VERIFY: "fail if the comparison could not run, or failed on synthetic inputs",
    ENGINE: "TensorRT compiles it, without a GPU; a result that it refuses is not written",
}
_REQUIRE_NEEDS = (
    Need("--skip verify", "compares nothing", word=VERIFY),
    Need("--dry-run", "makes no result", word=VERIFY),
    Need("--dry-run", "makes no result", word=ENGINE),
)
_NO_PLAN = Need("--plan", "decides everything")
_NO_KERAS = Need(f"--to {FLOAT32}", "leaves everything in float32")


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that `--skip` names: the field of Options that decides it, and what skipping it means."""

    field: str
    skipping: str


_OF_RESULT = {
    "check": _Step("check", "onnx's checker does not run"),
    "certify": _Step("certify", "the result is written without the proof of it"),
    "metadata": _Step("metadata", "the result does not carry the decisions"),
}
_DECIDING = {
    "follow": _Step("follow", "float32 before the first and after the last matrix product"),
    "inline": _Step("keep_functions", "model-local functions stay, in float32"),
    "fold": _Step("fold", "constants and BatchNormalizations are not folded into weights"),
    "bounds": _Step("free", "denied operators stay float32 even where bounds prove that they fit"),
    "rescale": _Step("rescale", "values that leave float16's range stay float32, not times powers of two"),
    "defaults": _Step("keep_overridable", "inputs that have a default do not become constants"),
}
STEPS: Mapping[str, str] = {f"Options.{step.field}": word for word, step in (_OF_RESULT | _DECIDING).items()}
"""The step of `--skip` that decides each of these fields."""


def _decides(written: str, about: str, sets: str, *needs: Need, **settings: Any) -> Any:
    """Return a flag that decides these fields of the library, each with what follows the flag there."""
    names = {name: text for name, _, text in (each.partition(" ") for each in sets.split(", "))}
    return flag(written, about, needs=(_NO_PLAN, *needs), sets=names, **settings)


def _skip(own: Mapping[str, str], *of_result: str) -> Any:
    """Return the flag for the steps of a command itself, those of a result, and those that decide."""
    steps = {**{word: _OF_RESULT[word] for word in of_result}, **_DECIDING}
    return flag(
        "--skip",
        "Skip steps:",
        short="Skip steps, such as verify.",
        words={**own, **{word: step.skipping for word, step in steps.items()}},
        rare_values=tuple(steps),
        rare=not own,
        needs=(
            Need("--skip verify", "compares nothing", word=REPAIR),
            *(replace(_NO_PLAN, word=step) for step in sorted(_DECIDING)),
        ),
    )


def _require(*words: str) -> Any:
    return flag(
        "--require",
        "What the result must be:",
        short=f"What the result must be: {', '.join(words)}.",
        words={word: _REQUIREMENTS[word] for word in words},
        needs=_REQUIRE_NEEDS,
    )


# ---- what the flags decide


@dataclass(frozen=True)
class DecisionRequest:
    """The decisions of the flags; `decided` is true if any of them was written.

    `seen` holds the ranges observed earlier; None without any. `samples` are those to observe, `skipped` the
    steps of `--skip`, and `required` the words of `--require`. `to` and `level` are those of the flags.
    """

    options: Options
    replay: plan_files.SavedPlan | None
    decided: bool
    seen: Observed | None
    samples: tuple[Path, ...]
    skipped: tuple[str, ...]
    required: tuple[str, ...]
    to: str
    level: str

    def analyze(self, model: Path, progress: Progress | None = None) -> Analysis:
        """Analyze a model under these decisions; raise as `pipeline.analyze`."""
        return pipeline.analyze(
            model, self.options, replay=self.replay, observed=self.seen, progress=progress
        )


@dataclass(frozen=True)
class DecisionFlags(Record, title="What becomes half", argument="asked"):
    """The flags of a command that decides; the command gets `DecisionRequest`."""

    lacks: ClassVar[frozenset[str]] = frozenset(("external_data", "require"))
    """The flags below that the command does not have."""
    takes_samples: ClassVar[bool] = False

    to: str = _decides(
        "--to", "The half type.", "Options.half", values=tuple(halves.BY_NAME), default=FLOAT16.name
    )
    target: str = _decides(
        "--target",
        "The runtime that will run the model.",
        "Options.target",
        short="The runtime, such as tensorrt; else onnxruntime.",
        values=tuple(targets.BY_NAME),
        default=targets.ONNXRUNTIME_CUDA.name,
    )
    list_: tuple[str, ...] = _decides(
        "--list NAME|FILE|KIND=OP...",
        _LIST,
        "Options.lists, OpLists.override(infer) infer=, OpLists.override(clear) clear=",
        _NO_KERAS,
        rare=True,
    )
    allow: tuple[str, ...] = _decides(
        "--allow OP...",
        f"Put an operator on the allow list: {_KINDS['allow']}.",
        "OpLists.override(allow)",
        _NO_KERAS,
        short="This operator becomes half.",
    )
    deny: tuple[str, ...] = _decides(
        "--deny OP...",
        f"Put an operator on the deny list: {_KINDS['deny']}.",
        "OpLists.override(deny)",
        _NO_KERAS,
        short="This operator stays float32.",
    )
    keep_full: tuple[str, ...] = _decides(
        "--keep-full REGEX...", f"Keep these nodes in float32. {_NODES}", "Pins.keep_full"
    )
    force_half: tuple[str, ...] = _decides(
        "--force-half REGEX...", f"Put these nodes in half. {_NODES}", "Pins.force_half"
    )
    only: tuple[str, ...] = _decides(
        "--only REGEX...",
        f"Put in half only these nodes and those between them. {_NODES}",
        "Pins.only",
        rare=True,
    )
    level: str = _decides(
        "--level",
        _LEVEL,
        f"Options.level, Options.storage_only {STORAGE_ONLY}",
        values=_LEVELS,
        rare_values=(Level.TREAT_INFER_AS_DENY.value,),
        default=Level.DEFAULT.value,
        rare=True,
    )
    io: str = _decides(
        "--io",
        "The type of the model's float32 inputs and outputs.",
        "Options.io",
        short="The type of float32 inputs and outputs.",
        values=tuple(io.value for io in IOTypes),
        default=IOTypes.KEEP.value,
    )
    keep_io: tuple[str, ...] = _decides(
        "--keep-io REGEX...",
        "With --io: these (names, or RE2) stay float32.",
        "Options.keep_io",
        Need("--io half", unless=("--io state",)),
        short="With --io: these stay float32.",
    )
    opset: str | None = _decides(
        "--opset N|keep", _OPSET, "Options.opset, Options.keep_opset keep", rare=True
    )
    device: str = _decides(
        "--device NAME,HALF/SINGLE,TB/S",
        "The device for which times are predicted; others by TFLOPS in two types, and TB/s.",
        "Options.device",
        kind=str,
        values=tuple(devices.BY_NAME),
        default=devices.H200.name,
        rare=True,
    )
    gate: bool = _decides(
        "--gate",
        "Leave the model unchanged if half is predicted to be no faster.",
        "Options.gate",
        rare=True,
    )
    op_type: tuple[str, ...] = _decides(
        "--op-type DOMAIN:OP=TYPES...",
        "Types that the kernels of a custom operator take: autoware:Op=float16, or half,IN1:float32.",
        "Options.op_types",
        rare=True,
    )
    range: tuple[str, ...] = _decides(
        "--range NAME=LO:HI...",
        "The range of an input; the ranges of all other values are derived from it.",
        "Options.ranges",
        rare=True,
    )
    external_data: str = flag(
        "--external-data auto|always|never|SIZE",
        _STORAGE,
        rare=True,
        default=Beside.AUTO.value,
        sets={"Options.external_data": ""},
    )
    calibrate: tuple[Path, ...] = flag(
        "--calibrate PATH...",
        _OBSERVED,
        PATH,
        short="Keep what leaves half's range on these in float32.",
        needs=(
            _NO_PLAN,
            Need(f"--level {_FORCED}", "decides all, whatever is observed"),
        ),
    )
    skip: tuple[str, ...] = _skip({})
    require: tuple[str, ...] = _require("half")
    plan: Path | None = flag(
        "--plan FILE", "Apply a saved plan; no other decision flag is allowed.", PATH, rare=True
    )

    @classmethod
    def flags(cls) -> Mapping[str, Flag]:
        """Return the flags that the command has, those of a subclass where the others are."""
        flags = super().flags()
        return {each.name: flags[each.name] for each in fields(cls) if each.name not in cls.lacks}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Any:
        """Return the decisions; raises OptionError for flags that contradict each other."""
        return cls(**values)._decisions()

    def _decisions(self) -> DecisionRequest:
        samples = tuple(path for path in self.calibrate if not holds_ranges(path))
        ranges = tuple(path for path in self.calibrate if holds_ranges(path))
        if samples and not self.takes_samples:
            problem = f"--calibrate {samples[0]}: this command runs no samples first"
            raise OptionError(problem, remedy="give ranges that amp-rewrite MODEL --save observed=FILE wrote")
        others = {"external_data", "skip", "require"} | (set() if ranges else {"calibrate"})
        names = (name for name in self.flags() if name not in others)
        is_decided = bool(written(click.get_current_context(), names))
        replay = plan_files.load(str(self.plan)) if self.plan else None
        defaults = Options()
        of_result: dict[str, Any] = {
            step.field: getattr(defaults, step.field) is not (word in self.skip)
            for word, step in (_OF_RESULT if replay else _OF_RESULT | _DECIDING).items()
        }
        of_result |= {"external_data": external_data(self.external_data)}
        return DecisionRequest(
            options=replay.over(Options(**of_result)) if replay else self._options(**of_result),
            replay=replay,
            decided=is_decided or not _DECIDING.keys().isdisjoint(self.skip),
            seen=_observed(ranges),
            samples=samples,
            skipped=self.skip,
            required=self.require,
            to=self.to,
            level=self.level,
        )

    def _options(self, **others: Any) -> Options:
        return Options(
            half=self._half,
            target=self.target,
            lists=self._lists(),
            pins=Pins(self.keep_full, self.force_half, self.only),
            level=Level.DEFAULT if self.level in (STORAGE_ONLY, CASTING) else self.level,
            storage_only=self.level == STORAGE_ONLY,
            io=self.io,
            keep_io=self.keep_io,
            opset=self._opset(),
            keep_opset=self.opset == _KEEP_OPSET,
            device=self.device,
            gate=self.gate,
            op_types=op_types(self.op_type),
            ranges=assignments("--range", self.range, "NAME=LO:HI", _ends, "ranges", "pixels=0:255"),
            **others,
        )

    @property
    def _half(self) -> Half:
        return KERAS.get(self.to, halves.BY_NAME.get(self.to)) or FLOAT16

    def _opset(self) -> int | None:
        if self.opset in (None, _KEEP_OPSET):
            return None
        if not self.opset.isdecimal():
            raise OptionError(
                f"--opset {self.opset} is not a number", remedy="write --opset 17, or --opset keep"
            )
        return int(self.opset)

    def _lists(self) -> OpLists:
        """Return the list with the moved operators; raise OptionError for two: one would win silently."""
        moves, names = [f"{op}=allow" for op in self.allow] + [f"{op}=deny" for op in self.deny], list[str]()
        for text in self.list_:
            kind, _, operator = text.partition("=")
            if kind in _KINDS and operator:
                moves.append(f"{operator}={kind}")
            else:
                names.append(text)
        if len(names) > 1:
            remedy = "name one, which may extend another: extends: tensorflow"
            raise OptionError(f"--list names two: {names[0]} and {names[1]}", remedy=remedy)
        lists = operator_lists.load(names[0] if names else SHIPPED_FOR[self._half.name])
        kinds = assignments("--list", moves, "KIND=OP", lambda _, kind: Kind(kind), "kinds", "infer=Softmax")
        for kind in Kind:
            lists = lists.override(kind, [operator for operator, of in kinds.items() if of is kind])
        return lists


def _other(name: str, **settings: Any) -> Any:
    """Return a field of DecisionFlags whose flag has other settings."""
    return as_field(DecisionFlags.flags()[name].other(**settings))


@dataclass(frozen=True)
class RewriteDecisions(DecisionFlags):
    """The flags of a rewrite."""

    lacks = frozenset()
    takes_samples = True

    calibrate: tuple[Path, ...] = _other("calibrate", about=_SAMPLES)
    skip: tuple[str, ...] = _skip(
        {
            VERIFY: "the result is not compared with the model",
            REPAIR: "a failed comparison is not followed by a second attempt",
        },
        *_OF_RESULT,
    )
    require: tuple[str, ...] = _require("half", VERIFY, ENGINE)


@dataclass(frozen=True)
class TuneDecisions(DecisionFlags):
    """The flags before a search, to which no level leaves nothing."""

    lacks = frozenset(("plan",))

    level: str = _other("level", values=tuple(each for each in _LEVELS if each != _FORCED))


@dataclass(frozen=True)
class TrainDecisions(DecisionFlags):
    """The flags of a train step."""

    lacks = frozenset(("plan",))

    to: str = _other("to", about=_KERAS, values=(*halves.BY_NAME, *KERAS))
    level: str = _other("level", about=_LEVEL_OF_STEP, values=(*_LEVELS, CASTING))
    skip: tuple[str, ...] = _skip(
        {VERIFY: "three steps of the result are not compared with three of the model"}, "certify"
    )
    require: tuple[str, ...] = _require(VERIFY)


def _ends(_: str, text: str) -> tuple[float, float]:
    low, high = map(float, text.split(":"))
    return low, high


def op_types(texts: Iterable[str]) -> dict[str, str]:
    """Parse the texts OPERATOR=TYPES of --op-type; raises as `assignments`."""
    return assignments(
        "--op-type", texts, "DOMAIN:OP=TYPES", lambda _, types: types, "declarations", "autoware:Op=float16"
    )


def external_data(text: str) -> ExternalData:
    """Parse a word, or a size such as 2GB, which limits each data file."""
    if text.lower() in {beside.value for beside in Beside}:
        return ExternalData(text.lower())
    largest = int(quantity(text.lower(), _UNITS))
    if not largest:
        raise OptionError(
            f"--external-data {text} is not a valid value",
            remedy="say auto, always, never, or a size such as 2GB",
        )
    return ExternalData(Beside.ALWAYS, largest)


_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _observed(paths: Sequence[Path]) -> Observed | None:
    """Merge the observed ranges of all files; None without a file."""
    ranges = map(Observed.load, paths)
    return functools.reduce(Observed.merge, ranges) if paths else None


def options_of(flags: str) -> Options:
    """Return the options that the flags of a command line stand for, such as `--to bfloat16 --skip fold`.

    Raises OptionError and click.ClickException, as the command line does.

    Examples:
        >>> from amp_rewrite.cli.decisions import options_of
        >>> options_of("--to bfloat16 --skip fold").half.name
        'bfloat16'
    """

    @command(SizeFlags, DecisionFlags)
    def read(data: Data, asked: DecisionRequest) -> Options:
        return replace(asked.options, dims=data.dims)

    return read.main(shlex.split(flags), standalone_mode=False)
