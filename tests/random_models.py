"""Random valid models, and random lists and options, for laws, oracles and bounds.

A step is text in ONNX's format with holes; every value has a known type, and an operator takes what fits, so
that what is drawn is valid:

    {a|b}               one of the alternatives
    $s                  the name of a value of a type in `FITS`; $d is the shape of the last one that was read
    #float[4]           a new constant of that type; #int64[2]=4,4 has these numbers, #n:float is called n
    n@float[4,4] = ...  the node makes a value of that type, which the step calls %n; `;` is between nodes
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import onnx
from hypothesis import strategies as st

from amp_rewrite.numerics.half import BFLOAT16, FLOAT16
from amp_rewrite.policy.evidence import Authority, Evidence, Reason
from amp_rewrite.policy.operator_lists import Entry, Kind, OpLists
from amp_rewrite.policy.options import Level, Options

SIZES = (1.0, 0.5, 1.0, 2e-6, 1e-12, 7e4, -1e9, -3.4e38)
"""What weights are multiplied with: mostly harmless, then what half flushes and what overflows."""
FITS = {
    "s": r"float\[4,4\]",
    "n": r"float(\[4(,4)?\])?",
    "f": r"float(\[.*\])?",
    "v": r"float\[.*\]",
    "a": r"(float|float|float16|int64|bool)(\[.*\])?",
    "c": r"bool\[4,4\]",
}
"""The types that a hole takes: a matrix, what broadcasts to one, a float, one with axes, any, and so on."""
CONDITION = "bool[4,4] = {Greater|Less} ($s, $s)"
"""What makes a condition where there is none."""

SQUARE = "float[4,4]"
SHARED = "#n:float={-1e9|-3.4e38|1e-12|2e-6}"
"""What arrives somewhere by two paths: a mask, an epsilon, a bound."""
SIDE = """S@float[4,4] = {Where ($c, $s, NUMBER)|{Add|Sub|Mul|Max} ($s, NUMBER)};
    {|S@float[4,4] = {Neg|Abs|Sqrt} (%S);} """
"""A matrix that a number goes into, and now and then one step more."""

SIMPLE = {
    "unary": "float$d = {Exp|Relu|Softmax|Identity|Neg|Sigmoid|Tanh|Abs|Dropout|Erf|Softplus} ($v)",
    "binary": """float[4,4] = {Add|Mul|Sub|Max|Min|Sum}
        ({$s, $n|$n, $s|$s, #float[4,4]|#float[4], $s|$s, #float})""",
    "product": """float[4,4] = {MatMul ($s, {$s|#float[4,4]})|
        Gemm <{transB = 1|alpha = 0.5, transA = 1}> ($s, {$s|#float[4,4]}{|, #float[4]})}""",
    "cast": """{float16$d = Cast <to = 10>|float$d = Cast <to = 1>|int64$d = Cast <to = 7>|
        bool$d = Cast <to = 9>} ($a)""",
    "where": "float[4,4] = Where ($c, $s, {#float|$s})",
    "clip": """float[4,4] = Clip ($s, {#float|""}, #float)""",
    "steep": "float[4,4] = {Sqrt ($s)|{Div|Pow} ($s, $s)|Reciprocal ($s)|Log ($s)}",
}
STEPS = {
    **SIMPLE,
    "pair": SIDE.replace("NUMBER", SHARED)
    + SIDE.replace("NUMBER", "%n").replace("S@", "T@").replace("%S", "%T")
    + "J@float[4,4] = {Sub|Add|Div} (%S, %T); float[4,4] = {Softmax (%J)|Div ($s, %J)}",
    "convolution": """a@float[1,1,4,4] = Reshape ($s, #int64[4]=1,1,4,4);
        b@float[1,1,4,4] = {Conv (%a, #float[1,1,1,1])|
            Conv <pads = [1, 1, 1, 1]> (%a, #float[1,1,3,3], #float[1])|MaxPool <kernel_shape = [1, 1]> (%a)};
        float[4,4] = Reshape (%b, #int64[2]=4,4)""",
    "reduce": """{float[4] = ReduceSum <keepdims = 0> ($s, #int64[1]=1)|
        float = {ReduceSum|ReduceMean|ReduceMax} <keepdims = 0> ($s)}""",
    "reshape": "a@float[2,8] = Reshape ($s, #int64[2]=2,8); float[4,4] = Reshape (%a, #int64[2]=4,4)",
    "transpose": "float[4,4] = Transpose <perm = [1, 0]> ($s)",
    "turn": """a@float[2,2,4] = Reshape ($s, #int64[3]=2,2,4);
        b@float[2,2,4] = Transpose <perm = [1, 0, 2]> (%a); c@float[2,2,4] = MatMul (%b, #float[4,4]);
        float[4,4] = Reshape (%c, #int64[2]=4,4)""",
    "join and part": """a@float[8,4] = Concat <axis = 0> ($s, $s);
        float[4,4], float[4,4] = Split <axis = 0> (%a, #int64[2]=4,4)""",
    "normalize": """float[4,4]{|, float[4,1]|, "", float[4,1]|, float[4,1], float[4,1]}
        = LayerNormalization{| <epsilon = 0.001>} ($s, #float[4]{|, #float[4]})""",
    "sequence": """q@seq = SequenceConstruct ($s, $s);
        {float[8,4] = ConcatFromSequence <axis = 0> (%q)|float[4,4] = SequenceAt (%q, #int64=0)}""",
    "optional": "o@optional = Optional ($s); float[4,4] = OptionalGetElement (%o)",
    "quantized": """q@uint8[4,4] = QuantizeLinear ($s, #k:float=0.05, #z:uint8=3);
        float[4,4] = DequantizeLinear (%q, %k, %z)""",
    "call": """{float[4,4], float[4,4]|float[4,4], ""|"", float[4,4]} = own.both ($s, $s);
        {|float[4,4] = own.outer ($s, $s)}""",
    "fill": "float[4,4] = ConstantOfShape <value = float[1] {$size}> (#int64[2]=4,4)",
    "select": """i@int64[4] = ArgMax <axis = 1, keepdims = 0> ($s);
        float[4,4] = {Gather <axis = 0> ($s, %i)|Slice ($s, #int64[1]=0, #int64[1]=4, #int64[1]=1)|
        Expand ($n, #int64[2]=4,4)}""",
}
"""Every kind of step; `pair` is two paths from one number to one node, and `turn` is what onnxruntime's CPU
provider crashes on in half: a first axis that moves, before a product.
"""
PAIRED = ("pair", "pair", "binary", "product")
"""Steps that lead one number to one node by several paths."""
ROUGH = ("pair", "cast", "where", "clip", "steep", "normalize", "quantized", "if", "loop", "scan", "select")


@dataclass
class Scope:
    """A graph that is being drawn: the types of the values that can be read, what is stored, and the nodes.

    Without `spells_constants`, every constant is an initializer.
    """

    chance: Random
    values: dict[str, str]
    spells_constants: bool = True
    counter: Iterator[int] = field(default_factory=itertools.count)
    stored: dict[str, str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    _called: dict[str, str] = field(default_factory=dict)
    _shape: str = ""

    def take(self, kind: str, steps: dict[str, str] = STEPS) -> None:
        """Adds a step of a kind: nodes for a template, or one with bodies."""
        if kind in BODIES:
            BODIES[kind](self)
        else:
            self.write(steps[kind])

    def write(self, template: str) -> None:
        """Adds the nodes of a template."""
        self._called = {}
        while found := re.search(r"\{([^{}]*\|[^{}]*)\}", template):
            chosen = self.chance.choice(found[1].split("|"))
            template = template[: found.start()] + chosen + template[found.end() :]
        for statement in filter(str.strip, template.split(";")):
            self._node(*statement.split(" = ", 1))

    def _node(self, made: str, call: str) -> None:
        call = re.sub(r"\$size", lambda _: repr(self.chance.choice(SIZES)), call)
        call = re.sub(
            r"#(?:(\w+):)?([\w]+(?:\[[\d,]*\])?)(?:=([-\d.e]+(?:,[-\d.e]+)*))?", self._constant, call
        )
        call = re.sub(r"\$(\w)", lambda hole: self.pick(hole[1]), call)
        call = re.sub(r"%(\w)", lambda name: self._called[name[1]], call)
        outputs = [self._output(each) for each in made.replace("$d", self._shape).strip().split(", ")]
        label = f"[{self.fresh()}] " if self.chance.randrange(2) else ""
        self.nodes.append(f"{label}{', '.join(outputs)} = {' '.join(call.split())}")

    def _output(self, written: str) -> str:
        called, _, kind = written.strip().rpartition("@")
        if kind == '""':
            return kind
        name = self.fresh()
        self.values[name] = kind
        self._called[called] = name
        return name

    def fresh(self) -> str:
        """A name that nothing has; now and then one that we would give ourselves."""
        return f"v{next(self.counter)}{self.chance.choice(('__float16', *[''] * 7))}"

    def pick(self, hole: str) -> str:
        """The name of any value that fits, late ones more often."""
        found = [name for name, kind in self.values.items() if re.fullmatch(FITS[hole], kind)]
        if not found:
            called = dict(self._called)
            self.write(CONDITION)
            self._called = called
            found = [*self.values][-1:]
        name = self.chance.choices(found, range(1, len(found) + 1))[0]
        self._shape = "".join(self.values[name].partition("[")[1:])
        return name

    def _constant(self, asked: re.Match[str]) -> str:
        called, kind, numbers = asked.groups()
        return self.store(kind, numbers.split(",") if numbers else self._numbers(kind), called)

    def _numbers(self, kind: str) -> list[str]:
        """Numbers of a drawn size; their pattern is not drawn."""
        size = self.chance.choice(SIZES)
        count = int(np.prod([int(each) for each in re.findall(r"\d+", kind.partition("[")[2])]))
        pattern = np.cos(np.arange(count)) if self.chance.randrange(2) else np.ones(count)
        return [repr(float(np.float32(each * size))) for each in pattern]

    def store(self, kind: str, numbers: Sequence[str], called: str = "") -> str:
        """The name of a new constant: an initializer, or a node with one of the attributes that fit."""
        name, listed = self.fresh(), ", ".join(numbers)
        element, is_list, dims = kind.partition("[")
        word = {"float": "float", "int64": "int"}.get(element)
        if not self.spells_constants or self.chance.randrange(3):
            self.stored[name] = f"{kind} {name} = {{{listed}}}"
        elif word and "," not in dims and self.chance.randrange(2):
            value = f"value_{word}s = [{listed}]" if is_list else f"value_{word} = {listed}"
            self.nodes.append(f"{name} = Constant <{value}> ()")
        else:
            self.nodes.append(f"{name} = Constant <value = {kind} {{{listed}}}> ()")
        self.values[name] = kind
        self._called[called or ""] = name
        return name

    def body(self, given: Sequence[str], results: Sequence[str], least: int, most: int) -> str:
        """The text of a graph that takes and gives values of types, and reads what is around it."""
        inner = Scope(self.chance, dict(self.values), counter=self.counter)
        taken = [inner._output(each) for each in given]
        inputs = ", ".join(f"{inner.values[name]} {name}" for name in taken)
        for _ in range(self.chance.randint(least, most)):
            inner.take(self.chance.choice([*SIMPLE]))
        outputs = []
        for each in results:
            inner._called = dict(zip("igcr", taken, strict=False))
            for statement in each.split(";"):
                inner._node(*statement.split(" = ", 1))
            name = [*inner.values][-1]
            outputs.append(f"{inner.values[name]} {name}")
        return f"b ({inputs}) => ({', '.join(outputs)}) {inner.text()}"

    @property
    def floats(self) -> list[str]:
        """The names of the float32 values."""
        return [name for name, kind in self.values.items() if re.fullmatch(FITS["f"], kind)]

    def text(self, declared: Sequence[str] = ()) -> str:
        """What is stored and declared, and the nodes."""
        entries = [*self.stored.values(), *(f"{self.values[name]} {name}" for name in declared)]
        return (f"<{', '.join(entries)}> " if entries else "") + f"{{ {' '.join(self.nodes)} }}"


def _if(scope: Scope) -> None:
    branches = (scope.body([], ["float[4,4] = Identity ($s)"], 0, 2) for _ in range(2))
    written = ", ".join(
        f"{name}_branch = {body}" for name, body in zip(("then", "else"), branches, strict=True)
    )
    scope._node(SQUARE, f"If <{written}> (#bool={scope.chance.randrange(2)})")


def _loop(scope: Scope) -> None:
    results = ["bool = Identity (%g)", *["float[4,4] = Identity ($s)"] * 2]
    body = scope.body(["int64", "bool", SQUARE], results, 1, 3)
    scope._node(f"{SQUARE}, float[2,4,4]", f'Loop <body = {body}> (#int64=2, "", $s)')


def _scan(scope: Scope) -> None:
    results = ["float[4,4] = Add ($s, %g); float[4,4] = Identity ($s)", "float[4,4] = Identity ($s)"]
    body = scope.body([SQUARE, "float[4]"], results, 1, 3)
    scope._node(f"{SQUARE}, float[4,4,4]", f"Scan <num_scan_inputs = 1, body = {body}> ($s, $s)")


BODIES: dict[str, Callable[[Scope], None]] = {"if": _if, "loop": _loop, "scan": _scan}
PALETTE = (*STEPS, *SIMPLE, *BODIES)
SMOOTH = tuple(step for step in PALETTE if step not in ROUGH)
"""Steps whose results hardly move when their inputs hardly move."""
OPERATORS = sorted(
    {"If", "Loop", "Scan"} | {name for name in re.findall(r"[A-Z]\w+", str(STEPS)) if onnx.defs.has(name)}
)
"""All operators that a step can draw."""

FUNCTIONS = """
<domain: "own", opset_import: ["" : {opset}, "own" : 1]>
both (a, b) => (c, d) {{ c = MatMul (a, b) d = Tanh (c) }}
<domain: "own", opset_import: ["" : {opset}, "own" : 1]>
outer (a, b) => (e) {{ v, w = own.both (a, b) e = Add (v, a) }}"""
"""What `call` calls: a product and what comes behind it, and one function that calls the other."""


def drawn(seed: int, palette: Sequence[str] = PALETTE) -> onnx.ModelProto:
    """The valid model of a seed: up to some 25 nodes over inputs `x` and `y`, which are float32, 4 x 4."""
    chance = Random(seed)
    scope, given = Scope(chance, {"x": SQUARE, "y": SQUARE}), [f"{SQUARE} x", f"{SQUARE} y"]
    scope.store(SQUARE, scope._numbers(SQUARE))
    for step in chance.choices(palette, k=chance.randint(2, 11)):
        scope.take(step)
    opset = chance.choice((17, 21))
    leaving = _leaving(scope)
    inside = [name for name in scope.values if name not in {*leaving, *scope.stored, "x", "y"}]
    declared = [name for name in inside if scope.values[name] not in ("seq", "optional")]
    text = scope.text(declared if chance.randrange(2) else ())
    outputs = ", ".join(f"{scope.values[name]} {name}" for name in leaving)
    functions = FUNCTIONS.format(opset=opset) if "own." in text else ""
    imports = f'"" : {opset}' + (', "own" : 1' if functions else "")
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: [{imports}], producer_name: "laws">
        random ({", ".join(given)}) => ({outputs}) {text} {functions}"""
    )


def _leaving(scope: Scope) -> list[str]:
    """The last value, some others, and now and then an input, or one value twice."""
    tensors = [name for name, kind in scope.values.items() if kind not in ("seq", "optional")]
    late, chance = tensors[-1], scope.chance
    chosen = list(dict.fromkeys([late, *chance.choices(tensors, k=chance.randint(0, 3))]))
    chosen += ["x"] * (not chance.randrange(8) and "x" not in chosen)
    return chosen + [late] * (not chance.randrange(8))


def models(palette: Sequence[str] = PALETTE) -> st.SearchStrategy[onnx.ModelProto]:
    """Models by seeds."""
    return st.integers(0, 1 << 32).map(lambda seed: drawn(seed, palette))


def feeds():
    """Inputs for any of these models; small, so that most of what is computed stays small."""
    random = np.random.default_rng(7)
    return {name: random.uniform(-1, 1, (4, 4)).astype(np.float32) for name in ("x", "y")}


def lists(
    operators: Sequence[str] = OPERATORS, kinds: Sequence[Kind] = tuple(Kind)
) -> st.SearchStrategy[OpLists]:
    """Lists that put every operator of the palette wherever chance has it."""
    evidence = Evidence(Authority.LIST, Reason.LISTED, subject="random", text="drawn")

    def entry(kind: Kind, follow: bool) -> Entry:
        return Entry(kind, evidence, follow and kind is Kind.INFER)

    entries = st.builds(entry, st.sampled_from(kinds), st.booleans())
    return st.fixed_dictionaries({("", operator): entries for operator in operators}).map(
        lambda drawn: OpLists("random", "drawn", drawn)
    )


def options(operators: Sequence[str] = OPERATORS) -> st.SearchStrategy[Options]:
    """Shipped or random lists, any level, follow on or off, mostly float16."""
    return st.builds(
        Options,
        half=st.sampled_from((FLOAT16, FLOAT16, BFLOAT16)),
        lists=st.none() | lists(operators),
        level=st.sampled_from((*Level, Level.DEFAULT, Level.DEFAULT)),
        follow=st.booleans(),
        keep_functions=st.sampled_from((False,) * 7 + (True,)),  # calls of unknown types are slow to look up
    )
