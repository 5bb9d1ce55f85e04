"""The functions of onnxconverter-common, onnxruntime.transformers and NVIDIA's Model-Optimizer, with their
signatures (docs/coming-from.md). An argument holds, or one warning says why it has no effect.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from amp_rewrite import arguments
from amp_rewrite.arguments import PathLike, Texts
from amp_rewrite.conversion import as_data, convert
from amp_rewrite.errors import AmpRewriteError, ModelError, OptionError, PinError
from amp_rewrite.model import loading, proto_traversal
from amp_rewrite.pipeline import rewrite
from amp_rewrite.policy.node_patterns import pinned_as
from amp_rewrite.policy.operator_lists import Kind
from amp_rewrite.policy.options import IOTypes, Options, Pins
from amp_rewrite.policy.targets import ONNXRUNTIME_CUDA, TENSORRT, Target
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.observation import observe
from amp_rewrite.running.tolerances import Metric, Tolerances
from amp_rewrite.text import shortened

DEFAULT_OP_BLOCK_LIST = """
    ArrayFeatureExtractor Binarizer CastMap CategoryMapper CumSum DictVectorizer FeatureVectorizer Imputer
    LabelEncoder LinearClassifier LinearRegressor Max Min NonMaxSuppression Normalizer OneHotEncoder Range
    Resize RoiAlign SVMClassifier SVMRegressor Scaler TopK TreeEnsembleClassifier TreeEnsembleRegressor
    Upsample ZipMap
    """.split()
"""The list that onnxconverter-common blocks by default, for scripts that add to it."""

_IGNORED: Mapping[str, str] = {
    "min_positive_val max_finite_val": "nothing is clipped: what float16 does not hold stays float32",
    "disable_shape_infer use_standalone_type_inference": "amp-rewrite infers types itself",
    "force_fp16_initializers init_conversion_max_bytes": "a stored tensor is half where half nodes read it",
    "force_fp16_inputs use_bfloat16_as_blocked_nodes_dtype": "what a kernel takes is known, else float32",
    "trt_plugins trt_plugins_precision": "Options.op_types says what custom operators take, else float32",
    "check_fp16_ready": "a model that is half already stays as it is",
    "providers": "values are observed on the CPU",
    "max_depth_of_reduction": "sums are judged by their terms",
}
"""Arguments that have no effect, and why."""
_USUAL = (None, False, [], (), ["cpu"], ("cpu",), 1e-7, 5.96e-08, 1e4, 65504.0)
"""The peers' own values of these arguments, of which no warning tells."""

Model = onnx.ModelProto | PathLike
Borders = bool | Texts
"""Which inputs and outputs keep float32: all, none, or those of these names."""


class ValidationError(AmpRewriteError, ValueError):
    """No result passes the user's validation; a ValueError, as onnxconverter-common raises."""


def convert_float_to_float16(
    model: Model,
    min_positive_val: float = 5.96e-08,
    max_finite_val: float = 65504.0,
    keep_io_types: Borders = False,
    disable_shape_infer: bool = False,
    op_block_list: Texts | None = None,
    node_block_list: Texts | None = None,
    force_fp16_initializers: bool = False,
    force_fp16_inputs: Mapping[str, Any] | None = None,
    use_bfloat16_as_blocked_nodes_dtype: bool = False,
    check_fp16_ready: bool | None = None,
) -> onnx.ModelProto:
    """Return the model in float16; the one that was given stays as it is.

    Operators in `op_block_list` and nodes in `node_block_list` stay float32. Raises as `rewrite`.
    """
    request = _Request(model, locals())
    request.move("op_block_list", Kind.DENY)
    return request.told(request.rewritten(request.known("node_block_list", request.names), set()))


def convert_float_to_float16_model_path(
    model_path: PathLike,
    min_positive_val: float = 5.96e-08,
    max_finite_val: float = 65504.0,
    keep_io_types: Borders = False,
) -> onnx.ModelProto:
    """Return the model at a path in float16, as `convert_float_to_float16`."""
    request = _Request(model_path, locals())
    return request.told(request.rewritten(set(), set()))


