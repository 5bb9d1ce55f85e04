"""The types that TensorRT takes for each operator, by compiling single nodes of it, without a GPU.

    python benchmarks/tensorrt_kernels.py --json amp_rewrite/policy/kernel_tables/tensorrt.json
    python benchmarks/tensorrt_kernels.py --operator LSTM --operator Clip     # some of them, case by case

The nodes are those of ONNX's backend suite, each at every version of its operator whose schema it satisfies.
A case that compiles in float32 is compiled with each choice of half type variables that its schema allows. A
choice is in the table if every such case compiles with it, those apart that the target's `refusals` name.
"""

from __future__ import annotations

import argparse
import enum
import itertools
import re
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from kernels import write_table
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.case.test_case import TestCase
from onnx.defs import OpSchema

from amp_rewrite.onnx_types import schema
from amp_rewrite.placement import placing, tensorrt
from amp_rewrite.placement.placing import Place
from amp_rewrite.policy import targets

HALVES = ("float16", "bfloat16")
NUMBERS = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
OLD_CASES = 6
"""The outcomes for each older version of an operator."""

OLDEST = 9
"""The oldest opset of a case of our own."""

Outcome = dict[tuple[tuple[str, str], ...], str]

TEXTS = {
    "Loop": """g (T[2, 2] x) => (T[2, 2] y, T[3, 2, 2] z) <int64 n = {3}, bool c = {1}> {
      y, z = Loop (n, c, x) <body = b (int64 i, bool k, T[2, 2] v) => (bool l, T[2, 2] w, T[2, 2] s) {
        l = Identity (k) w = MatMul (v, v) s = Relu (w) }>
    }""",
    "If": """g (bool c, T[2, 2] x) => (T[2, 2] y) {
      y = If (c) <then_branch = t () => (T[2, 2] a) { a = Relu (x) },
                  else_branch = e () => (T[2, 2] b) { b = Neg (x) }>
    }""",
    "Scan": """g (T[2] x, T[3, 2] r) => (T[2] y, T[3, 2] z) {
      y, z = Scan (x, r) <num_scan_inputs = 1, body = b (T[2] v, T[2] u) => (T[2] w, T[2] s) {
        w = Add (v, u) s = Relu (w) }>
    }""",
    "GlobalLpPool": "g (T[1, 2, 3, 3] x) => (T[1, 2, 1, 1] y) { y = GlobalLpPool (x) }",
    "RandomNormal": "g () => (T[2, 2] y) { y = RandomNormal <shape = [2, 2], dtype = N> () }",
    "RandomNormalLike": "g (T[2, 2] x) => (T[2, 2] y) { y = RandomNormalLike (x) }",
    "RandomUniform": "g () => (T[2, 2] y) { y = RandomUniform <shape = [2, 2], dtype = N> () }",
    "RandomUniformLike": "g (T[2, 2] x) => (T[2, 2] y) { y = RandomUniformLike (x) }",
    "SimplifiedLayerNormalization": """g (T[2, 4] x, T[4] s) => (T[2, 4] y) {
      y = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001> (x, s) }""",
    "com.microsoft:SkipSimplifiedLayerNormalization": """g (T[1, 2, 4] x, T[4] s) => (T[1, 2, 4] y) {
      y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.00001> (x, x, s) }""",
    "com.microsoft:MatMulNBits": """g (T[2, 32] x) => (T[2, 2] y)
      <uint8[2, 1, 16] b = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2,
       3, 4, 5, 6, 7}, T[2] s = {1, 1}> {
      y = com.microsoft.MatMulNBits <K = 32, N = 2, bits = 4, block_size = 32> (x, b, s) }""",
    "com.microsoft:MultiHeadAttention": """g (T[1, 4, 8] x) => (T[1, 4, 8] y) {
      y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x) }""",
    "com.microsoft:RotaryEmbedding": """g (T[1, 2, 8] x, int64[1, 2] p, T[2, 2] c) => (T[1, 2, 8] y) {
      y = com.microsoft.RotaryEmbedding <num_heads = 2> (x, p, c, c) }""",
}
"""Cases of our own, of operators of which the suite has none that TensorRT takes: ONNX's text, with T for the
type and N for its number.
"""


@dataclass(frozen=True)
class Case:
    """A model of one node, the arrays of its inputs, and the version of its operator."""

    name: str
    model: onnx.ModelProto
    arrays: Mapping[str, np.ndarray]
    operator: OpSchema
    is_newest: bool = True

    @property
    def key(self) -> tuple[str, int]:
        """The operator and its version."""
        return self.operator.name, self.operator.since_version


