"""The functions of onnxconverter-common, onnxruntime.transformers and NVIDIA's Model-Optimizer, with their
signatures (docs/coming-from.md). An argument holds, or one warning says why it has no effect.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from amp_rewrite.arguments import PathLike
from amp_rewrite.conversion import as_data, convert
from amp_rewrite.errors import AmpRewriteError, ModelError, OptionError
from amp_rewrite.model import loading, proto_traversal
from amp_rewrite.pipeline import rewrite
from amp_rewrite.policy.operator_lists import Kind, load
from amp_rewrite.policy.options import SHIPPED_FOR, IOTypes, Options, Pins
from amp_rewrite.policy.targets import ONNXRUNTIME_CUDA, TENSORRT, Target
from amp_rewrite.rewriting.observations import Observed
from amp_rewrite.running.inputs import feeds
from amp_rewrite.running.observation import observe
from amp_rewrite.running.tolerances import Metric, Tolerances

DEFAULT_OP_BLOCK_LIST = """
    ArrayFeatureExtractor Binarizer CastMap CategoryMapper CumSum DictVectorizer FeatureVectorizer Imputer
    LabelEncoder LinearClassifier LinearRegressor Max Min NonMaxSuppression Normalizer OneHotEncoder Range
    Resize RoiAlign SVMClassifier SVMRegressor Scaler TopK TreeEnsembleClassifier TreeEnsembleRegressor
    Upsample ZipMap
    """.split()
"""The list that onnxconverter-common blocks by default, for scripts that add to it."""

_IGNORED: Mapping[str, str] = {
    "min_positive_val max_finite_val": "nothing is clipped: what float16 does not hold stays float32",
    "disable_shape_infer use_local_type_inference": "amp-rewrite infers types itself",
    "force_fp16_initializers init_conversion_max_bytes": "a stored tensor is half where half nodes read it",
    "trt_plugins trt_plugins_precision": "Options.op_types says what custom operators take, else float32",
    "check_fp16_ready": "a model that is half already stays as it is",
    "providers": "values are observed on the CPU",
    "max_depth_of_reduction": "sums are judged by their terms",
}
"""Arguments that have no effect, and why."""
_USUAL = (None, False, [], (), ["cpu"], ("cpu",), 1e-7, 5.96e-08, 1e4, 65504.0)
"""The peers' own values of these arguments, of which no warning tells."""

Model = onnx.ModelProto | PathLike
Borders = bool | Iterable[str]
"""Which inputs and outputs keep float32: all, none, or those of these names."""


class ValidationError(AmpRewriteError, ValueError):
    """No result passes the user's validation; a ValueError, as onnxconverter-common raises."""


def convert_float_to_float16(
    model: Model,
    min_positive_val: float = 5.96e-08,
    max_finite_val: float = 65504.0,
    keep_io_types: Borders = False,
    disable_shape_infer: bool = False,
    op_block_list: Collection[str] | None = None,
    node_block_list: Iterable[str] | None = None,
    force_fp16_initializers: bool = False,
    check_fp16_ready: bool | None = None,
) -> onnx.ModelProto:
    """Return the model in float16; the one that was given stays as it is.

    Operators in `op_block_list` and nodes in `node_block_list` stay float32. Raises as `rewrite`.
    """
    request = _Request(model, locals())
    request.move(op_block_list or (), Kind.DENY)
    nodes = (node.name for node in request.nodes)
    request.keep_full += request.known(node_block_list or (), nodes, "node_block_list")
    return request.told(request.rewritten(keep_io_types))


def convert_float_to_float16_model_path(
    model_path: PathLike,
    min_positive_val: float = 5.96e-08,
    max_finite_val: float = 65504.0,
    keep_io_types: Borders = False,
) -> onnx.ModelProto:
    """Return the model at a path in float16, as `convert_float_to_float16`."""
    request = _Request(model_path, locals())
    return request.told(request.rewritten(keep_io_types))


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
    request = _Request(model, {})
    names = [output.name for output in request.model.graph.output]
    limits = (1e-5 if rtol is None else rtol, 1e-8 if atol is None else atol)

    def is_valid(original: Any, rewritten: Any, _: Any) -> float:
        before, after = ([runs[0][name] for name in names] for runs in (original, rewritten))
        if validate_fn is not None and not validate_fn(before, after):
            return 0
        pairs = zip(before, after, strict=True) if (rtol, atol) != (None, None) else ()
        return float(all(np.allclose(one, other, *limits) for one, other in pairs))

    options, metric = request.options(keep_io_types), Metric(is_valid, "valid", least=1.0)
    bounds = Tolerances(error=None, agreement=None, non_finite=None)
    outcome = convert(request.model, options, [dict(feed_dict)], bounds=bounds, metrics=metric)
    if outcome.verdict is not None and not outcome.passes:
        raise ValidationError("no result passes the validation", remedy="allow a larger error")
    return request.told(outcome.result.model)