def auto_convert_mixed_precision(
    model: Model,
    feed_dict: Mapping[str, Any],
    validate_fn: Callable[[list[Any], list[Any]], object] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    keep_io_types: Borders = False,
) -> onnx.ModelProto:
    """Return the model in float16, with as much float32 as makes its outputs on `feed_dict` valid.

    They are valid if `validate_fn`, called with the outputs of the model and of the result, says so, and if
    they are within `rtol` and `atol` (numpy.allclose). Raises ValidationError if no result is valid,
    OptionError without a validation, and else as `convert`.
    """
    if validate_fn is None and rtol is None and atol is None:
        raise OptionError("neither validate_fn nor rtol says what is valid", remedy="give one of them")
    request = _Request(model, locals())
    names = [output.name for output in request.model.graph.output]
    limits = (1e-5 if rtol is None else rtol, 1e-8 if atol is None else atol)

    def is_valid(original: Any, rewritten: Any, _: Any) -> float:
        before, after = ([runs[0][name] for name in names] for runs in (original, rewritten))
        passes = validate_fn is None or validate_fn(before, after)
        pairs = zip(before, after, strict=True) if (rtol, atol) != (None, None) else ()
        return float(bool(passes) and all(np.allclose(one, other, *limits) for one, other in pairs))

    metric, bounds = Metric(is_valid, "valid", least=1.0), Tolerances(None, agreement=None, non_finite=None)
    outcome = convert(request.model, request.options, feed_dict, bounds=bounds, metrics=metric)
    if outcome.verification is not None and not outcome.passes:
        why = outcome.unverified or "the errors are too large"
        raise ValidationError(f"no result passes the validation: {why}", remedy="allow a larger error")
    return request.told(outcome.result.model)


def convert_to_mixed_precision(
    onnx_path: PathLike,
    low_precision_type: str = "fp16",
    nodes_to_exclude: Texts | None = None,
    op_types_to_exclude: Texts | None = None,
    nodes_to_include: Texts | None = None,
    op_types_to_include: Texts | None = None,
    data_max: float | None = 512,
    init_max: float = 65504.0,
    keep_io_types: bool = False,
    calibration_data: PathLike | Mapping[str, Any] | None = None,
    custom_rule: Any = None,
    init_conversion_max_bytes: int | None = None,
    providers: Sequence[str] = ("cpu",),
    trt_plugins: Sequence[str] = (),
    trt_plugins_precision: Sequence[str] = (),
    max_depth_of_reduction: int | None = None,
    opset: int | None = None,
    use_standalone_type_inference: bool = False,
) -> onnx.ModelProto:
    """Return the model at a path in mixed precision for TensorRT, as AutoCast does.

    Patterns match the beginning of a node's name. Nodes with stored values beyond `init_max`, with values
    beyond `data_max` on `calibration_data` (a sample, an .npz file, or made here), and those for which
    `custom_rule.check` is true stay float32, but for those to include. AutoCast's own `data_max` of 512 is
    not applied: what leaves half's range stays float32. `opset` is the least. Raises as `rewrite`.
    """
    request = _Request(onnx_path, locals(), TENSORRT)
    request.move("op_types_to_exclude", Kind.DENY)
    included = request.move("op_types_to_include", Kind.ALLOW)
    forced = request.known("nodes_to_include", request.names, re.match)
    stored = (each for each in request.model.graph.initializer if each.data_type == onnx.TensorProto.FLOAT)
    large = {each.name for each in stored if np.abs(numpy_helper.to_array(each)).max(initial=0) > init_max}
    most = np.inf if data_max in (None, 512) else data_max
    seen: Observed | None = None
    if most != np.inf or calibration_data is not None:
        seen = observe(request.model, feeds.feeds(request.model, as_data(calibration_data)))
        large |= {name for name, each in seen.items() if max(-each.low, each.high) > most}
    kept = (node for node in request.nodes if not large.isdisjoint((*node.input, *node.output)))
    by_rule = (node for node in request.nodes if custom_rule is not None and custom_rule.check(node))
    excluded = request.known("nodes_to_exclude", request.names, re.match)
    excluded |= {re.escape(pinned_as(node)) for node in (*kept, *by_rule)}
    return request.told(request.rewritten(excluded - included - forced, forced, seen))


