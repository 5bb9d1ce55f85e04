"""The certificate: what is proved, what is not, and the first place where two models differ."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from amp_rewrite import Options, certify, rewrite
from amp_rewrite.certificate import numbering
from amp_rewrite.certificate.certificate import Certificate
from amp_rewrite.certificate.shapes import Ranks
from amp_rewrite.demo import network
from amp_rewrite.errors import CertificateError, ModelError
from amp_rewrite.rewriting import result_checks
from tests.commands import failure, run

MODELS = Path(__file__).parents[2] / "shared" / "models"
MODES = {
    "float16": {},
    "bfloat16": {"half": "bfloat16"},
    "half_io": {"io": "half"},
    "force_all": {"level": "unsafe-force-all"},
    "keep_functions": {"keep_functions": True},
}


def shared():
    """The shared models."""
    return sorted(MODELS.glob("*/*.onnx"))


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.exists(), reason="the shared models are not here")
@pytest.mark.parametrize("mode", MODES)
def test_shared_models_are_proved(mode, tmp_path):
    """Results are the originals but for precision, whatever was asked for."""
    for path in proved_in(mode):
        result = rewrite(path, Options(check=False, **MODES[mode]), output=tmp_path / "r.onnx")
        found = certify(path, result.model)
        assert found.proved, f"{path}: {found}"


def proved_in(mode):
    """Every second shared model; where tests/test_models.py has all the others, the train steps."""
    return sorted(MODELS.glob("training/*.onnx")) if mode in ("float16", "bfloat16") else shared()[::2]


def model(text, opset=17):
    """A model by the text of its graph."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def pair(original, rewritten, opset=17):
    """The certificate for two texts."""
    return certify(model(original, opset), model(rewritten, opset))


ORIGINAL = "g (float[2] x) => (float[2] y) <float[2] w = {1.1, 70000.0}> { a = Mul(x, w) y = Sub(a, x) }"
EQUAL = {
    "itself": ORIGINAL,
    "with Casts": """g (float[2] x) => (float[2] y) <float[2] w = {1.1, 70000.0}> {
        h = Cast<to = 10>(x) f = Cast<to = 1>(h) a = Mul(f, w) y = Sub(a, x) }""",
    "with other names and an unread node": """g (float[2] x) => (float[2] y) <float[2] v = {1.1, 70000.0}> {
        z = Exp(x) b = Mul(x, v) y = Sub(b, x) }""",
}
UNEQUAL = {
    "swapped inputs": (ORIGINAL.replace("Sub(a, x)", "Sub(x, a)"), "the input 'x'"),
    "swapped factors": (ORIGINAL.replace("Mul(x, w)", "Mul(w, x)"), "the input 'x'"),
    "another operator": (ORIGINAL.replace("Sub(", "Add("), "Add"),
    "a Cast to int": (
        """g (float[2] x) => (float[2] y) <float[2] w = {1.1, 70000.0}> {
            i = Cast<to = 7>(x) f = Cast<to = 1>(i) a = Mul(f, w) y = Sub(a, x) }""",
        "Cast",
    ),
    "a stored bit": (ORIGINAL.replace("1.1", "1.1000001"), "element 0"),
    "clamped though it is no mask": (ORIGINAL.replace("70000.0", "32752.0"), "more than a mask"),
    "clamped to another value": (ORIGINAL.replace("70000.0", "32736.0"), "element 1"),
    "another shape": (
        "g (float[2] x) => (float[2] y) <float[1,2] w = {1.1, 70000.0}> { a = Mul(x, w) y = Sub(a, x) }",
        "shape",
    ),
    "an output of another name": (ORIGINAL.replace("y", "z"), "outputs"),
    "an input of another name": (ORIGINAL.replace("x", "z"), "inputs"),
}


@pytest.mark.parametrize("what", EQUAL)
def test_it_proves(what):
    """Names, Casts between floats, clamped masks and what nobody reads make no difference."""
    found = pair(ORIGINAL, EQUAL[what])
    assert found.proved, found
    assert found.nodes == 2


@pytest.mark.parametrize("what", UNEQUAL)
def test_it_does_not_prove(what):
    """What changes the result is found, and the place is said."""
    text, said = UNEQUAL[what]
    found = pair(ORIGINAL, text)
    assert not found.proved
    assert said in str(found)


