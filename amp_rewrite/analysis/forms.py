"""Values as sums of products, and the cancellation when these are added.

The form of a value is the sum of products of atoms that it equals, up to movement, scale and averages, and
the numbers that its elements approach. An atom is a value that no rule decomposes: the output of a layer, an
input of the model, a stored grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from amp_rewrite.analysis.units import UnitGraph
from amp_rewrite.model.constants import dims, numbers, stored_as
from amp_rewrite.model.patterns import scalar
from amp_rewrite.numerics.half import Fit

CLOSE = 2.0**-6
"""Distance up to which a value counts as close to a number: 32 steps of float16 below 1."""
_GRID = 32.0
"""Least magnitude that makes a constant a grid: from there on, half has steps of 1/32."""
SURE = 4.0
"""Addend before a sigmoid that leaves less than 0.02 to 1 where nothing else is added."""
_TERMS, _DEGREE = 16, 4
"""The most terms of a form, and the most atoms of a term: a value with more is an atom of its own."""
_COMPARED = 1 << 20
"""Maximum number of elements of a stored grid that is compared with others."""
_MATRIX = 4096
"""Maximum rows or columns of a stored matrix whose sums are computed."""
_EXACT = 1e-4
"""Tolerance for such a sum about 0 or 1, relative to that of magnitudes."""


class Kind(Enum):
    """Kinds of atoms: results of operators, inputs of the model, stored grids, values computed from sizes,
    and other constants.
    """

    MADE = "made"
    INPUT = "input"
    GRID = "grid"
    SIZES = "sizes"
    STORED = "stored"


_POSITIONS = frozenset((Kind.INPUT, Kind.GRID, Kind.SIZES))


Atom = int
Term = tuple[Atom, ...]
"""A product of atoms, in their order."""


class Form(NamedTuple):
    """`terms` are the products whose sum the value is, each with its sign, 0 for both.

    `near` are the numbers that elements approach, None if these are unknown, and `number` is the value of a
    stored scalar. `sums` is the number of sums over an axis after the multiplication, and `inner` that before
    it. `bounded` holds behind a number that bounds, and `normalised` for vectors of length 1.
    """

    terms: Mapping[Term, int]
    near: frozenset[float] | None = None
    number: float | None = None
    sums: int = 0
    inner: int = 0
    bounded: bool = False
    normalised: bool = False

    @property
    def averaged(self) -> bool:
        """True if any part of it is a sum over an axis."""
        return self.sums + self.inner > 0


class Rest(NamedTuple):
    """The term added to 1 or subtracted from it (`value`); whether the result `may` or `must` be small."""

    value: ir.Value
    may: bool
    must: bool


@dataclass(eq=False)
class Forms:
    """The forms of the values of a model, its nodes in the order of the pass, and the sums that the pass
    noted.

    `cancelling` maps the nodes that subtract terms from each other to the atoms of these; `rests` maps those
    that add something to 1, or subtract one of the two from the other, to its Rest. `leaving` maps the
    outputs of a branch to the output of the If. Half is exact for `integers` up to this one.
    """

    graph: UnitGraph
    fits: Mapping[ir.Value, Fit]
    integers: int
    order: list[ir.Node] = field(default_factory=list[ir.Node])
    leaving: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])
    cancelling: dict[ir.Node, frozenset[Atom]] = field(default_factory=dict[ir.Node, frozenset[int]])
    rests: dict[ir.Node, Rest] = field(default_factory=dict[ir.Node, "Rest"])

    def __post_init__(self) -> None:
        self.forms: dict[ir.Value, Form] = {}
        self._atoms: dict[object, Atom] = {}
        self.kinds: list[Kind] = []
        self._keys: list[object] = []
        self._factors: dict[Atom, frozenset[Atom]] = {}
        self._sums: dict[ir.Value, int | None] = {}
        self.inputs = {value for value in self.graph.root.inputs if not value.is_initializer()}

    def of(self, value: ir.Value) -> Form:
        """Return the form of a value; an atom of its own where nothing is known."""
        form = self.forms.get(value)
        if form is None:
            form = self.forms[value] = self._leaf(value)
        return form

    def is_part(self, value: ir.Value, term: Term, atoms: frozenset[Atom]) -> bool:
        """Return whether a term of a value consists of these atoms, and is not one output, merely moved."""
        if len(term) != 1:
            return not atoms.isdisjoint(term)
        is_more = self.kinds[term[0]] in _POSITIONS or self.of(value).averaged
        return term[0] in atoms and is_more and self._keys[term[0]] is not value

    def is_exponential(self, value: ir.Value) -> bool:
        """Return whether a value is a product with exponentials."""
        keys = (self._keys[atom] for term in self.of(value).terms for atom in term)
        producers = (key.producer() for key in keys if isinstance(key, ir.Value))
        return any(node is not None and node.op_type == "Exp" for node in producers)

    def known_near(self, value: ir.Value) -> frozenset[float] | None:
        """Return the numbers that a value approaches."""
        form = self.forms.get(value)
        if form is None and value.producer() is not None and stored_as(value) is None:
            return None
        return self.of(value).near

    def atom(self, key: object, kind: Kind = Kind.MADE) -> Atom:
        """Return the atom of a key, a new one where there is none."""
        atom = self._atoms.get(key)
        if atom is None:
            atom = self._atoms[key] = len(self.kinds)
            self.kinds.append(kind)
            self._keys.append(key)
        return atom

    def fresh(self, key: object, near: frozenset[float] | None = None, kind: Kind = Kind.MADE) -> Form:
        """Return the form of an atom."""
        return Form({(self.atom(key, kind),): 1}, near)

    def _leaf(self, value: ir.Value) -> Form:
        if value in self.inputs:
            return self.fresh(value, kind=Kind.INPUT)
        tensor = None if value.is_graph_input() else stored_as(value)
        return self.fresh(value) if tensor is None else self._stored(value, tensor)

    def _stored(self, value: ir.Value, tensor: ir.TensorProtocol) -> Form:
        fit = self.fits.get(value)
        number = scalar(value) if fit is None or not fit.low == fit.high != 0 or tensor.size > 1 else fit.low
        if number is not None:
            return Form({(): -1 if number < 0 else 1}, frozenset((number,)), number)
        if fit is None:
            return self.of_sizes() if tensor.dtype.is_integer() else self.fresh(value)
        if max(-fit.low, fit.high) >= _GRID:
            small = tensor.size <= _COMPARED
            key = (dims(tensor), numbers(tensor).tobytes()) if small else value
            return self.fresh(key, kind=Kind.GRID)
        return self.fresh(value, _UP_TO_1 if 0.875 <= fit.high < 1 and fit.low >= 0 else None, Kind.STORED)

    def of_sizes(self) -> Form:
        """The form of any value that is computed from sizes alone."""
        return self.fresh(Kind.SIZES, kind=Kind.SIZES)

    def is_scale(self, form: Form) -> bool:
        """Return whether a form is that of a number, or of a value computed from sizes alone."""
        return all(self.kinds[atom] is Kind.SIZES for term in form.terms for atom in term)

    def is_position(self, form: Form) -> bool:
        """Return whether all terms are inputs, grids or sizes themselves."""
        return all(len(term) == 1 and self.kinds[term[0]] in _POSITIONS for term in form.terms)

    def given(self, node: ir.Node, count: int) -> list[Form] | None:
        """Return the forms of the first inputs of a node; None where one is omitted."""
        inputs = node.inputs
        if len(inputs) < count or None in inputs[:count]:
            return None
        return [self.of(value) for value in inputs[:count] if value is not None]

    def select(self, form: Form, how: object) -> Form:
        """Return the form of selected elements: those of positions count as the positions, others are atoms
        of their own, the same for the same selection.
        """
        if form.number is not None or self.is_position(form):
            return form
        terms = {
            tuple(
                sorted(atom if self.kinds[atom] in _POSITIONS else self.atom((how, atom)) for atom in term)
            ): sign
            for term, sign in form.terms.items()
        }
        return form._replace(terms=terms, number=None, normalised=False)

    def scale(self, form: Form, by: float) -> Form | None:
        """Return the form of a multiple; None for a part of a sum that has a position as a term."""
        is_mixed = not self.is_position(form) and any(
            len(term) == 1 and self.kinds[term[0]] in _POSITIONS for term in form.terms
        )
        return None if is_mixed and abs(by) != 1 else scaled(form, by)

    def join(self, forms: Iterable[Form], value: ir.Value) -> Form:
        """Return the form of a value whose elements come from several values."""
        terms: dict[Term, int] = {}
        near: frozenset[float] | None = frozenset()
        for form in forms:
            near = None if near is None or form.near is None else _few(near | form.near)
            for term, sign in form.terms.items():
                terms[term] = sign if terms.get(term, sign) == sign else 0
        return Form(terms, near) if len(terms) <= _TERMS else self.fresh(value, near)

    def times(self, node: ir.Node, one: Form, other: Form, *, summed: bool = False) -> Form:
        """Return the form of a product, `summed` over an axis."""
        if one.near is None or other.near is None:
            near = None
        elif one is other or one.terms == other.terms:
            near = frozenset(point * point for point in one.near)
        else:
            near = _few(frozenset(p * q for p, q in product(one.near, other.near)))
        if one.normalised and other.normalised and summed:
            near = frozenset((1.0,))
        terms: dict[Term, int] = {}
        if len(one.terms) * len(other.terms) <= _TERMS:
            for (term, sign), (factor, by) in product(one.terms.items(), other.terms.items()):
                both = tuple(sorted(term + factor))
                terms[both] = sign * by if terms.get(both, sign * by) == sign * by else 0
        if not terms or max(map(len, terms)) > _DEGREE:
            return self.fresh(node.outputs[0], near)
        if summed and len(one.terms) > 1 < len(other.terms):
            self.note(
                node, [term for term in terms.items() if term[1] > 0], [t for t in terms.items() if t[1] < 0]
            )
        inner = max(one.sums + one.inner, other.sums + other.inner)
        return Form(terms, near, None, int(summed), inner)

    def add(self, node: ir.Node, one: Form, other: Form) -> Form:
        """Return the form of a sum, and note any cancellation in it."""
        if self.is_scale(one) and self.is_scale(other) and (one.number is None or other.number is None):
            return self.of_sizes()
        if any(sign <= 0 for form in (one, other) for sign in form.terms.values()):
            atoms = self.cancelling_atoms(one, other)
            if atoms and self._counts(node):
                self.cancelling[node] = self.cancelling.get(node, frozenset()) | atoms
        terms = dict(one.terms)
        for term, sign in other.terms.items():
            terms[term] = sign if terms.get(term, sign) == sign else 0
        near, number = _near_sum(one, other), None
        if one.number is not None or other.number is not None:
            number = (
                one.number + other.number if one.number is not None and other.number is not None else None
            )
        if len(terms) > _TERMS:
            return self.fresh(node.outputs[0], near)
        averaged = all(form.averaged or form.number is not None for form in (one, other))
        sums = max(one.sums, other.sums) if averaged else 0
        return Form(terms, near, number, sums, max(one.inner, other.inner))

    def _counts(self, node: ir.Node) -> bool:
        """Return whether a node computes in float32, and is no part of an idiom."""
        unit = self.graph.producer.get(node.outputs[0])
        return unit is not None and unit not in self.graph.spelled

    def cancelling_atoms(self, one: Form, other: Form) -> frozenset[Atom]:
        """Return the atoms of the terms that cancel."""
        atoms: set[Atom] = set()
        for (term, sign), (other_term, by) in product(one.terms.items(), other.terms.items()):
            if sign * by < 0 and self._cancels(term, other_term, one, other):
                atoms.update(term, other_term)
        return frozenset(atoms)

    def _cancels(self, term: Term, other_term: Term, one: Form, other: Form) -> bool:
        """Return whether two terms with opposite signs are of similar size: two positions that are both
        inputs or the same, a mean of squares and the square of the mean, or squares and a product of their
        bases.
        """
        if not term or not other_term:
            return False
        shared = not set(term).isdisjoint(other_term)
        if len(term) == len(other_term) == 1:
            kinds = {self.kinds[term[0]], self.kinds[other_term[0]]}
            return kinds <= _POSITIONS and (
                shared or (kinds == {Kind.INPUT} and self.is_position(one) and self.is_position(other))
            )
        for square, part, form in ((term, other_term, one), (other_term, term, other)):
            if len(part) == 1 and len(square) == 2 and len(set(square)) == 1 and form.averaged:
                return square[0] in self._factors.get(part[0], ())
        if not shared or not (one.averaged and other.averaged):
            return False
        if len(term) == len(other_term) > 1 and term != other_term:
            return len(set(term)) == 1 or len(set(other_term)) == 1
        is_same = set(term) == set(other_term) and (Counter(term) & Counter(other_term)).total() >= 2
        return is_same and one.inner != other.inner

    def note(self, node: ir.Node, some: list[tuple[Term, int]], others: list[tuple[Term, int]]) -> None:
        """Note a sum of products that cancel in part."""
        both = (Form(dict(some), sums=1), Form(dict(others), sums=1))
        atoms = self.cancelling_atoms(*both)
        if atoms and self._counts(node):
            self.cancelling[node] = atoms

    def product(self, node: ir.Node) -> Form | None:
        """Return the form of a matrix product: by a constant matrix it is an atom that keeps its factors,
        unless the matrix takes means of inputs.
        """
        inputs = node.inputs
        if len(inputs) < 2 or inputs[0] is None or inputs[1] is None:
            return None
        one, other = inputs[0], inputs[1]
        are_constant = [value.producer() is None and stored_as(value) is not None for value in (one, other)]
        if not any(are_constant):
            return self.times(node, self.of(one), self.of(other), summed=True)
        if all(are_constant):
            return None
        at = are_constant.index(True)
        matrix, data = (one, self.of(other)) if at == 0 else (other, self.of(one))
        if node.op_type == "MatMul" and self.is_position(data):
            total = self._sum_of(matrix, at)
            if total == 1:
                return data._replace(sums=data.sums + 1, near=None)
            if (
                total == 0
                and self._counts(node)
                and any(self.kinds[a] is Kind.INPUT for t in data.terms for a in t)
            ):
                self.cancelling[node] = frozenset(atom for term in data.terms for atom in term)
        self._factors[self.atom(node.outputs[0])] = frozenset(t[0] for t in data.terms if len(t) == 1)
        return None

    def _sum_of(self, matrix: ir.Value, port: int) -> int | None:
        """Return the sum of the weights by which a product multiplies one number, 0 or 1; None for other
        sums, and for a sum of 1 with a negative weight.
        """
        if matrix not in self._sums:
            self._sums[matrix] = self._computed_sum(matrix, port)
        return self._sums[matrix]

    def _computed_sum(self, matrix: ir.Value, port: int) -> int | None:
        tensor = stored_as(matrix)
        shape = dims(tensor) if tensor is not None else ()
        if tensor is None or len(shape) != 2 or not 0 < min(shape) <= max(shape) <= _MATRIX:
            return None
        weights = numbers(tensor) if port else numbers(tensor).T
        with np.errstate(invalid="ignore"):
            sums, scale = (part.sum(axis=0, dtype=np.float64) for part in (weights, np.abs(weights)))
            for total in (0, 1):
                if scale.all() and (np.abs(sums - total) <= _EXACT * scale).all():
                    return total if total == 0 or weights.min() >= 0 else None
        return None


_UP_TO_1 = frozenset((0.0, 1.0))


def _near_sum(one: Form, other: Form) -> frozenset[float] | None:
    if one.near is None or other.near is None:
        return None
    for number, form in ((one.number, other), (other.number, one)):
        if number is not None and 0 < abs(number) < 2.0**-4:
            return form.near
    return _few(frozenset(rounded(p + q) for p, q in product(one.near, other.near)))


def _few(points: frozenset[float]) -> frozenset[float] | None:
    """Return these points; None if they are so many that being close to one is no information."""
    return points if len(points) <= _TERMS else None


def rounded(point: float) -> float:
    """Return a point, or 0 for one that is close to 0."""
    return 0.0 if abs(point) <= CLOSE else round(point, 3)


def negated(form: Form) -> Form:
    """Return the form of the negated value."""
    near = None if form.near is None else frozenset(-point for point in form.near)
    number = None if form.number is None else -form.number
    return form._replace(terms={term: -sign for term, sign in form.terms.items()}, near=near, number=number)


def scaled(form: Form, by: float) -> Form:
    """Return the form of a value multiplied by a number other than 0."""
    near = (
        None
        if form.near is None
        else frozenset(rounded(point * by) if abs(by) >= CLOSE else point * by for point in form.near)
    )
    terms = form.terms if by > 0 else {term: -sign for term, sign in form.terms.items()}
    return form._replace(terms=terms, near=near, number=None, normalised=form.normalised and abs(by) == 1)
