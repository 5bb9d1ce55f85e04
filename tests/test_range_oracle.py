"""`ranges.check` against slow definitions of the same, on random small models.

Nothing of the definitions is shared with `amp_rewrite.analysis`, and nothing is clever: no work lists, no
units. They know models of one graph whose nodes make one value each, and float16 alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from amp_rewrite.analysis import ranges, unit_building
from amp_rewrite.model import constants
from amp_rewrite.numerics.half import FLOAT16
from amp_rewrite.onnx_types import element_types
from tests import text
from tests.random_models import Scope

LARGEST, SMALLEST, INTEGERS = 65504, 2.0**-24, 2048
MOVERS = ("Concat", "Identity", "Max", "Min", "Where")
HUGE = (*MOVERS, "Add", "Neg", "Sub", "Sum")
MASK = (*HUGE, "Div", "Mul", "Sum")
EPSILON = (*MOVERS, "Add", "Abs", "Clip", "Mul", "Neg", "Sqrt", "Sub", "Sum")
KEEPS = (*MOVERS, "Clip", "Div", "Mul", "Neg", "Relu")
BESIDE = 16
FATAL = (("Div", 1), ("Reciprocal", 0), ("Log", 0), ("Pow", 0))


@dataclass(frozen=True)
class Use:
    """A node and the port at which it reads something."""

    node: onnx.NodeProto
    port: int

    @property
    def operator(self) -> str:
        """What its node does."""
        return self.node.op_type

    @property
    def output(self) -> str:
        """What its node makes."""
        return self.node.output[0]


Path = tuple[Use, ...]


@dataclass(frozen=True)
class Expected:
    """The nodes that must stay float32, and the nodes on the way of every mask, all by their outputs."""

    stays: frozenset[str]
    masks: dict[str, frozenset[str]]


def expected_ranges(model: onnx.ModelProto) -> Expected:
    """What ranges must find in a model."""
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    known = {name: array for name, array in known.items() if array.dtype == np.float32}
    fills = {node.output[0]: _fill(node) for node in model.graph.node if node.op_type == "ConstantOfShape"}
    looks = [_Look(model, known, name, array) for name, array in (known | fills).items()]
    masks = {look.name: frozenset(look.clamped()) for look in looks if look.clamped()}
    stays = {output for look in looks for output in look.stays()}
    stays |= {look.name for look in looks if look.name in fills and look.overflows and not look.clamped()}
    return Expected(frozenset(stays), masks)


def _fill(node: onnx.NodeProto) -> NDArray[np.float32]:
    return numpy_helper.to_array(node.attribute[0].t)


@dataclass(frozen=True)
class _Look:
    model: onnx.ModelProto
    stored: dict[str, NDArray[np.float32]]
    name: str
    array: NDArray[np.float32]

    @property
    def overflows(self) -> bool:
        return bool((abs(self.array) >= LARGEST + 16).any())

    def stays(self) -> Iterator[str]:
        if self.overflows and self.mask() and not self.clamped():
            yield from self.mask()
        elif self.overflows and not self.mask():
            yield from (path[-1].output for path in self.unbounded(HUGE))
        yield from self.absorbed()
        yield from self.offset()
        yield from self.guarded()

    def paths(self, carries: Callable[[Use], bool]) -> Iterator[Path]:
        """Every path from a reader on, whose units carry on what they read, but for the last, which may."""
        yield from self._from(self.name, (), carries)

    def _from(self, name: str, before: Path, carries: Callable[[Use], bool]) -> Iterator[Path]:
        for use in self.uses(name):
            path = (*before, use)
            yield path
            if carries(use):
                yield from self._from(use.output, path, carries)

    def uses(self, name: str) -> Iterator[Use]:
        for node in self.model.graph.node:
            yield from (Use(node, port) for port, read in enumerate(node.input) if read == name)

    def unbounded(self, carrying: tuple[str, ...]) -> Iterator[Path]:
        """All paths but those that begin with a bound beyond all that half has."""
        low, high = self.array.min(), self.array.max()
        below, above = [("Clip", 1), ("Max", 0), ("Max", 1)], [("Clip", 2), ("Min", 0), ("Min", 1)]
        far = (below if high < -LARGEST else []) + (above if low > LARGEST else [])
        for path in self.paths(lambda use: use.operator in carrying):
            if (path[0].operator, path[0].port) not in far:
                yield path

    def mask(self) -> set[str]:
        """What lies on the paths to a Softmax; nothing if one path is no way for a mask."""
        leaving = {info.name for info in self.model.graph.output}
        one_sided = not (self.array.min() < -LARGEST and self.array.max() > LARGEST)
        if not self.overflows or self.name in leaving or not one_sided:
            return set()
        paths = [*self.paths(lambda use: use.operator in MASK)] if any(self.unbounded(MASK)) else []
        softmax = any(path[-1].operator == "Softmax" for path in paths)
        good = all(self._may_mask(path, leaving) for path in paths)
        return {path[-1].output for path in paths} if softmax and good else set()

    def clamped(self) -> set[str]:
        """What lies on the paths of a mask that may be clamped."""
        masked = self.mask()
        uses = [use for path in self.paths(lambda use: use.operator in MASK) for use in path]
        return masked if all(map(self._stays_mask, uses)) else set()

    def _stays_mask(self, use: Use) -> bool:
        """Whether a softmax makes the same of what a use gives, were the mask clamped."""
        other = [read for port, read in enumerate(use.node.input) if port != use.port]
        if use.operator == "Mul":
            return self._is_scale(other[0]) or self._is_whole(other[0])
        return use.operator != "Greater" and (use.operator != "Div" or self._is_scale(other[0]))

    def _is_scale(self, name: str) -> bool:
        array = self.stored.get(name, np.zeros(2))
        return array.size == 1 and 1 / 64 <= abs(array.item()) <= 64

    def _is_whole(self, name: str) -> bool:
        if name in self.stored:
            return self.stored[name].size == 1 and self.stored[name].item() == round(self.stored[name].item())
        for node in self.model.graph.node:
            if name in node.output and node.op_type in (*HUGE, "Sum", "Mul"):
                return all(self._is_whole(read) for read in node.input if read != "k")
        return False

    def _may_mask(self, path: Path, leaving: set[str]) -> bool:
        last = path[-1]
        if last.operator == "Softmax":
            start = -1 if self.array.min() < -LARGEST else 1
            return start * prod(_sign(use) for use in path) <= 0
        carried = last.operator in MASK and last.output not in leaving
        return last.operator == "Greater" or (carried and (last.operator, last.port) != ("Div", 1))

    def absorbed(self) -> Iterator[str]:
        same_sign = self.array.min() > 0 or self.array.max() < 0
        if same_sign and abs(self.array).min() >= INTEGERS and not self.overflows:
            yield from self._read_by("Add", "Sub", "Sum")

    def offset(self) -> Iterator[str]:
        """The sums at the end of the model with a constant that is large beside the other summand."""
        if self.overflows or not self.array.any():
            return
        for path in self.paths(lambda use: use.operator == "Identity"):
            others = [read for port, read in enumerate(path[-1].node.input) if port != path[-1].port]
            if path[-1].operator not in ("Add", "Sub", "Sum") or len(others) != 1:
                continue
            offset = abs(self.stored.get(self.name, np.ones(1)))
            if (offset >= BESIDE * self._size(others[0])).any() and self._at_end(path[-1].output):
                yield path[-1].output

    def _size(self, name: str) -> NDArray[np.float32]:
        """How large a value is: the stored number that scales it last, and else 1."""
        made = self._maker(self._origin(name))
        scales = list(made.input)[made.op_type == "Div" :] if made and made.op_type in ("Div", "Mul") else []
        stored = [abs(self.stored[each]).astype(float) for each in scales if each in self.stored]
        if not made or not stored:
            return np.ones(1)
        return stored[0] if made.op_type == "Mul" else 1 / np.maximum(stored[0], np.finfo(np.float32).tiny)

    def _maker(self, name: str) -> onnx.NodeProto | None:
        return next((node for node in self.model.graph.node if name in node.output), None)

    def _at_end(self, name: str) -> bool:
        """Whether a path of movement, bounds and stored factors leads from a value to an output."""
        return name in {info.name for info in self.model.graph.output} or any(
            use.operator in KEEPS and self._is_only(use) and self._at_end(use.output)
            for use in self.uses(name)
        )

    def _is_only(self, use: Use) -> bool:
        """Whether a factor or a divisor is the only one that is not constant."""
        fills = [node.output[0] for node in self.model.graph.node if node.op_type == "ConstantOfShape"]
        read = [each for each in use.node.input if each not in self.stored and each not in fills]
        return use.operator not in ("Div", "Mul") or len(read) == 1

    def _read_by(self, *operators: str) -> Iterator[str]:
        yield from (use.output for use in self.uses(self.name) if use.operator in operators)

    def guarded(self) -> Iterator[str]:
        """Of a constant that vanishes, or a part of it, the paths to a division by what it would be."""
        vanish = (abs(self.array) <= SMALLEST / 2) & (self.array != 0)
        same_sign = self.array.min() > 0 or self.array.max() < 0
        tiny = same_sign and abs(self.array).max() < SMALLEST
        for path in self.paths(lambda use: tiny and use.operator in EPSILON):
            if vanish.any() and (path[-1].operator, path[-1].port) in FATAL:
                yield from (use.output for use in path)

    def _origin(self, name: str) -> str:
        made = self._maker(name)
        return self._origin(made.input[0]) if made is not None and made.op_type == "Identity" else name


def _sign(use: Use) -> int:
    if use.operator == "Mul":
        return 0
    return -1 if use.operator == "Neg" or (use.operator, use.port) == ("Sub", 1) else 1


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
    expected = [expected_ranges(proto) for proto in protos]
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
    assert expected_ranges(proto) == Expected(frozenset("abqsd"), {"fill": frozenset("wp")})