RANDOM = "g (float[2] x) => (float[2] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }"
BRANCHES = """g (bool c, float[1] x) => (float[1] y) {
    y = If (c) <then_branch = t () => (float[1] u) { u = Exp(x) },
                else_branch = e () => (float[1] v) { v = Neg(x) }> }"""
LOOP = """g (float[1] x, float[1] z) => (float[1] p, float[1] q) <int64 n = {3}> {
    p, q = Loop (n, "", x, z) <body = b (int64 i, bool go, float[1] s, float[1] t)
        => (bool more, float[1] u, float[1] v) { more = Identity(go) u = Exp(s) v = Add(s, t) }> }"""
SWAPPED = {
    "one random value for two": (RANDOM, RANDOM.replace("Sub(a, b)", "Sub(a, a)")),
    "branches": (BRANCHES, BRANCHES.replace("Exp", "*").replace("Neg", "Exp").replace("*", "Neg")),
    "what is carried": (LOOP, LOOP.replace("Add(s, t)", "Add(t, s)")),
    "what enters a loop": (LOOP, LOOP.replace('"", x, z', '"", z, x')),
    "what leaves a body": (LOOP, LOOP.replace("float[1] u, float[1] v)", "float[1] v, float[1] u)")),
    "constants of integers": (LOOP, LOOP.replace("{3}", "{4}")),
}


@pytest.mark.parametrize("what", SWAPPED)
def test_bodies_and_random_values(what):
    """The values of bodies are told apart by their place, random ones by their node."""
    original, other = SWAPPED[what]
    assert pair(original, original).proved
    assert not pair(original, other).proved


def test_equal_bits_of_other_integers_are_not_the_same():
    """The element type of stored integers counts, not the bits alone."""
    made = [
        helper.make_model(
            helper.make_graph(
                [helper.make_node("Cast", ["w"], ["y"], to=1)],
                "g",
                [],
                [helper.make_tensor_value_info("y", 1, [2])],
                [numpy_helper.from_array(np.array([1, 2], kind), "w")],
            )
        )
        for kind in (np.int32, np.uint32)
    ]
    found = certify(*made)
    assert not found.proved
    assert "int32 is uint32" in found.problem


def test_a_function_of_another_domain_is_another():
    """A call is told by domain and name."""
    texts = [
        f"""<ir_version: 8, opset_import: ["": 17, "a": 1, "b": 1]>
        g (float[1] x) => (float[1] y) {{ y = {called}.f(x) }}
        <domain: "a", opset_import: ["": 17]> f (s) => (t) {{ t = Exp(s) }}
        <domain: "b", opset_import: ["": 17]> f (s) => (t) {{ t = Neg(s) }}"""
        for called in "ab"
    ]
    one, other = map(parser.parse_model, texts)
    inlined = model("g (float[1] x) => (float[1] y) { y = Exp(x) }")
    assert not certify(one, other).proved
    assert certify(one, inlined).proved
    assert not certify(other, inlined).proved


def chain(nodes):
    """A row of nodes, each of which reads the one before twice."""
    made = [helper.make_node("Add", [f"v{i}"] * 2, [f"v{i + 1}"]) for i in range(nodes)]
    infos = [helper.make_tensor_value_info(name, 1, [1]) for name in ("v0", f"v{nodes}")]
    return helper.make_model(helper.make_graph(made, "g", infos[:1], infos[1:]))


def test_long_and_doubled_rows_are_followed_once():
    """Neither the depth of a model nor the number of its paths matters."""
    made = chain(20_000)
    assert certify(made, made).nodes == 20_000


def nested_calls(depth):
    """Functions that call one another in a row."""
    functions = [
        helper.make_function(
            "d",
            f"f{i}",
            ["a"],
            ["b"],
            [helper.make_node(*call, ["a"], ["b"], domain=domain)],
            [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)],
        )
        for i in range(depth)
        for call, domain in [((f"f{i + 1}",), "d") if i + 1 < depth else (("Exp",), "")]
    ]
    infos = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("f0", ["x"], ["y"], domain="d")], "g", infos[:1], infos[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=imports)


def test_functions_may_call_one_another_in_a_long_row():
    """The depth of calls is no limit."""
    made = nested_calls(3000)
    assert certify(made, model("g (float[1] x) => (float[1] y) { y = Exp(x) }")).proved


