"""The certificate: bodies, functions, versions and ranks: what a value or an operator means by its place."""

from __future__ import annotations

import contextlib
from pathlib import Path

import onnx
import pytest

from amp_rewrite.certificate import numbering
from amp_rewrite.certificate.numbered import Numbered
from amp_rewrite.certificate.shapes import Ranks
from tests.certificate_rows import check, rows

MODELS = Path(__file__).parents[2] / "shared" / "models"
BODIES = """
(bool c, float[1] x) => (float[1] y) {
        y = If (c) <then_branch = t () => (float[1] u) { u = Exp(x) },
        else_branch = e () => (float[1] v) { v = Neg(x) }> }
    branches         |                                | proved
    swapped branches | Exp -> *; Neg -> Exp; * -> Neg | not proved
    branches that read an outer value
        | y = If -> a = Exp(x) y = If; u = Exp(x) -> u = Exp(a) | | proved: 4 nodes

(float[1] x, float[1] z) => (float[1] p, float[1] q) <int64 n = {3}> {
        p, q = Loop (n, "", x, z) <body = b (int64 i, bool go, float[1] s, float[1] t)
        => (bool more, float[1] u, float[1] v) { more = Identity(go) u = Exp(s) v = Add(s, t) }> }
    another sum of what is carried | Add(s, t) -> Add(t, s)                             | not proved
    other values that enter a loop | "", x, z -> "", z, x                               | not proved
    other values that leave a body | float[1] u, float[1] v) -> float[1] v, float[1] u) | not proved
    another count of rounds        | {3} -> {4}                                         | not proved

(float[2] x) => (float[3,2] y) <int64 n = {3}> {
        y = Loop (n, "") <body = b (int64 i, bool c) => (bool d, float[2] z) {
            d = Identity (c) z = Exp (x) }> }
    a loop without a condition |  | proved

(float[2] x) => (float[2] y) <int64 n = {3}> {
        r = RandomNormal <shape = [2]> () y = Loop (n, "", x) <body =
            b (int64 i, bool c, float[2] s) => (bool d, float[2] t) { d = Identity (c) t = Add (s, r) }> }
    noise drawn anew in each round
        | r = RandomNormal <shape = [2]> () -> ; t = -> r = RandomNormal <shape = [2]> () t = | not proved

(float[2] x) => (float[2] y) <int64 n = {3}> {
        y = Loop (n, "", x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
            d = Identity (c) r = RandomNormal <shape = [2]> () t = Add (s, r) }> }
    noise drawn once for all rounds
        | r = RandomNormal <shape = [2]> () -> ; y = Loop -> r = RandomNormal <shape = [2]> () y = Loop
        | not proved

(float[4,4] x) => (float[4,4] y) {
        y = my.Repeat (x) <body = b (float[4,4] s) => (float[4,4] t) { t = MatMul (s, s) }> }
    a body of a foreign operator |                                                        | proved
    another name that it gives   | => (float[4,4] t) { t -> => (float[4,4] u) { u         | not proved
    another name that it takes   | b (float[4,4] s) -> b (float[4,4] r); (s, s) -> (r, r) | not proved

(float[1] x) => (float[1] y) { y = d.f(x) }
        <domain: "d", opset_import: ["": 17]> f (s) => (t) { t = Exp(s) }
        <domain: "other", opset_import: ["": 17]> f (s) => (t) { t = Neg(s) }
    a function of another domain         | d.f -> other.f                               | not proved
    the operator of a function           | (float[1] x) => (float[1] y) { y = Exp (x) } | proved
    the operator of a function elsewhere | (float[1] x) => (float[1] y) { y = Neg (x) } | not proved

(bool c, float[2] x) => (float[2] y) <float[2] k = {5, 5}> { n = Neg (k) y = If (c) <
        then_branch = a () => (float[2] t) <float[2] m = {7, 7}> { q = Add (x, k) t = Add (q, m) },
        else_branch = e () => (float[2] u) { u = Neg (n) }> }
    a function that reads what stands around its call
        | float[2] m -> float[2] k; Add (q, m) -> Add (q, k); Add (x, k) -> d.f (x);
          u = Neg (n) }> } -> u = Neg (n) }> }
          <domain: "d", opset_import: ["": 17]> f (p) => (q) { q = Add (p, k) }
        | not proved or an error

(float[2] x, float[2] z) => (float[2] y, float[2] w) <int64 n = {3}> {
        y, w = Loop (n, , x, z) <body = b (int64 i, bool c, float[2] s, float[2] r)
        => (bool d, float[2] t, float[2] u) { d = Identity (c) t = Exp (r) u = Sin (r) }> }
    two inputs of a body of one name | float[2] r -> float[2] s; (r) -> (s) | not proved or an error

(float[2] x) => (float[2] y) <int64 n = {3}> {
        y = Loop (n, , x) <body = b (int64 i, bool c, float[2] s, float[2] k) => (bool d, float[2] t)
            <float[2] k = {1, 2}> { d = Identity (c) t = Add (s, k) }> }
    what a body stores for its last input         | {1, 2} -> {7, 2}   | not proved or an error
    what a body stores for another input
        | c, float[2] s, float[2] k -> c, float[2] k, float[2] s | {1, 2} -> {7, 2} | not proved or an error
    a stored value in half that a body lists
        | c, float[2] s, float[2] k -> c, float[2] k, float[2] s
        | float[2] k = {1, 2} -> float16[2] k = {15360, 16384}; c, float[2] k -> c, float16[2] k;
          d = -> f = Cast <to = 1> (k) d =; Add (s, k) -> Add (s, f)
        | proved
    a stored value that the original's body lists | s, float[2] k -> s | proved

(bool c, float[2] x) => (float[2] y) { y = If (c) <
        then_branch = a (float[2] k) => (float[2] t) <float[2] k = {1, 2}> { t = Add (x, k) },
        else_branch = e () => (float[2] u) { u = Neg (x) }> }
    what a branch stores for an input | {1, 2} -> {7, 2} | not proved or an error

(float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5> (x) }
    a default of a function
        | y = LeakyRelu <alpha = 0.5> (x) } -> y = d.f (x) } <domain: "d", opset_import: ["": 17]>
          f <alpha: float = 0.5> (p) => (q) { q = LeakyRelu <alpha: float = @alpha> (p) }
        | proved
    an attribute with two defaults
        | 0.5 -> 0.9
        | y = LeakyRelu <alpha = 0.9> (x) } -> y = d.f (x) } <domain: "d", opset_import: ["": 17]>
          f <alpha: float = 0.5, alpha: float = 0.9> (p) => (q) { q = LeakyRelu <alpha: float = @alpha> (p) }
        | not proved or an error
    an attribute that a function does not declare
        | <alpha = 0.5> (x) -> (x)
        | y = LeakyRelu (x) } -> y = d.f <alpha = 0.5> (x) } <domain: "d", opset_import: ["": 17]>
          f (p) => (q) { q = LeakyRelu <alpha: float = @alpha> (p) }
        | not proved or an error

<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = LeakyRelu (x) }
    one version twice                | ["": 17] -> ["ai.onnx": 17, "": 17] | proved
    two versions of one domain       | ["": 17] -> ["": 6, "": 17]         | not proved or an error
    two versions of ONNX's two names | ["": 17] -> ["ai.onnx": 6, "": 17]  | not proved or an error
    operators of any version         | ["": 17] -> []                      | not proved
    a version of times to come       | ["": 17] -> ["": 1000]              | not proved
    a version beyond all             | ["": 17] -> ["": 1099511627776]     | not proved
"""


