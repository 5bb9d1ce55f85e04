"""`ranges.check` against the slow definitions of `range_oracle.py`, on random small models."""

import random
import re

import onnx
import onnx_ir as ir
import pytest

from amp_rewrite.analysis import ranges, unit_building
from amp_rewrite.model import constants
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.onnx_types import element_types
from tests import range_oracle, text
from tests.random_models import Scope
from tests.range_oracle import Expected

FILLS = ([1e9], [-1e9], [-3.4e38], [-1e9, 0.0], [-1e5, 1e5])
CONSTANTS = (
    [1e-12], [1e-12], [-1e-12], [1e-9, 1.0], [1e-7], [3e-6], [0.01], [0.5], [1.0], [1.0],
    [30000.0], [0.001], [-0.5, 40000.0], [4096.0], [-9000.0], [1e6], *FILLS,
)  # fmt: skip
STEPS = {
    "Abs Identity Log Neg Reciprocal Relu Softmax Sqrt": "($f)",
    "Add Div Max Min Mul Pow Sub": "($f, $f)",
    "Clip Sum": "($f, $f, $f)",
    "Concat": "<axis = 0> ($f, $f)",
    "Where": "(k, $f, $f)",
    "ConstantOfShape": "<value = float[1] {NUMBER}> (shape)",
}
STEP_OF = {name: f"float[2] = {name} {rest}" for names, rest in STEPS.items() for name in names.split()}
STEP_OF["Greater"] = "bool[2] = Greater ($f, $f)"
FLAVOURS = (
    (tuple(STEP_OF), CONSTANTS),
    ("Add Abs Sqrt Max Sum Div Div Reciprocal Identity Sub".split(), CONSTANTS),
    ("Add Sub Neg Mul Div Where Greater ConstantOfShape".split(), FILLS),
)
"""From what a model is drawn: rarely does chance lead a mask to a Softmax from among all operators. What is
left over of the last flavour goes to one.
"""


def _drawn(source: random.Random) -> onnx.ModelProto:
    """A model of a few nodes that read one another and some constants; late values most."""
    operators, constants = flavour = source.choice(FLAVOURS)
    scope = Scope(source, {"x": "float[2]"}, spells_constants=False)
    for _ in range(source.randint(1, 3)):
        numbers = source.choice(constants)
        scope.store(f"float[{len(numbers)}]", [*map(str, numbers)])
    for _ in range(source.randint(2, 8)):
        scope.write(STEP_OF[source.choice(operators)].replace("NUMBER", str(source.choice(constants)[0])))
    if flavour is FLAVOURS[-1]:
        read = re.findall(r"\w+", " ".join(node.partition(" = ")[2] for node in scope.nodes))
        for name in [name for name in scope.floats if name not in read]:
            scope.write(f"float[2] = Softmax ({name})")
    names = scope.floats
    leaving = sorted({names[-1], *source.sample(names, source.choice((0, 0, 1)))} - {"x"}) or ["x"]
    outputs = ", ".join(f"float[n] {name}" for name in leaving)
    scope.stored["shape"] = "int64[1] shape = {2}"
    return text.unchecked(f"random (float[2] x, bool[2] k) => ({outputs}) {scope.text()}")


def _found(proto: onnx.ModelProto) -> Expected:
    """What `ranges.check` finds, in the oracle's words."""
    whole = ir.from_proto(proto)
    graph = unit_building.build(whole, element_types.infer(whole))
    found = ranges.check(graph, constants.find(whole), FLOAT16)
    outputs = [unit.node.outputs[0].name or "" for unit in graph.units]
    masks = {
        value.name or "": frozenset(outputs[unit] for unit in found.masks.units([value]))
        for value in found.masks.clamped
    }
    return Expected(frozenset(outputs[unit] for unit in found.findings), masks)


def _compare(seed: int, count: int) -> list[Expected]:
    source = random.Random(seed)
    protos = [_drawn(source) for _ in range(count)]
    expected = [range_oracle.ranges(proto) for proto in protos]
    for proto, one in zip(protos, expected, strict=True):
        assert _found(proto) == one, onnx.printer.to_text(proto)
    return expected


@pytest.mark.parametrize("seed", range(4))
def test_random_models(seed: int) -> None:
    """Findings and masks are those that an enumeration of all paths gives."""
    expected = _compare(seed, 150)
    assert sum(bool(one.masks) for one in expected) > 5, "masks must be among them"
    assert sum(bool(one.stays) for one in expected) > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 6))
def test_very_many_random_models(seed: int) -> None:
    """The same, many times as many."""
    _compare(seed, 2000)


def test_the_oracle_knows_an_epsilon_and_a_mask() -> None:
    """By hand: both ways from the epsilon to the division stay, and the mask's way does not."""
    proto = text.model(
        """g (float[4] x, bool[4] k) => (float[4] p, float[4] d) <float e = {1e-12}, float fill = {-1e9}> {
            a = Add (x, e) b = Abs (a) q = Sqrt (a) s = Add (b, q) d = Div (x, s)
            n = Neg (x) w = Where (k, n, fill) p = Softmax (w)
        }"""
    )
    assert range_oracle.ranges(proto) == Expected(frozenset("abqsd"), {"fill": frozenset("wp")})