def convert_to_mixed_precision(
    onnx_path: PathLike,
    low_precision_type: str = "fp16",
    nodes_to_exclude: Iterable[str] | None = None,
    op_types_to_exclude: Sequence[str] | None = None,
    nodes_to_include: Iterable[str] | None = None,
    op_types_to_include: Sequence[str] | None = None,
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
    use_local_type_inference: bool = False,
) -> onnx.ModelProto:
    """Return the model at a path in mixed precision for TensorRT, as AutoCast does.

    Patterns match the beginning of a node's name. Nodes with stored values beyond `init_max`, with values
    beyond `data_max` on `calibration_data` (a sample, an .npz file, or made here), and those for which
    `custom_rule.check` is true stay float32. AutoCast's own `data_max` of 512 is not applied: what leaves
    half's range stays float32. `opset` is the least. Raises as `rewrite`.
    """
    request = _Request(onnx_path, locals(), low_precision_type, TENSORRT)
    request.move(op_types_to_exclude or (), Kind.DENY)
    request.move(op_types_to_include or (), Kind.ALLOW)
    request.keep_full += [f"(?:{pattern}).*" for pattern in nodes_to_exclude or ()]
    request.force_half += [f"(?:{pattern}).*" for pattern in nodes_to_include or ()]
    stored = (each for each in request.model.graph.initializer if each.data_type == onnx.TensorProto.FLOAT)
    large = {each.name for each in stored if np.abs(numpy_helper.to_array(each)).max(initial=0) > init_max}
    most = np.inf if data_max in (None, 512) else data_max
    if most != np.inf or calibration_data is not None:
        seen = observe(request.model, feeds.feeds(request.model, as_data(calibration_data)))
        large |= {name for name, each in seen.items() if max(-each.low, each.high) > most}
        request.observed = seen if calibration_data is not None else None
    kept = (node for node in request.nodes if not large.isdisjoint((*node.input, *node.output)))
    by_rule = (node for node in request.nodes if custom_rule is not None and custom_rule.check(node))
    request.keep_full += [re.escape(node.name) for node in (*kept, *by_rule)]
    return request.told(request.rewritten(keep_io_types, opset))


def convert_to_f16(
    model: onnx.ModelProto,
    low_precision_type: str = "fp16",
    keep_io_types: bool = True,
    op_block_list: Collection[str] = (),
    tensor_block_dict: Mapping[str, Any] | None = None,
    trt_plugins: Sequence[str] | None = (),
    use_local_type_inference: bool = False,
) -> onnx.ModelProto:
    """Return the model in half for TensorRT; operators in the list and the dictionary stay float32."""
    request = _Request(model, locals(), low_precision_type, TENSORRT)
    request.move((*op_block_list, *(tensor_block_dict or {})), Kind.DENY)
    return request.told(request.rewritten(keep_io_types))


class _Request:
    """A copy of a model in which every node has a name, and what is asked of it."""

    def __init__(
        self, model: Model, given: Mapping[str, object], low: str = "fp16", target: Target = ONNXRUNTIME_CUDA
    ) -> None:
        is_path = not isinstance(model, onnx.ModelProto)
        self.model = loading.load_with_weights(model) if is_path else copy.deepcopy(model)
        self.nodes = list(proto_traversal.every_node(self.model))
        for number, node in enumerate(self.nodes):
            node.name = node.name or f"{node.op_type}_{number}"
        self.keep_full, self.force_half = list[str](), list[str]()
        self.observed: Observed | None = None
        self._target, self._half = target, Options(half=low).half
        self._lists = load(SHIPPED_FOR[self._half.name])
        pairs = ((name, why) for names, why in _IGNORED.items() for name in names.split())
        self.ignored = {name: why for name, why in pairs if given.get(name) not in _USUAL}

    def move(self, operators: Collection[str], kind: Kind) -> None:
        """Put the model's operators of these names, of any domain, on a list."""
        keys = {(node.domain, node.op_type) for node in self.nodes if node.op_type in operators}
        texts = [f"{domain}:{name}" if domain else name for domain, name in sorted(keys)]
        self._lists = self._lists.override(kind, texts)

    def known(self, names: Iterable[str], candidates: Iterable[str], argument: str) -> list[str]:
        """Return the names that are known as patterns; the others of an argument are ignored."""
        known, names = set(candidates), tuple(names)
        unknown = (f"{argument} {name!r}" for name in names if name not in known)
        self.ignored |= dict.fromkeys(unknown, "the model has none of that name")
        return [re.escape(name) for name in names if name in known]

    def options(self, keep_io_types: Borders, opset: int | None = None) -> Options:
        """Return the options that stand for what is asked."""
        names = () if isinstance(keep_io_types, bool) else tuple(keep_io_types)
        values = (*self.model.graph.input, *self.model.graph.output)
        floats = (each.name for each in values if each.type.tensor_type.elem_type == onnx.TensorProto.FLOAT)
        versions = (each.version for each in self.model.opset_import if each.domain in ("", "ai.onnx"))
        return Options(
            half=self._half,
            lists=self._lists,
            target=self._target,
            pins=Pins(self.keep_full, self.force_half),
            io=IOTypes.KEEP if keep_io_types is True else IOTypes.HALF,
            keep_io=self.known(names, floats, "keep_io_types"),
            opset=opset if opset is not None and opset > max(versions, default=0) else None,
        )

    def rewritten(self, keep_io_types: Borders, opset: int | None = None) -> onnx.ModelProto:
        """Return the model in half, at its own opset where another one would change what it computes."""
        try:
            return rewrite(self.model, self.options(keep_io_types, opset), observed=self.observed).model
        except ModelError as error:
            if opset is None or "opset" not in error.problem:
                raise
            self.ignored["opset"] = error.problem
            return self.rewritten(keep_io_types)

    def told(self, result: onnx.ModelProto) -> onnx.ModelProto:
        """Return a result, after a warning of all that had no effect."""
        if self.ignored:
            why = (f"{name} has no effect: {reason}" for name, reason in self.ignored.items())
            warnings.warn("; ".join(why), stacklevel=3)
        return result