@rows(BODIES)
def test_bodies_and_functions(row):
    """The values of bodies are told apart by their place, and functions by domain and name."""
    check(row)


def nested_calls(depth):
    """Functions that call one another in a row."""
    functions = "".join(
        f'<domain: "d", opset_import: ["": 17, "d": 1]> f{i} (a) => (b) {{ b = {called} (a) }}'
        for i in range(depth)
        for called in [f"d.f{i + 1}" if i + 1 < depth else "Exp"]
    )
    return "(float[2] x) => (float[2] y) { y = d.f0 (x) }" + functions


def test_functions_may_call_one_another_in_a_long_row():
    """The depth of calls is no limit."""
    check((nested_calls(3000), "(float[2] x) => (float[2] y) { y = Exp (x) }", "proved"))


VERSIONS = """
9: (float[n, 4] x, float[4, 4] w, float[4] b) => (y) {
        a = Gemm (x, w, b) c = Relu (a) y = Softmax (c) }
    Softmax over rows | 9: -> 13: | proved
    Softmax of what is of no known rank | Relu -> Shape | 9: -> 13: | not proved

11: (float[2, 4] x, float[4, 4] w, float[4] b) => (y) {
        a = MatMul (x, w) c = Add (b, a) d = MatMul (c, w) y = Softmax (d) }
    Softmax of products and sums of matrices | 11: -> 13: | proved
    Softmax of those of cubes | [2, 4] -> [2, 2, 4] | 11: -> 13: | not proved

11: (float[2, 4] x, float[4, 4] w) => (y) {
        a = MatMul (x, w) m = ReduceMean <axes = [-1]> (a) d = Sub (a, m) e = ReduceMax <keepdims = 0> (d)
        f = Add (m, e) y = Softmax (f) }
    Softmax behind a norm | 11: -> 13: | proved
    Softmax behind a norm of cubes | [2, 4] -> [2, 2, 4] | 11: -> 13: | not proved

11: (float[2, 2, 4] x, float[8] v) => (y, z) <float[2, 4] a, int64[2] s = {2, 4}> {
        a = Reshape (v, s) z = Relu (a) y = d.f (x) }
        <domain: "d", opset_import: ["" : 11]> f (x) => (y) { a = Relu (x) y = Softmax (a) }
    a declaration of a value of that name outside | 11 -> 13 | not proved

11: (float[2] x) => (y) { c0 = Shape (x) JOINED r = Reshape (x, c12) y = Softmax <axis = 999999999999> (r) }
    sizes that are joined again and again |                         | 11: -> 13: | proved
    another axis of such sizes            | = 999999999999> -> = 1> | 11: -> 13: | not proved

(float[2,4,5] x) => (float[4,6] y) <int64 n = {1}, int64 i = {0}, float[5,6] w = {ONES}> {
        s = SplitToSequence<axis = 0, keepdims = 0>(x, n) p = SequenceAt(s, i) y = MatMul(p, w) }
    an axis that a split drops | float[5,6] w -> float[1,5,6] w | not proved

11: (float[2,2,2] x, int64[2] i) => (float[2,2,2] y) <float[A,B] h> {
        h = Gather (x, i) y = Softmax <axis = 1> (h) }
    a declared rank that is wrong | 11: -> 13: | not proved
    a declared rank that is right | 2,2,2 -> 2,2; A,B -> 2,2 | 11: -> 13: | proved

13: (float[2,2,2] x) => (y) { y = d.f (x) }
        <domain: "d", opset_import: ["": 13]> f (a) => (o) { o = Softmax <axis = 1> (a) }
    a function of another version than the model | 13: (fl -> 11: (fl | not proved
    a function whose version means the same | = 1 -> = -1 | 13: (fl -> 11: (fl | proved

(float[2,3,2] x) => (y) <int64[1] a = {0}, int64[2] n = {1, 1}, float[2,2] w = {1, 2, 3, 4}> {
        b, c = Split <axis = 0> (x, n) y = MatMul (b, w) }
    an axis of a stored factor, of a rank that onnx infers | [2,2] w -> [1,2,2] w | proved

(float[2,2] x) => (y) <int64[1] o = {0}, int64[1] e = {2}, float[2,2] w = {1, 2, 3, 4}> {
        u = Unsqueeze (x, o) s = Slice (u, o, e) y = MatMul (s, w) }
    one behind Unsqueeze and Slice | float[2,2] w -> float[1,2,2] w | proved

(float[2,2,2] x) => (y) <float[2,2] w = {1, 2, 3, 4}> {
        y = com.microsoft.FusedMatMul <transBatchA = 0> (x, w) }
    one where batches stay | float[2,2] w -> float[1,2,2] w | proved
    one where batches are put elsewhere | A = 0 -> A = 1 | float[2,2] w -> float[1,2,2] w | not proved

(float[N] x, int64[R] s) => (y) <float[2,2] w = {1, 2, 3, 4}> {
        h = Reshape (x, s) y = MatMul (h, w) }
    a rank that the result alone declares
        | float[2,2] w -> float[1,2,2] w; 4}> -> 4}, float[A,B,C] h> | not proved

6: (float[1,4,4,4] x, float[4] s) => (float[1,4,4,4] y) { y = PRelu (x, s) }
    slopes of channels, and of the last axis | 6: -> 7: | not proved

9: (float[1,1,3,3] x, float[1,1,3,3] w) => (float[1,1,6,6] y) {
        y = ConvTranspose <strides = [2, 2], output_shape = [6, 6]> (x, w) }
    padding at the other end | 9: -> 11: | not proved

13: (float[1,1,2,2] x, float[0] r, float[4] s) => (float[1,1,4,4] y) {
        y = Resize <mode = "nearest"> (x, "", s) }
    an input that was optional | 13: -> 11: | not proved

9: (float[2,2] x) => (y) <float[2,2] w = {1, 2, 3, 4}, float[2] s = {1, 1}, float[2] b = {1, 2},
        float[2] m = {0, 0}, float[2] v = {0.99999, 0.99999}> {
        p = MatMul (x, w) y = BatchNormalization (p, s, b, m, v) }
    a sum along the last axis
        | 9: (float[2,2] x) => (y) <float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}> {
        p = MatMul (x, w) y = Add (p, b) }
        | proved
    a sum along another axis
        | 6: (float[2,2] x) => (y) <float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}> {
        p = MatMul (x, w) y = Add <broadcast = 1, axis = 0> (p, b) }
        | not proved

<ir_version: 10, opset_import: ["": 17, "ai.onnx.ml": 4]> g (int64[2] x) => (y) {
        y = ai.onnx.ml.LabelEncoder <keys_int64s = [1, 2], values_tensor = float[2] {1, 2}> (x) }
    an attribute that is clamped | 2} -> 70000} | 70000 -> 32752 | not proved
    labels of times to come | "ai.onnx.ml": 4 -> "ai.onnx.ml": 1000 | not proved

<ir_version: 10, opset_import: ["": 17, "ai.onnx.ml": 1]> g (string[2] s) => (int64[2] y) {
        y = ai.onnx.ml.LabelEncoder <classes_strings = ["a", "b"]> (s) }
    labels of any version | , "ai.onnx.ml": 1 -> | not proved or an error
"""


