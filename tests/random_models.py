"""Random valid models and random operator lists, for the laws in test_laws.py.

Every value has a known type and shape, and an operator takes what fits: what is drawn is valid.
"""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.operator_lists import Entry, Kind, OpLists
from amp_rewrite.policy.options import Level, Options

FLOAT, HALF, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.BOOL,
)
SQUARE, ROW, ONE = (4, 4), (4,), ()
SIZES = (1.0, 0.5, 1.0, 2e-6, 1e-12, 7e4, -1e9, -3.4e38)
"""What weights are multiplied with: mostly harmless, then what half flushes and what overflows."""
SHARED = (-1e9, -3.4e38, 1e-12, 2e-6)
"""What arrives somewhere by two paths: a mask, an epsilon, a bound."""


@dataclass(frozen=True)
class Value:
    """A value that nodes may read."""

    name: str
    type: int
    shape: tuple[int, ...]


@dataclass
class Scope:
    """A graph that is being drawn: what can be read here, and what stands in it."""

    draw: object
    counter: list
    opset: int
    values: list = field(default_factory=list)
    nodes: list = field(default_factory=list)
    stored: list = field(default_factory=list)

    def below(self):
        """A body: it can read what is around it, and makes values of its own."""
        return Scope(self.draw, self.counter, self.opset, list(self.values))

    def fresh(self):
        """A name that nothing has; now and then one that we would give ourselves."""
        self.counter[0] += 1
        return f"v{self.counter[0] - 1}__float16" if self.maybe(8) else f"v{self.counter[0]}"

    def maybe(self, odds=2):
        """True one time in `odds`."""
        return self.draw(st.integers(1, odds)) == odds

    def pick(self, kind=FLOAT, fits=lambda _: True):
        """Any value of that type whose shape fits, late ones first; None where there is none."""
        found = [v for v in reversed(self.values) if v.type == kind and fits(v.shape)]
        return self.draw(st.sampled_from(found)) if found else None

    def square(self):
        """A float32 matrix, which there always is."""
        return self.pick(FLOAT, lambda shape: shape == SQUARE)

    def store(self, array):
        """A constant: an initializer, or a node with one of the attributes that fit."""
        name = self.fresh()
        value = Value(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        if self.maybe(3):
            self.nodes.append(_constant(self, array, name))
        else:
            self.stored.append(numpy_helper.from_array(array, name))
        self.values.append(value)
        return value

    def weight(self, shape=SQUARE):
        """A float32 constant; its size is drawn, its pattern is not."""
        size = np.float32(self.draw(st.sampled_from(SIZES)))
        count = int(np.prod(shape))
        pattern = np.cos(np.arange(count, dtype=np.float32)) if self.maybe() else np.ones(count)
        return self.store((pattern.astype(np.float32) * size).reshape(shape))

    def add(self, operator, inputs, shapes, kind=FLOAT, **attributes):
        """A node; `shapes` are those of its outputs, None for one that is left out."""
        made = [None if s is None else Value(self.fresh(), kind, tuple(s)) for s in shapes]
        named = self.maybe()
        self.nodes.append(
            helper.make_node(
                operator,
                ["" if v is None else v.name for v in inputs],
                ["" if v is None else v.name for v in made],
                name=self.fresh() if named else "",
                **attributes,
            )
        )
        self.values += [v for v in made if v is not None]
        return made


def _constant(scope, array, name):
    """A Constant node, with the shortest attribute that can hold the array or with a tensor."""
    if array.ndim < 2 and scope.maybe():
        letter = {"f": "float", "i": "int"}.get(array.dtype.kind)
        if letter and array.ndim:
            return helper.make_node("Constant", [], [name], **{f"value_{letter}s": array.tolist()})
        if letter:
            return helper.make_node("Constant", [], [name], **{f"value_{letter}": array.item()})
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def _unary(scope):
    names = ("Exp", "Relu", "Softmax", "Identity", "Neg", "Sigmoid", "Tanh", "Abs", "Dropout")
    value = scope.pick(FLOAT, lambda shape: len(shape) > 0)
    scope.add(scope.draw(st.sampled_from(names)), [value], [value.shape])


def _binary(scope):
    first = scope.square()
    second = scope.pick(FLOAT, lambda shape: shape in (SQUARE, ROW, ONE))
    if scope.maybe(3):
        second = scope.weight(scope.draw(st.sampled_from((SQUARE, ROW, ONE))))
    pair = [first, second] if scope.maybe() else [second, first]
    names = ("Add", "Mul", "Sub", "Max")
    scope.add(scope.draw(st.sampled_from(names)), pair, [SQUARE])


def _steep(scope):
    if scope.maybe(3):
        scope.add("Sqrt", [scope.square()], [SQUARE])
    else:
        pair = [scope.square(), scope.square()]
        scope.add(scope.draw(st.sampled_from(("Div", "Pow"))), pair, [SQUARE])


def _product(scope):
    second = scope.weight() if scope.maybe() else scope.square()
    if scope.maybe(3):
        bias = [scope.weight(ROW)] if scope.maybe() else []
        scope.add("Gemm", [scope.square(), second, *bias], [SQUARE], transB=1)
    else:
        scope.add("MatMul", [scope.square(), second], [SQUARE])


def _convolution(scope):
    image = _reshaped(scope, scope.square(), (1, 1, 4, 4))
    made = scope.add("Conv", [image, scope.weight((1, 1, 1, 1))], [(1, 1, 4, 4)])[0]
    _reshaped(scope, made, SQUARE)


def _reshaped(scope, value, shape):
    return scope.add("Reshape", [value, scope.store(np.array(shape, np.int64))], [shape])[0]


def _reduce(scope):
    if scope.maybe():
        axes = scope.store(np.array([1], np.int64))
        scope.add("ReduceSum", [scope.square(), axes], [ROW], keepdims=0)
    else:
        scope.add("ReduceSum", [scope.square()], [ONE], keepdims=0)


def _reshape(scope):
    _reshaped(scope, _reshaped(scope, scope.square(), (2, 8)), SQUARE)


def _transpose(scope):
    scope.add("Transpose", [scope.square()], [SQUARE], perm=[1, 0])


def _turn(scope):
    """What onnxruntime's CPU provider crashes on in half: a first axis that moves, before a product."""
    cube = _reshaped(scope, scope.square(), (2, 2, 4))
    turned = scope.add("Transpose", [cube], [(2, 2, 4)], perm=[1, 0, 2])[0]
    _reshaped(scope, scope.add("MatMul", [turned, scope.weight()], [(2, 2, 4)])[0], SQUARE)


def _join_and_part(scope):
    joined = scope.add("Concat", [scope.square(), scope.square()], [(8, 4)], axis=0)[0]
    sizes = scope.store(np.array([4, 4], np.int64))
    scope.add("Split", [joined, sizes], [SQUARE, SQUARE], axis=0)


def _where(scope):
    scope.add("Where", [_condition(scope), scope.square(), scope.weight(ONE)], [SQUARE])


def _condition(scope):
    condition = scope.pick(BOOL, lambda shape: shape == SQUARE)
    if condition is None:
        pair = [scope.square(), scope.square()]
        condition = scope.add("Greater", pair, [SQUARE], BOOL)[0]
    return condition


def _pair(scope):
    """Two paths from one number to one node, and what a mask, an epsilon or a bound is there for."""
    number = scope.store(np.float32(scope.draw(st.sampled_from(SHARED))))
    sides = [_side(scope, number) for _ in range(2)]
    joined = scope.add(scope.draw(st.sampled_from(("Sub", "Add", "Div"))), sides, [SQUARE])[0]
    if scope.maybe():
        scope.add("Softmax", [joined], [SQUARE])
    else:
        scope.add("Div", [scope.square(), joined], [SQUARE])


def _side(scope, number):
    """A matrix that a number goes into, and now and then one step more."""
    if scope.maybe():
        side = scope.add("Where", [_condition(scope), scope.square(), number], [SQUARE])[0]
    else:
        name = scope.draw(st.sampled_from(("Add", "Sub", "Mul", "Max")))
        side = scope.add(name, [scope.square(), number], [SQUARE])[0]
    step = scope.draw(st.sampled_from(("", "", "Neg", "Abs", "Sqrt")))
    return scope.add(step, [side], [SQUARE])[0] if step else side


def _cast(scope):
    source = scope.pick(scope.draw(st.sampled_from((FLOAT, FLOAT, HALF, INT64, BOOL))))
    source = source or scope.square()
    to = scope.draw(st.sampled_from((HALF, FLOAT, FLOAT, INT64, BOOL)))
    scope.add("Cast", [source], [source.shape], to, to=to)


def _normalize(scope):
    scale = scope.weight(ROW)
    bias = [scope.weight(ROW)] if scope.maybe() else []
    rest = scope.draw(st.sampled_from(([], [(4, 1)], [None, (4, 1)], [(4, 1), (4, 1)])))
    scope.add("LayerNormalization", [scope.square(), scale, *bias], [SQUARE, *rest])


def _clip(scope):
    low = scope.weight(ONE) if scope.maybe() else None
    scope.add("Clip", [scope.square(), low, scope.weight(ONE)], [SQUARE])


def _sequence(scope):
    name = scope.fresh()
    pair = [scope.square().name, scope.square().name]
    scope.nodes.append(helper.make_node("SequenceConstruct", pair, [name]))
    whole = Value(name, 0, ())
    if scope.maybe():
        scope.add("ConcatFromSequence", [whole], [(8, 4)], axis=0)
    else:
        scope.add("SequenceAt", [whole, scope.store(np.array(0, np.int64))], [SQUARE])


def _optional(scope):
    name = scope.fresh()
    scope.nodes.append(helper.make_node("Optional", [scope.square().name], [name]))
    scope.add("OptionalGetElement", [Value(name, 0, ())], [SQUARE])


def _quantized(scope):
    scale, zero = scope.store(np.array(0.05, np.float32)), scope.store(np.array(3, np.uint8))
    whole = scope.add("QuantizeLinear", [scope.square(), scale, zero], [SQUARE], TensorProto.UINT8)[0]
    scope.add("DequantizeLinear", [whole, scale, zero], [SQUARE])


def _call(scope):
    name, outputs = scope.draw(st.sampled_from(tuple(CALLED.items())))
    pair = [scope.square(), scope.square()]
    kept = [scope.maybe() for _ in range(outputs)]
    shapes = [SQUARE if keep else None for keep in kept] if any(kept) else [SQUARE] * outputs
    scope.add(name, pair, shapes, domain=DOMAIN)


def _function(opset, name, outputs, *nodes):
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    made = [
        helper.make_node(operator, list(given), list(out), **more) for operator, given, out, more in nodes
    ]
    return helper.make_function(DOMAIN, name, ["a", "b"], outputs, made, imports)


def functions(opset):
    """What `_call` calls: a product and what comes behind it, and one function that calls the other."""
    return [
        _function(opset, "both", ["c", "d"], ("MatMul", "ab", "c", {}), ("Tanh", "c", "d", {})),
        _function(opset, "outer", ["e"], ("both", "ab", "vw", {"domain": DOMAIN}), ("Add", "va", "e", {})),
    ]


DOMAIN = "own"
CALLED = {"both": 2, "outer": 1}
"""The functions of a random model, and how many outputs they have."""


def _fill(scope):
    size = np.float32(scope.draw(st.sampled_from(SIZES)))
    shape = scope.store(np.array(SQUARE, np.int64))
    filling = numpy_helper.from_array(np.array([size]), "fill")
    scope.add("ConstantOfShape", [shape], [SQUARE], value=filling)


def _if(scope):
    condition = scope.store(np.array(scope.maybe()))
    branches = [_branch(scope, name) for name in ("then", "else")]
    scope.add("If", [condition], [SQUARE], then_branch=branches[0], else_branch=branches[1])


def _branch(scope, name):
    """A graph without inputs that reads what is around it; its result may come from there."""
    inner = scope.below()
    for _ in range(scope.draw(st.integers(0, 2))):
        scope.draw(st.sampled_from(_SIMPLE))(inner)
    result = inner.add("Identity", [inner.square()], [SQUARE])[0]
    return helper.make_graph(inner.nodes, name, [], [_info(result)], inner.stored)


def _loop(scope):
    inner = scope.below()
    count, going, carried = (
        Value(scope.fresh(), kind, shape) for kind, shape in ((INT64, ()), (BOOL, ()), (FLOAT, SQUARE))
    )
    inner.values.append(carried)
    for _ in range(scope.draw(st.integers(1, 3))):
        scope.draw(st.sampled_from(_SIMPLE))(inner)
    results = [
        inner.add("Identity", [going], [()], BOOL)[0],
        inner.add("Identity", [inner.square()], [SQUARE])[0],
        inner.add("Identity", [inner.square()], [SQUARE])[0],
    ]
    entering = [_info(v) for v in (count, going, carried)]
    body = helper.make_graph(inner.nodes, "body", entering, [_info(v) for v in results], inner.stored)
    trips = scope.store(np.array(2, np.int64))
    scope.add("Loop", [trips, None, scope.square()], [SQUARE, (2, *SQUARE)], body=body)


def _scan(scope):
    inner = scope.below()
    carried, row = Value(scope.fresh(), FLOAT, SQUARE), Value(scope.fresh(), FLOAT, ROW)
    inner.values += [carried, row]
    for _ in range(scope.draw(st.integers(1, 3))):
        scope.draw(st.sampled_from(_SIMPLE))(inner)
    inner.add("Add", [inner.square(), row], [SQUARE])
    results = [inner.add("Identity", [inner.square()], [SQUARE])[0] for _ in range(2)]
    entering = [_info(carried), _info(row)]
    body = helper.make_graph(inner.nodes, "body", entering, [_info(v) for v in results], inner.stored)
    pair = [scope.square(), scope.square()]
    scope.add("Scan", pair, [SQUARE, (4, *SQUARE)], num_scan_inputs=1, body=body)


_SIMPLE = (_unary, _binary, _product, _cast, _where, _clip, _steep)
PALETTE = (
    *_SIMPLE,
    _unary,
    _binary,
    _pair,
    _product,
    _convolution,
    _reduce,
    _reshape,
    _transpose,
    _turn,
    _join_and_part,
    _normalize,
    _sequence,
    _optional,
    _quantized,
    _call,
    _fill,
    _if,
    _loop,
    _scan,
)


ROUGH = (_pair, _cast, _where, _clip, _steep, _normalize, _quantized, _if, _loop, _scan)
SMOOTH = tuple(step for step in PALETTE if step not in ROUGH)
"""Steps whose results hardly move when their inputs hardly move."""
PAIRED = (_pair, _pair, _binary, _product)
"""Steps that lead one number to one node by several paths."""


def _info(value):
    return helper.make_tensor_value_info(value.name, value.type, value.shape)


@st.composite
def models(draw, palette=PALETTE):
    """A valid ModelProto of up to some 25 nodes, over inputs `x` and `y`: float32, 4 x 4."""
    opset = draw(st.sampled_from((17, 21)))
    given = [Value("x", FLOAT, SQUARE), Value("y", FLOAT, SQUARE)]
    scope = Scope(draw, [0], opset, list(given))
    scope.weight()
    for step in draw(st.lists(st.sampled_from(palette), min_size=2, max_size=11)):
        step(scope)
    outputs = _outputs(scope, given)
    known = {v.name for v in (*given, *outputs)} | {tensor.name for tensor in scope.stored}
    declared = [_info(v) for v in scope.values if v.name not in known] if scope.maybe() else []
    graph = helper.make_graph(
        scope.nodes,
        "random",
        [_info(v) for v in given],
        [_info(v) for v in outputs],
        scope.stored,
        value_info=declared,
    )
    imports = [helper.make_opsetid("", opset)]
    called = any(node.domain == DOMAIN for node in scope.nodes)
    imports += [helper.make_opsetid(DOMAIN, 1)] if called else []
    return helper.make_model(
        graph,
        opset_imports=imports,
        functions=functions(opset) if called else (),
        ir_version=9,
        producer_name="laws",
    )


def _outputs(scope, given):
    """The last value, some others, and now and then an input, or one value twice."""
    late = scope.values[-1]
    others = scope.draw(st.lists(st.sampled_from(scope.values), max_size=3))
    chosen = list(dict.fromkeys([late, *others]))
    if scope.maybe(8):
        chosen.append(given[0])
    if scope.maybe(8):
        chosen.append(late)
    return chosen


def feeds():
    """Inputs for any of these models; small, so that most of what is computed stays small."""
    random = np.random.default_rng(7)
    return {name: random.uniform(-1, 1, SQUARE).astype(np.float32) for name in ("x", "y")}


OPERATORS = (  # all that a step above can draw
    "Abs",
    "Add",
    "Cast",
    "Clip",
    "Concat",
    "ConcatFromSequence",
    "ConstantOfShape",
    "Conv",
    "DequantizeLinear",
    "Div",
    "Dropout",
    "Exp",
    "Gemm",
    "Greater",
    "Identity",
    "If",
    "LayerNormalization",
    "Loop",
    "MatMul",
    "Max",
    "Mul",
    "Neg",
    "Optional",
    "OptionalGetElement",
    "Pow",
    "QuantizeLinear",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Scan",
    "SequenceAt",
    "SequenceConstruct",
    "Sigmoid",
    "Softmax",
    "Split",
    "Sqrt",
    "Sub",
    "Tanh",
    "Transpose",
    "Where",
)


@st.composite
def lists(draw, operators=OPERATORS, kinds=tuple(Kind)):
    """Lists that put every operator of the palette wherever chance has it."""
    entries = {}
    for operator in operators:
        kind = draw(st.sampled_from(kinds))
        follow = kind is Kind.INFER and draw(st.booleans())
        entries["", operator] = Entry(
            kind, Evidence(Authority.LIST, Reason.LISTED, subject="random", text="drawn"), follow
        )
    return OpLists("random", "drawn", entries)


@st.composite
def options(draw, operators=OPERATORS):
    """Shipped or random lists, any level, follow on or off, mostly float16."""
    return Options(
        half=draw(st.sampled_from((FLOAT16, FLOAT16, BFLOAT16))),
        lists=draw(st.none() | lists(operators)),
        level=draw(st.sampled_from((*Level, Level.DEFAULT, Level.DEFAULT))),
        follow=draw(st.booleans()),
        keep_functions=draw(st.integers(1, 8)) == 8,  # calls of unknown types are slow to look up
    )