def doubling(depth):
    """Functions each of which calls the next twice."""
    made = nested_calls(depth)
    for function in made.functions[:-1]:
        function.node[0].output[0] = "c"
        function.node.add(op_type=function.node[0].op_type, domain="d", input=["c"], output=["b"])
    return made


def cyclic():
    """Two nodes that read each other."""
    made = model("g (float[1] x) => (float[1] y) { a = Exp(x) y = Add(a, x) }")
    made.graph.node[0].input[0] = "y"
    return made


def undefined():
    """A node that reads what nobody makes."""
    made = model("g (float[1] x) => (float[1] y) { y = Exp(x) }")
    made.graph.node[0].input[0] = "nobody"
    return made


def defined_twice():
    """Two nodes that make one value."""
    made = model("g (float[1] x) => (float[1] y) { a = Exp(x) y = Neg(a) }")
    made.graph.node[1].output[0] = "a"
    return made


def self_calling():
    """A function that calls its caller."""
    made = nested_calls(2)
    made.functions[1].node[0].op_type, made.functions[1].node[0].domain = "f0", "d"
    return made


def with_file(location="w.bin"):
    """A model with a stored value in a file that is missing."""
    made = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }")
    tensor = made.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return made


BAD = {
    "cyclic": (cyclic, "cyclic"),
    "undefined": (undefined, "'nobody', which is not defined"),
    "defined twice": (defined_twice, "twice"),
    "a function that calls itself": (self_calling, "calls itself"),
    "functions that double": (lambda: doubling(60), "nodes with its functions taken apart"),
    "data without a folder": (with_file, "in which folder"),
}


@pytest.mark.parametrize("what", BAD)
def test_an_invalid_model_is_an_error(what):
    """What is no model is said in one line, and takes no time."""
    make, said = BAD[what]
    with pytest.raises(ModelError, match=said):
        certify(make(), make())


def test_nodes_may_stand_in_any_order():
    """A model whose nodes are not sorted is what it is sorted."""
    made = model("g (float[1] x) => (float[1] y) { a = Exp(x) b = Neg(a) y = Add(a, b) }")
    turned = onnx.ModelProto.FromString(made.SerializeToString())
    del turned.graph.node[:]
    turned.graph.node.extend(reversed(made.graph.node))
    assert certify(turned, made).proved


def test_a_result_that_no_runtime_takes_is_warned_of(tmp_path):
    """A Cast to the other half type computes the same but for precision, and what reads it wants one type."""
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(network(), paths[0])
    made = rewrite(network()).model
    cast = next(node for node in made.graph.node if node.op_type == "Cast")
    cast.attribute[0].i = TensorProto.BFLOAT16
    onnx.save(made, paths[1])
    done = run("certify", *paths)
    assert done.exit_code == 0
    assert "warning  onnx's checker rejects the result: " in done.stdout


def test_nothing_is_proved_of_a_model_without_outputs():
    """It computes nothing that anybody sees."""
    blind = model("g (float[2] x) => () { y = Exp(x) }")
    assert certify(blind, blind).problem == "the original has no outputs, so there is nothing to prove"


def test_the_command_proves_and_tells(tmp_path):
    """0 where it is proved, 1 with the place where it is not, 2 for what is no model."""
    names = {"a": ORIGINAL, "b": EQUAL["with Casts"], "c": UNEQUAL["swapped inputs"][0]}
    paths = {name: tmp_path / f"{name}.onnx" for name in names}
    for name, text in names.items():
        onnx.save(model(text), paths[name])
    told = tmp_path / "told.json"
    good = run("certify", paths["a"], paths["b"], "--json", told)
    assert good.exit_code == 0
    said = "proved equal but for precision: 2 nodes, licences used: none; the proof says nothing of loading"
    assert good.stdout.strip() == said
    assert '"proved": true' in told.read_text()
    bad = run("certify", paths["a"], paths["c"])
    assert bad.exit_code == 1
    assert "for output 'y'" in bad.stdout
    paths["c"].write_bytes(paths["a"].read_bytes()[:-7])
    assert "only a part of one" in failure("certify", paths["a"], paths["c"])
    assert "there is no such file" in failure("certify", paths["a"], tmp_path / "none.onnx")
    onnx.save(with_file(), paths["c"])
    assert "put the file beside the model" in failure("certify", paths["c"], paths["c"])
    onnx.save(with_file("../w.bin"), paths["c"])
    assert "outside the model's folder" in failure("certify", paths["c"], paths["c"])