JOINED = " ".join(f"c{i + 1} = Concat <axis = 0> ({', '.join([f'c{i}'] * 10)})" for i in range(12))


@rows(VERSIONS.replace("JOINED", JOINED).replace("ONES", ", ".join("1" * 30)))
def test_versions_and_ranks(row):
    """Another version of an operator is the same where it means the same for values of that rank."""
    check(row)


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.exists(), reason="the shared models are not here")
def test_ranks_are_those_that_onnx_infers():
    """Of every value of the shared models whose rank is found, though no declaration tells it."""
    known = 0
    for proto in map(onnx.load, sorted(MODELS.glob("*/*.onnx"))):
        inferred = inferred_ranks(proto)
        del proto.graph.value_info[:]
        numbered = numbering.number(Numbered(proto, None), numbering.functions_of(proto))
        ranks, makers = Ranks(numbered), numbered.makers
        inside = [at for at, node in enumerate(makers) if node is not None and node.scope.outer is None]
        for name, rank in ((numbered.names[at], ranks.of(at)) for at in inside):
            assert rank is None or rank == inferred.get(name, rank), name
            known += rank is not None and name in inferred
    assert known > 2_000


def inferred_ranks(proto):
    """The rank of each value that onnx's inference finds one for."""
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        proto = onnx.shape_inference.infer_shapes(proto)
    kinds = ((info.name, info.type.tensor_type) for info in proto.graph.value_info)
    return {name: len(kind.shape.dim) for name, kind in kinds if kind.HasField("shape")}