def cases(names: Sequence[str] = ()) -> Iterator[Case]:
    """The cases of these operators with one node, also with its first output alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some overflow on purpose
        collected = node_cases.collect_testcases(None)
    for case in collected:
        node, *others = case.model.graph.node
        if not others and not node.domain and node.op_type not in TEXTS and _is_asked(node, names):
            at_versions = [
                found for found in _at_versions(case) if variables(found) and not _is_refused(found)
            ]
            for found in at_versions:
                dated = replace(found, is_newest=found is at_versions[-1])
                yield dated
                if len(node.output) > 1:
                    yield replace(dated, model=_with_one_output(dated.model))


def _is_asked(node: onnx.NodeProto, names: Sequence[str]) -> bool:
    return not names or node.op_type in names


def _is_refused(case: Case) -> bool:
    """Whether the target has a rule that refuses such a node."""
    refuse = targets.TENSORRT.refusals.get(case.operator.name)
    return refuse is not None and any(refuse(_node(case.model)))


def _with_one_output(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[0].output[1:], copy.graph.output[1:]
    return copy


def _at_versions(case: TestCase) -> Iterator[Case]:
    """A case of the suite at each version of its operator at which it is valid."""
    name = case.model.graph.node[0].op_type
    inputs = case.data_sets[0][0] if case.data_sets else ()
    arrays = {
        value.name: numpy_helper.to_array(data) if isinstance(data, TensorProto) else np.asarray(data)
        for value, data in zip(case.model.graph.input, inputs, strict=False)
        if not isinstance(data, list)
    }
    newest = next(entry.version for entry in case.model.opset_import if not entry.domain)
    original = _in_float32(case.model, onnx.defs.get_schema(name, newest))
    known = [each for each in onnx.defs.get_all_schemas_with_history() if each.name == name]
    starts = sorted(each.since_version for each in known if not each.domain and not each.deprecated)
    for start, following in itertools.zip_longest(starts, starts[1:]):
        version = newest if start <= newest and (following or newest + 1) > newest else start
        model = onnx.ModelProto()
        model.CopyFrom(original)
        del model.opset_import[:]
        model.opset_import.add(domain="", version=version)
        if _is_valid(model):
            yield Case(case.name, model, arrays, onnx.defs.get_schema(name, version))


def _in_float32(original: onnx.ModelProto, operator: OpSchema) -> onnx.ModelProto:
    """A case whose values of other numbers are float32, where none is and the schema allows it."""
    model = onnx.ModelProto()
    model.CopyFrom(original)
    node, values = model.graph.node[0], (*model.graph.input, *model.graph.output)
    if all(value.type.tensor_type.elem_type != TensorProto.FLOAT for value in values):
        floats = set[str]()
        for ports, names in ((operator.inputs, node.input), (operator.outputs, node.output)):
            for index, name in enumerate(names):
                if "tensor(float)" in ports[min(index, len(ports) - 1)].types:
                    floats.add(name)
        for value in values:
            if value.name in floats:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return True


def variables(case: Case) -> dict[str, list[str]]:
    """The type variables of float32 values, with the names of the values."""
    node, found = case.model.graph.node[0], defaultdict[str, list[str]](list)
    types = {value.name: value.type for value in (*case.model.graph.input, *case.model.graph.output)}
    for ports, names in ((case.operator.inputs, node.input), (case.operator.outputs, node.output)):
        for index, name in enumerate(names):
            port = ports[min(index, len(ports) - 1)]
            if name and types[name].tensor_type.elem_type == TensorProto.FLOAT:
                found[port.type_str].append(name)
    return found


class Form(enum.Enum):
    """The inputs that a model stores, since TensorRT wants many so, and has other rules for weights: none;
    those that are no floats; all but the first.
    """

    INPUTS = enum.auto()
    PARAMETERS = enum.auto()
    WEIGHTS = enum.auto()


def retyped(case: Case, choice: Mapping[str, str], form: Form) -> onnx.ModelProto | None:
    """The case in a form, with these types of variables; None where that is not valid."""
    of_values = {name: choice[variable] for variable, names in variables(case).items() for name in names}
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in (*model.graph.input, *model.graph.output):
        if value.name in of_values:
            value.type.tensor_type.elem_type = NUMBERS[of_values[value.name]]
    _set_type(model, choice)
    for value in [value for value in model.graph.input if _is_stored(value, case, form)]:
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        array = case.arrays[value.name].astype(kind)
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)
    return model if _is_valid(model) else None


def _node(model: onnx.ModelProto) -> ir.Node:
    return ir.from_proto(model).graph.node(0)


def _set_type(model: onnx.ModelProto, choice: Mapping[str, str]) -> None:
    """Set the attribute that determines a type variable, as `to` of Cast does."""
    node, typed = model.graph.node[0], schema.of(_node(model))
    if typed is not None and choice.get(typed.var) in HALVES:
        number = NUMBERS[choice[typed.var]]
        old = [attribute for attribute in node.attribute if attribute.name == typed.attribute]
        if (not old and typed.like is None) or (old and old[0].type == onnx.AttributeProto.INT):
            node.attribute.append(helper.make_attribute(typed.attribute, number))
        elif old:
            array = numpy_helper.to_array(old[0].t).astype(helper.tensor_dtype_to_np_dtype(number))
            node.attribute.append(helper.make_attribute(typed.attribute, numpy_helper.from_array(array)))
        for attribute in old:
            node.attribute.remove(attribute)


def _is_stored(value: onnx.ValueInfoProto, case: Case, form: Form) -> bool:
    if value.name not in case.arrays or form is Form.INPUTS or not value.type.HasField("tensor_type"):
        return False
    is_float = value.type.tensor_type.elem_type in NUMBERS.values()
    is_first = value.name == case.model.graph.input[0].name
    return case.arrays[value.name].dtype.kind not in "OSU" and not (
        is_first if form is Form.WEIGHTS else is_float
    )


def probe(case: Case, place: Place, folder: Path) -> Iterator[Outcome]:
    """For each form that compiles in float32: why TensorRT refuses it, by the types of its variables; empty
    where it does not.
    """
    names, forms = sorted(variables(case)), dict[bytes, Form]()
    floats = dict.fromkeys(names, "float")
    for form in Form:
        model = retyped(case, floats, form)
        if model is not None and not _refusal(model, place, folder):
            forms.setdefault(model.SerializeToString(), form)
    for form in forms.values():
        outcome = {tuple(floats.items()): ""}
        for half, chosen in itertools.product(HALVES, _subsets(names)):
            types = {name: half if name in chosen else "float" for name in names}
            model = retyped(case, types, form)
            if model is not None:
                outcome[tuple(types.items())] = _refusal(model, place, folder)
        yield outcome


def probe_text(name: str, place: Place, folder: Path) -> Iterator[tuple[int, Outcome]]:
    """The outcome of a case of our own at each version of its operator, with one type for all variables."""
    domain, _, operator = name.rpartition(":")
    opsets = set[int]()
    for version in range(OLDEST, onnx.defs.onnx_opset_version() + 1):
        signature = schema.find(domain, operator, 1 if domain else version)
        if signature is None or signature.since in opsets:
            continue
        opsets.add(signature.since)
        variables = sorted(
            variable for variable, types in signature.allowed.items() if "tensor(float)" in types
        )
        outcome = Outcome()
        for kind, number in NUMBERS.items():
            text = re.sub(r"\bT\[", f"{kind}[", TEXTS[name]).replace("N>", f"{number}>")
            head = f'<ir_version: 10, opset_import: ["": {version}, "com.microsoft": 1]> '
            model = onnx.parser.parse_model(head + text)
            if onnx.defs.has(operator) is bool(domain) or _is_valid(model):
                outcome[tuple((variable, kind) for variable in variables)] = _refusal(model, place, folder)
        if outcome.get(tuple((variable, "float") for variable in variables)) == "":
            yield signature.since, outcome


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(1, len(names) + 1))


def _refusal(model: onnx.ModelProto, place: Place, folder: Path) -> str:
    path = folder / "node.onnx"
    onnx.save(model, path)
    return place(path, None).refused


Outcomes = Mapping[tuple[str, int], Sequence[Outcome]]


def table(outcomes: Outcomes) -> dict[str, list[dict[str, object]]]:
    """The spans of each operator: one a version, with the choices that every case compiles with."""
    operators = defaultdict[str, list[dict[str, object]]](list)
    for (operator, since), found in sorted(outcomes.items()):
        choices = dict.fromkeys(choice for outcome in found for choice in outcome)
        taken = [
            {name: [kind] for name, kind in choice}
            for choice in choices
            if not any(outcome.get(choice, "") for outcome in found)
        ]
        if taken:
            operators[operator].append({"since": since, "until": None, "types": taken})
    return operators


def main() -> None:
    """Probes all operators and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--operator", action="append", default=[])
    asked = parser.parse_args()
    outcomes = defaultdict(list)
    with placing.placer(tensorrt.NAME) as place, tempfile.TemporaryDirectory() as folder:
        for case in cases(asked.operator):
            if not case.is_newest and len(outcomes[case.key]) >= OLD_CASES:
                continue
            found = list(probe(case, place, Path(folder)))
            outcomes[case.key] += found
            refused = {f"{dict(choice)}": why for outcome in found for choice, why in outcome.items() if why}
            print(case.name, case.key, (refused or "taken") if found else "not in float32", flush=True)
        for operator in TEXTS:
            if not asked.operator or operator in asked.operator:
                for since, outcome in probe_text(operator, place, Path(folder)):
                    outcomes[operator, since].append(outcome)
                    print(operator, since, outcome, flush=True)
    if asked.json:
        about = {"tensorrt": f"TensorRT for RTX {tensorrt.version()}"}
        write_table(about, table(outcomes), asked.json)


if __name__ == "__main__":
    main()