WIDE = """g (float[4,256] x) => (float[4,256] y) <float[256,256] w> { h = MatMul(x, w) y = Relu(h) }"""


@pytest.fixture
def wide(tmp_path):
    """A model that becomes half."""
    made = model(WIDE)
    del made.graph.initializer[:]
    weights = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    return path


def test_the_main_job_proves_its_result(wide, tmp_path):
    """The report and its JSON say what was proved."""
    told = tmp_path / "r.json"
    done = run(wide, "-o", tmp_path / "out.onnx", "--no-verify", "--json", told)
    assert "proof    proved equal but for precision: 2 nodes, licences used: none" in done.stdout
    assert json.loads(told.read_text())["certificate"]["nodes"] == 2


def test_what_is_not_proved_is_not_written(wide, tmp_path, monkeypatch):
    """One line, exit code 2, and no file; --no-certify writes it, and an older file stays as it was."""
    out = tmp_path / "out.onnx"
    out.write_bytes(b"old")

    def only_itself(original, rewritten):
        return Certificate(original == rewritten, 0, problem="they differ")

    monkeypatch.setattr(result_checks, "certify", only_itself)
    line = failure(wide, "-o", out, "--no-verify")
    assert "not proved equal: they differ; please report this fault" in line
    assert "--no-certify writes it all the same" in line
    assert out.read_bytes() == b"old"
    assert run(wide, "-o", out, "--no-verify", "--no-certify").exit_code == 0
    assert certify(wide, out).proved
    with pytest.raises(CertificateError, match="not proved"):
        rewrite(wide.read_bytes(), Options(certify=True))