def convert_to_f16(
    model: onnx.ModelProto,
    low_precision_type: str = "fp16",
    keep_io_types: bool = True,
    op_block_list: Texts = (),
    tensor_block_dict: Mapping[str, Any] | None = None,
    trt_plugins: Sequence[str] | None = (),
    use_standalone_type_inference: bool = False,
    opset: int | None = None,
) -> onnx.ModelProto:
    """Return the model in half for TensorRT; operators in the list and the dictionary stay float32."""
    given = {**locals(), "op_block_list": [*(op_block_list or ()), *(tensor_block_dict or ())]}
    request = _Request(model, given, TENSORRT)
    request.move("op_block_list", Kind.DENY)
    return request.told(request.rewritten(set(), set()))


class _Request:
    """A model, the arguments of a call, and the options that they stand for."""

    def __init__(self, model: Model, given: Mapping[str, Any], target: Target = ONNXRUNTIME_CUDA) -> None:
        self.model = model if isinstance(model, onnx.ModelProto) else loading.load_with_weights(model)
        self.nodes = list(proto_traversal.every_node(self.model))
        self.names = list(map(pinned_as, self.nodes))
        self._given = dict(given)
        pairs = ((name, why) for names, why in _IGNORED.items() for name in names.split())
        self._ignored = {name: why for name, why in pairs if given.get(name) not in _USUAL}
        values = (*self.model.graph.input, *self.model.graph.output)
        floats = [each.name for each in values if each.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
        self.options = Options(
            half=given.get("low_precision_type", "fp16"),
            target=target,
            io=IOTypes.KEEP if given["keep_io_types"] is True else IOTypes.HALF,
            keep_io=() if isinstance(given["keep_io_types"], bool) else self.known("keep_io_types", floats),
        )

    def move(self, argument: str, kind: Kind) -> set[str]:
        """Put the operators of an argument, of any domain, on a list; return the patterns of their nodes."""
        names = arguments.texts(argument, self._given[argument] or ())
        nodes = [node for node in self.nodes if node.op_type in names]
        keys = {f"{node.domain}:{node.op_type}" if node.domain else node.op_type for node in nodes}
        self.options = replace(self.options, lists=self.options.operator_lists().override(kind, sorted(keys)))
        return {re.escape(pinned_as(node)) for node in nodes}

    def known(self, argument: str, names: Sequence[str], matches: Any = str.__eq__) -> set[str]:
        """Return the patterns of the names that texts of an argument match; others have no effect."""
        texts = arguments.texts(argument, self._given[argument] or ())
        matching = {text: {re.escape(name) for name in names if matches(text, name)} for text in texts}
        unknown = (f"{argument} {text!r}" for text, patterns in matching.items() if not patterns)
        self._ignored |= dict.fromkeys(unknown, "the model has none of that name")
        return set().union(*matching.values())

    def rewritten(self, keep: Set[str], force: Set[str], seen: Observed | None = None) -> onnx.ModelProto:
        """Return the model in half, at its own opset where another one would change what it computes."""
        pins, opset = Pins(sorted(keep), sorted(force)), self._given.get("opset")
        versions = (each.version for each in self.model.opset_import if each.domain in ("", "ai.onnx"))
        newer = opset if opset is not None and opset > max(versions, default=0) else None
        try:
            return rewrite(self.model, replace(self.options, pins=pins, opset=newer), observed=seen).model
        except PinError as error:
            unable = (f"nodes_to_include {each}" for each in force & {*error.patterns})
            self._ignored |= dict.fromkeys(unable, "it computes nothing that can be half")
            return self.rewritten(keep - {*error.patterns}, force - {*error.patterns}, seen)
        except ModelError as error:
            if newer is None or "opset" not in error.problem:
                raise
            self._given["opset"], self._ignored["opset"] = None, error.problem
            return self.rewritten(keep, force, seen)

    def told(self, result: onnx.ModelProto) -> onnx.ModelProto:
        """Return a result, after a warning of all that had no effect."""
        if self._ignored:
            why = (f"{name} has no effect: {reason}" for name, reason in self._ignored.items())
            warnings.warn(shortened("; ".join(why), 1000), stacklevel=3)
        return result
