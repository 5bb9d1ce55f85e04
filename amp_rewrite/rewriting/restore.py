"""`restore`: a model with half values, of any tool, in float32."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_rewrite import arguments
from amp_rewrite.arguments import ExternalData
from amp_rewrite.errors import ModelError, OptionError
from amp_rewrite.model import constants, graph_edits, inlining, loading, output_paths, serialization, writing
from amp_rewrite.model.loading import ModelSource
from amp_rewrite.onnx_types import schema
from amp_rewrite.process import worker
from amp_rewrite.rewriting import annotations, argument_checks, editing, result_checks, widened_model
from amp_rewrite.rewriting.plan import Rescaled
from amp_rewrite.rewriting.widened_model import Edited
from amp_rewrite.text import brief


@dataclass(frozen=True, slots=True, repr=False)
class Restored:
    """A model in float32, of the same kind as the argument (for a path, the result's path), and the edits.

    `unscaled` is the number of stored values, epsilons and Muls whose powers of two were undone. `broken`
    lists faults of the result, `warnings` those for the user; sizes are in bytes.

    Examples:
        >>> from amp_rewrite import restore, rewrite
        >>> from amp_rewrite.demo import network
        >>> restored = restore(rewrite(network()).model)
        >>> restored.ok, restored.size_before < restored.size_after
        (True, True)
    """

    model: Any
    edited: Edited
    unscaled: int
    size_before: int
    size_after: int
    broken: tuple[str, ...]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Return one line on the kind of `model` and the sizes."""
        model = str(self.model) if isinstance(self.model, Path) else type(self.model).__name__
        return brief(f"Restored({model}: {self.size_before:,} -> {self.size_after:,} bytes)")

    @property
    def ok(self) -> bool:
        """Return whether the result is a valid model."""
        return not self.broken

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON data, without the model.

        Examples:
            >>> from amp_rewrite import restore, rewrite
            >>> from amp_rewrite.demo import network
            >>> restore(rewrite(network()).model).to_json()["ok"]
            True
        """
        sizes = {"size_before": self.size_before, "size_after": self.size_after}
        return {
            **asdict(self.edited),
            "unscaled": self.unscaled,
            **sizes,
            "ok": self.ok,
            "broken": list(self.broken),
            "warnings": list(self.warnings),
        }


def restore(
    model: ModelSource,
    *,
    output: arguments.PathLike | None = None,
    io: str = "keep",
    external_data: ExternalData | None = None,
    force: bool = False,
) -> Restored:
    """Return the model with every float16 and bfloat16 value in float32, whichever tool made it half.

    Stored values are widened, powers of two undone (rescaling), and Casts that become no-ops removed; Clip
    bounds and masks at half's limits keep their values, and are reported. Inputs and outputs keep their types
    with `io` "keep", and are float32 with "float". `model` is what `rewrite` takes, and is not modified; a
    path is written to `output`, or to `<name>_fp32.onnx` beside it, with `force` as for `rewrite`. The
    precision that stored values lost in half is not recovered.

    Raises ModelError, OptionError for invalid arguments, and OutputError.

    Examples:
        >>> from amp_rewrite import measure_coverage, restore, rewrite
        >>> from amp_rewrite.demo import network
        >>> restored = restore(rewrite(network()).model)
        >>> measure_coverage(restored.model).nodes.half
        0
    """
    argument_checks.check_types(model, None, None, None, None)
    if io not in _IO:
        raise arguments.refused("io", f"{arguments.describe(io)} is not one of {', '.join(_IO)}")
    target = _target(model, output, force=force)
    with result_checks.blaming(lambda: serialization.checkable(model)):
        loaded = loading.load(model)
        if target is not None:
            output_paths.refuse_data(target, loaded.external)
        worker.start()
        inlining_warning = inlining.inline(loaded.model)
        edited = widened_model.widen(loaded.model, kept_io=() if io == "float" else None)
        unscaled, unscaling_warning = _unscale(loaded.model)
        nodes, beside = len(loaded.model.graph), external_data or ExternalData()
        with writing.transaction(target) as transaction:
            saved_output = writing.write_result(model, loaded, target, changed=True, external_data=beside)
            checked = result_checks.validate(
                saved_output.checkable, lambda: serialization.checkable(model), nodes
            )
            result = transaction.commit(saved_output.model)
    notes = (
        *loaded.warnings,
        *filter(None, (inlining_warning, unscaling_warning)),
        *saved_output.warnings,
        *checked.warnings,
    )
    return Restored(result, edited, unscaled, loaded.size, saved_output.size, checked.broken, notes)


_IO = ("keep", "float")


def _target(model: ModelSource, output: arguments.PathLike | None, *, force: bool) -> Path | None:
    """Return the output path of a model that is a path; raises OptionError and OutputError."""
    if not isinstance(model, (str, os.PathLike)):
        if output is not None:
            raise OptionError("output is for a path; other models are returned")
        return None
    source = Path(model)
    with loading.open_file(source):  # raises ModelError
        pass
    destination = arguments.path("output", output) if output is not None else None
    return output_paths.beside(source, destination, default(source), force=force)


def default(path: Path) -> Path:
    """Return the path of a result that was not named."""
    return path.with_name(f"{path.stem}_fp32.onnx")


# The way back from a rescaled model: stored values, epsilons and products as in the original.


def _unscale(model: ir.Model) -> tuple[int, str]:
    """Undo the powers of two of a model; return the number of edits, and a warning where it keeps them."""
    try:
        edits = unscale(model, annotations.rescaled(model.metadata_props))
    except ModelError as error:
        return 0, f"values may stay stored times powers of two: {error.problem}"
    annotations.remove(model)
    return edits, ""


def unscale(model: ir.Model, rescaled: Rescaled) -> int:
    """Undo the exponents of a model in float32; return the number of edits.

    Raises ModelError, before any edit, where the model is no longer the one that was rescaled.
    """
    try:
        edits = _Unscaling(model, rescaled)
    except (LookupError, ValueError) as error:
        problem = "the exponents in its metadata are those of another graph"
        raise ModelError(problem, remedy="restore the model as it was rewritten") from error
    edits.apply()
    return len(edits.tensors) + len(edits.norms) + len(edits.products)


class _Unscaling:
    """The edits of a model: the exponents of its `tensors`, its `norms`, each with the exponent of its data,
    and the Muls that make `products`. Raises LookupError and ValueError where it lacks any.
    """

    def __init__(self, model: ir.Model, rescaled: Rescaled) -> None:
        self._graph, self._constants = model.graph, constants.find(model)
        nodes = {value.name: node for node in model.graph for value in node.outputs}
        self.products = [self._factors(nodes[name]) for name in rescaled.products]
        for mul, factor, _ in self.products:  # that of an output took its name
            if mul.outputs[0].is_graph_output() and (producer := factor.producer()) is not None:
                nodes[mul.outputs[0].name] = producer
        exponents: dict[ir.Value, list[int]] = defaultdict(list)
        for each in rescaled.values:
            if each.reader is not None:
                value = nodes[each.reader].inputs[each.port]
                if value not in self._constants:
                    raise ValueError(each)
                exponents[value].append(each.exponent)
        if any({*es} != {es[0]} or len(es) != len(value.uses()) for value, es in exponents.items()):
            raise ValueError(exponents)
        self.tensors = {value: es[0] for value, es in exponents.items()}
        self.norms = [(nodes[name], e) for name, e in rescaled.norms]
        if not all("epsilon" in node.attributes for node, _ in self.norms):
            raise ValueError(rescaled.norms)

    def _factors(self, mul: ir.Node) -> tuple[ir.Node, ir.Value, ir.Value]:
        """Return a Mul, the factor that it scales, and the power of two."""
        one, other = mul.inputs
        factor, power = (one, other) if other in self._constants else (other, one)
        if factor is None or power not in self._constants:
            raise ValueError(mul)
        return mul, factor, power

    def apply(self) -> None:
        """Carry out the edits."""
        for value, e in self.tensors.items():
            constant, conversion = self._constants[value], partial(editing.scale_block, e=-e)
            tensor = editing.converted(conversion, ir.DataType.FLOAT, constant, constant.tensor.name)
            graph_edits.store(constant, tensor)
        for node, e in self.norms:
            epsilon = np.float32(schema.number(node, "epsilon", 0.0))
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", float(np.ldexp(epsilon, 2 * e)))
        for mul, factor, power in self.products:
            product = mul.outputs[0]
            if product.is_graph_output():
                product.name, factor.name = factor.name, product.name
            ir.convenience.replace_all_uses_with(product, factor, replace_graph_outputs=True)
            graph_edits.remove([mul])
            if not power.uses() and power.is_initializer():
                graph_edits.unregister(power, self._graph)