KINDS = {
    "path": str,
    "bytes": Path.read_bytes,
    "proto": onnx.load,
    "ir": onnx_ir.load,
    "graphsurgeon": lambda path: pytest.importorskip("onnx_graphsurgeon").import_onnx(onnx.load(path)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_certify_as_an_option(wide, tmp_path, kind):
    """From Python, a model of any kind is proved, unless that is not asked for."""
    source = KINDS[kind](wide)
    given = {"output": tmp_path / "out.onnx"} if kind == "path" else {}
    assert rewrite(source, **given).report.certificate.proved
    assert rewrite(source, Options(certify=False), **given).report.certificate is None


def test_a_model_in_memory_is_proved_with_its_weights_in_files(wide, tmp_path):
    """onnx-ir tells where they lie; where they lie in several folders, nothing is proved."""
    onnx.save(onnx.load(wide), wide, save_as_external_data=True, location="w.bin", size_threshold=0)
    found = rewrite(onnx_ir.load(wide)).report
    assert found.changed
    assert found.certificate.proved
    model, folder = onnx_ir.load(wide), tmp_path / "other"
    folder.mkdir()
    (folder / "v.bin").write_bytes(bytes(4))
    shape, kind = onnx_ir.Shape([1]), onnx_ir.DataType.FLOAT
    other = onnx_ir.ExternalTensor("v.bin", 0, 4, kind, shape=shape, name="v", base_dir=folder)
    model.graph.register_initializer(onnx_ir.Value(name="v", const_value=other))
    assert not rewrite(model).report.certificate.proved


def test_what_cannot_be_proved_equal_to_itself_is_written(wide, tmp_path, monkeypatch):
    """A model that the certificate does not understand says nothing of its rewrite; the report says so."""
    monkeypatch.setattr(result_checks, "certify", lambda *_: Certificate(False, 0, problem="what is this"))
    out = tmp_path / "out.onnx"
    done = run(wide, "-o", out, "--no-verify")
    assert done.exit_code == 0
    assert "proof    none: the model is not even proved equal to itself (what is this)" in done.stdout
    assert out.exists()


def test_external_data_is_proved_where_it_lies(wide, tmp_path):
    """Weights in files beside both models are read from there, of the result before it is in place."""
    onnx.save(onnx.load(wide), wide, save_as_external_data=True, location="w.bin", size_threshold=0)
    done = run(wide, "-o", tmp_path / "out.onnx", "--no-verify")
    assert "proved equal but for precision: 2 nodes" in done.stdout
    link = tmp_path / "elsewhere" / "link.onnx"
    link.parent.mkdir()
    link.symlink_to(wide)
    (link.parent / "w.bin").symlink_to(tmp_path / "w.bin")
    assert certify(link, tmp_path / "out.onnx").proved


OPERATOR_OF_OTHERS = """<ir_version: 8, opset_import: ["": 17, "other": 1]>
    g (float[4,256] x) => (float[4,256] y) { h = other.Op(x) k = %s z = Add(h, x) y = Sub(z, k) }"""


def test_what_nobody_knows_is_a_float_where_it_is_read_as_one():
    """The type of an operator of others is that of what stands beside its output."""
    plain = parser.parse_model(OPERATOR_OF_OTHERS % "Exp(x)")
    cast = onnx.ModelProto.FromString(plain.SerializeToString())
    cast.graph.node.insert(1, helper.make_node("Cast", ["h"], ["h16"], to=10))
    cast.graph.node[3].input[0] = "h16"
    assert certify(plain, cast).proved
    cast.graph.node[1].attribute[0].i = TensorProto.INT32
    assert not certify(plain, cast).proved


def test_a_rank_is_known_behind_operators_that_keep_it():
    """A Softmax over rows means the same at opset 13, though nobody declares that they are rows."""
    text = """<ir_version: 7, opset_import: ["" : {}]> g (float[n, 4] x, float[4, 4] w, float[4] b) => (y)
        {{ a = Gemm (x, w, b) c = {} (a) y = Softmax (c) }}"""
    for name, proved in (("Relu", True), ("Shape", False)):
        both = (parser.parse_model(text.format(opset, name)) for opset in (9, 13))
        assert certify(*both).proved is proved


BROADCAST = """<ir_version: 7, opset_import: ["" : {}]> g (float[2, 4] x, float[4, 4] w, float[4] b) => (y)
    {{ a = MatMul (x, w) c = Add (b, a) d = MatMul (c, w) y = Softmax (d) }}"""


def test_a_rank_is_known_behind_products_and_sums():
    """That of the operand with more axes."""
    assert certify(*(parser.parse_model(BROADCAST.format(opset)) for opset in (11, 13))).proved
    cubes = BROADCAST.replace("float[2, 4]", "float[2, 2, 4]")
    assert not certify(*(parser.parse_model(cubes.format(opset)) for opset in (11, 13))).proved


CENTRED = """<ir_version: 7, opset_import: ["" : {}]> g (float[2, 4] x, float[4, 4] w) => (y)
    {{ a = MatMul (x, w) m = ReduceMean <axes = [-1]> (a) d = Sub (a, m) e = ReduceMax <keepdims = 0> (d)
       f = Add (m, e) y = Softmax (f) }}"""


def test_a_rank_that_nobody_declares_is_inferred():
    """A model without shapes of what its nodes make, with a norm before a Softmax of opset 11."""
    assert certify(*(parser.parse_model(CENTRED.format(opset)) for opset in (11, 13))).proved
    cubes = CENTRED.replace("float[2, 4]", "float[2, 2, 4]")
    assert not certify(*(parser.parse_model(cubes.format(opset)) for opset in (11, 13))).proved


FOREIGN = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[4,4] x) => (float[4,4] y) {
    y = my.Repeat (x) <body = b (float[4,4] s) => (float[4,4] t) { t = MatMul (s, s) }> }"""


def test_names_are_part_of_the_body_of_a_foreign_operator():
    """It may know inputs and outputs by them, as onnxruntime's BeamSearch does; If, Loop and Scan do not."""
    again = FOREIGN.replace("=> (float[4,4] t) { t", "=> (float[4,4] u) { u")
    other = FOREIGN.replace("b (float[4,4] s)", "b (float[4,4] r)").replace("(s, s)", "(r, r)")
    for text, proved in ((FOREIGN, True), (again, False), (other, False)):
        assert certify(parser.parse_model(FOREIGN), parser.parse_model(text)).proved is proved


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.exists(), reason="the shared models are not here")
def test_ranks_are_those_that_onnx_infers():
    """Of every value of the shared models whose rank is found, though no declaration tells it."""
    known = 0
    for proto in map(onnx.load, shared()):
        inferred = _ranks(proto)
        del proto.graph.value_info[:]
        numbered = numbering.number(proto, None, numbering.functions_of(proto))
        ranks, made = Ranks(numbered), numbered.makers
        inside = [at for at, node in enumerate(made) if node is not None and node.scope.outer is None]
        for name, rank in ((numbered.names[at], ranks.of(at)) for at in inside):
            assert rank is None or rank == inferred.get(name, rank), name
            known += rank is not None and name in inferred
    assert known > 2_000


