"""amp-rewrite: a mixed-precision compiler pass over ONNX models.

`convert` does the whole job: it rewrites a model, compares the two, and repairs what fails (`Outcome`).
`rewrite` rewrites a model, `analyze` decides and changes nothing, `verify` compares two models on samples,
`certify` proves that one is the other but for precision, `tune` finds the fastest plan within an error,
`observe` records the extremes of a model's values on samples (for `rewrite(..., observed=...)`) as
`Observed`, which can be saved and merged, `emulate` builds a float32 model that rounds wherever a model is
half, `measure_coverage` measures the part of any model that is half, `measure_placement` counts the nodes
that onnxruntime executes on a provider, and `AmpPass` is the rewrite as a pass of onnx-ir. `restore` widens a
half model to float32, and `convert_all` rewrites and compares many models. `Options` and `Pins` configure a
rewrite, `load_lists` loads operator lists (`OpLists`), `Tolerances` and user-defined `Metric`s judge a
comparison, and `load_plan` reads a saved plan. Errors that a caller can fix are `errors.AmpRewriteError`.

The names of this package are imported on first access (PEP 562), so that the command starts quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_rewrite.certificate.certificate import Certificate
    from amp_rewrite.certificate.certifying import certify
    from amp_rewrite.conversion import convert
    from amp_rewrite.coverage.counts import Coverage
    from amp_rewrite.coverage.counts import measure as measure_coverage
    from amp_rewrite.explaining.frozen_analysis import Analysis
    from amp_rewrite.many import convert_all
    from amp_rewrite.onnx_ir_pass import AmpPass
    from amp_rewrite.pipeline import analyze, rewrite
    from amp_rewrite.placement.placement import Placement
    from amp_rewrite.placement.placing import place as measure_placement
    from amp_rewrite.policy.operator_lists import OpLists
    from amp_rewrite.policy.operator_lists import load as load_lists
    from amp_rewrite.policy.options import Options, Pins
    from amp_rewrite.rewriting.observations import Observed
    from amp_rewrite.rewriting.plan_files import load as load_plan
    from amp_rewrite.rewriting.report import Result
    from amp_rewrite.rewriting.restore import Restored, restore
    from amp_rewrite.running.emulation import emulate
    from amp_rewrite.running.observation import observe
    from amp_rewrite.running.tolerances import Metric, Tolerances
    from amp_rewrite.running.verdict import Verdict
    from amp_rewrite.running.verification import verify
    from amp_rewrite.tuning.repair import Outcome
    from amp_rewrite.tuning.tune import Tuned, tune

    __version__: str

__all__ = [
    "AmpPass",
    "Analysis",
    "Certificate",
    "Coverage",
    "Metric",
    "Observed",
    "OpLists",
    "Options",
    "Outcome",
    "Pins",
    "Placement",
    "Restored",
    "Result",
    "Tolerances",
    "Tuned",
    "Verdict",
    "analyze",
    "certify",
    "convert",
    "convert_all",
    "emulate",
    "load_lists",
    "load_plan",
    "measure_coverage",
    "measure_placement",
    "observe",
    "restore",
    "rewrite",
    "tune",
    "verify",
]

_PLACES = {
    "AmpPass": "onnx_ir_pass:AmpPass",
    "Analysis": "explaining.frozen_analysis:Analysis",
    "Certificate": "certificate.certificate:Certificate",
    "Coverage": "coverage.counts:Coverage",
    "Metric": "running.tolerances:Metric",
    "Observed": "rewriting.observations:Observed",
    "OpLists": "policy.operator_lists:OpLists",
    "Options": "policy.options:Options",
    "Outcome": "tuning.repair:Outcome",
    "Pins": "policy.options:Pins",
    "Placement": "placement.placement:Placement",
    "Restored": "rewriting.restore:Restored",
    "Result": "rewriting.report:Result",
    "Tolerances": "running.tolerances:Tolerances",
    "Tuned": "tuning.tune:Tuned",
    "Verdict": "running.verdict:Verdict",
    "analyze": "pipeline:analyze",
    "certify": "certificate.certifying:certify",
    "convert": "conversion:convert",
    "convert_all": "many:convert_all",
    "emulate": "running.emulation:emulate",
    "load_lists": "policy.operator_lists:load",
    "load_plan": "rewriting.plan_files:load",
    "measure_coverage": "coverage.counts:measure",
    "measure_placement": "placement.placing:place",
    "observe": "running.observation:observe",
    "restore": "rewriting.restore:restore",
    "rewrite": "pipeline:rewrite",
    "tune": "tuning.tune:tune",
    "verify": "running.verification:verify",
    "__version__": "version:installed",  # called on access
    # modules, available after importing the package alone
    "compat": "compat:",
    "errors": "errors:",
    "half": "half:",
    "options": "options:",
    "training": "training:",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        member = _imported(f"{__name__}.{_PLACES[name]}")
        globals()[name] = member() if name == "__version__" else member
        return globals()[name]


def _imported(place: str) -> Any:
    room, _, name = place.partition(":")
    try:
        module = importlib.import_module(room)
        return getattr(module, name) if name else module
    except AttributeError as error:  # Python's message would only name the missing attribute
        raise ImportError(f"{place} cannot be imported: {error}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