UNBOUND = """g (float[2,4,5] x) => (float[4,6] y) <int64 n = {{1}}, int64 i = {{0}}, float[{shape}] w> {{
    s = SplitToSequence<axis = 0, keepdims = 0>(x, n) p = SequenceAt(s, i) y = MatMul(p, w) }}"""


def test_an_axis_that_a_split_drops_counts_for_no_rank():
    """onnx infers three axes for the part, and onnxruntime makes one of two: the product would have three."""
    made = []
    for shape in ((5, 6), (1, 5, 6)):
        made.append(model(UNBOUND.format(shape=",".join(map(str, shape)))))
        weight = np.ones(shape, np.float32)
        made[-1].graph.initializer.append(numpy_helper.from_array(weight, "w"))
    assert certify(made[0], made[0]).proved
    assert not certify(*made).proved


def test_a_declaration_is_not_that_of_a_value_inside_a_function():
    """Though it has the name of one: the Softmax there is over three axes."""
    text = """<ir_version: 8, opset_import: ["" : {0}, "d" : 1]>
        g (float[2, 2, 4] x, float[8] v) => (y, z) <float[2, 4] a, int64[2] s = {{2, 4}}>
        {{ a = Reshape (v, s) z = Relu (a) y = d.f (x) }}
        <domain: "d", opset_import: ["" : {0}]> f (x) => (y) {{ a = Relu (x) y = Softmax (a) }}"""
    assert not certify(*(parser.parse_model(text.format(opset)) for opset in (11, 13))).proved


def _ranks(proto):
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        proto = onnx.shape_inference.infer_shapes(proto)
    kinds = ((info.name, info.type.tensor_type) for info in proto.graph.value_info)
    return {name: len(kind.shape.dim) for name, kind in kinds if kind.HasField("shape")}


def test_an_empty_sequence_of_half_is_one_of_float32():
    """Which its default type is."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <int64 i = {0}> {
        s = SequenceEmpty () t = SequenceInsert (s, x) y = SequenceAt (t, i) }"""
    half = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <int64 i = {0}> {
        h = Cast <to = 10> (x) s = SequenceEmpty <dtype = 10> () t = SequenceInsert (s, h)
        z = SequenceAt (t, i) y = Cast <to = 1> (z) }"""
    assert certify(parser.parse_model(text), parser.parse_model(half)).proved
    assert not certify(
        parser.parse_model(text), parser.parse_model(half.replace("dtype = 10", "dtype = 7"))
    ).proved


BLOCKED = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft.nchwc" : 1]>
    g (float[1,8,4,4] x, float[8,8,1,1] w) => (float[128] y) <int64[1] all = {-1}> {
        b = com.microsoft.nchwc.Conv <kernel_shape = [1,1]> (x, w)
        r = com.microsoft.nchwc.ReorderOutput <channels = 8> (b) t = Reshape (r, all) y = Sin (t) }"""


def test_channels_in_blocks_are_float32():
    """Of a model that onnxruntime optimised for a CPU, and that declares no types of what nodes give."""
    cast = BLOCKED.replace("t = Reshape (r, all)", "h = Cast <to = 10> (r) t = Reshape (h, all)")
    cast = cast.replace("y = Sin (t)", "s = Sin (t) y = Cast <to = 1> (s)")
    assert certify(parser.parse_model(BLOCKED), parser.parse_model(cast)).proved


@pytest.mark.parametrize(("words", "kind"), [("Sub(a, x)", CertificateError), ("Sub(a)", ModelError)])
def test_what_is_not_proved_of_an_invalid_model_is_no_fault_of_ours(words, kind):
    """It is said what is wrong with the model; of a valid one, that it is to be reported."""
    given = model(ORIGINAL.replace("Sub(a, x)", words))
    with pytest.raises(kind) as raised, result_checks.blaming(lambda: given):
        raise CertificateError("the result is not proved", remedy="please report this")
    assert ("report" in str(raised.value)) == (kind is CertificateError)
