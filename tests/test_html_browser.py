"""The HTML report in a real browser: Chromium without a window, driven by playwright."""

import itertools
import os
import shutil
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import pytest
from onnx import helper

from amp_rewrite import demo
from amp_rewrite.explaining.sentences import chain
from amp_rewrite.pipeline import analyze
from benchmarks.graphs import Transformer
from tests.commands import run
from tests.text import DOWNSTREAM, model

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright, which drives the browser, is missing"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium here: apt-get install chromium", allow_module_level=True)

HOSTILE = "</script><script>window.pwned=1</script><!--<img src=x onerror=window.pwned=2>&\"'\u2028\u202e"


@pytest.fixture(scope="module")
def browser():
    """A Chromium; root may not have its sandbox."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield opened
        opened.close()


def written(proto, folder, *flags, exit_code=0):
    """The report that the command line writes of a model, with or without a run."""
    onnx.save(proto, folder / "model.onnx")
    done = run(folder / "model.onnx", "-o", folder / "out.onnx", "--html", folder / "report.html", *flags)
    assert done.exit_code == exit_code, done.output
    return folder / "report.html"


def explained(model, folder):
    """The report that `explain` writes of a model in a file."""
    done = run("explain", model, "--html", folder / "explained.html")
    assert done.exit_code == 0, done.output
    return folder / "explained.html"


@pytest.fixture(scope="module")
def demo_report(tmp_path_factory):
    """The report on the demo, compared with the original."""
    pytest.importorskip("onnxruntime", reason="the comparison runs models")
    return written(demo.network(), tmp_path_factory.mktemp("demo"))


class Shown:
    """A report that is open, and all that its page complained about or asked the network for."""

    def __init__(self, browser, path: Path, scheme="light"):
        self.complaints = []
        self.requests = []
        self.page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss())
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.body.dataset.ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()

    def index(self, name):
        """The position of the box of that name."""
        return self.page.evaluate("name => ampReport.data.boxes.findIndex((b) => b.name === name)", name)

    def place(self, index):
        """Where a box is drawn: its place on the canvas, and how large things are."""
        return self.page.evaluate("i => [...ampReport.locate(i), ampReport.scale()]", index)

    def fit(self):
        """Shows the whole graph."""
        self.page.click("#fit")
        self.page.wait_for_timeout(600)  # the journey takes 350 ms

    def colour(self, index):
        """The colour of a box near its lower right corner, where no words are, as red, green and blue."""
        x, y, scale = self.place(index)
        read = """([x, y]) => {
            const canvas = document.getElementById("canvas"), ratio = canvas.width / canvas.clientWidth;
            return [...canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data].slice(0, 3);
        }"""
        w, h = self.page.evaluate("i => [ampReport.scene.boxes[i].w, ampReport.scene.boxes[i].h]", index)
        return tuple(self.page.evaluate(read, [x + 0.4 * w * scale, y + 0.25 * h * scale]))

    def palette(self, name):
        """A colour of the style sheet as red, green and blue."""
        return tuple(map(int, self.page.evaluate(f"Drawing.palette()['{name}']")[4:-1].split(",")))

    def find(self, text):
        """Searches, takes the first result, and waits until it has come into view."""
        self.page.fill("#search", text)
        self.page.press("#search", "Enter")
        self.page.wait_for_timeout(600)  # the journey takes 350 ms

    def details(self):
        """The text of the panel beside the graph."""
        return self.page.text_content("#details")


def test_a_comparison_as_it_opens(browser, demo_report):
    """No error, no warning, no dialog, and no request but the one for the file itself; the beginning of the
    graph is in sight, names at least 10 pixels high; verdict, summary, errors and plots are beside it.
    """
    with Shown(browser, demo_report) as shown:
        x, y, scale = shown.place(shown.index("image"))
        assert x > 0
        assert y > 66  # below the bar
        assert 12 * scale > 10
        text = shown.page.text_content("#overview")
        assert "PASS: largest error" in text
        assert "44 in float16, 6 in float32" in text
        assert shown.page.locator("#overview .coverage .row").count() > 5
        assert shown.page.locator("#overview svg").count() == 2
        for heading in ("Summary", "Coverage", "Verification", "Nodes that add most error"):
            assert heading in text
        cuts = {"attention": "attention", "layers.11/attention": "lay…ention", "": ""}
        for name, cut in cuts.items():  # more is left of the end than of the beginning
            assert shown.page.evaluate("text => Dom.cut(text, 10)", name) == cut
        assert shown.complaints == []
        assert shown.requests == [demo_report.as_uri()]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_nodes_are_drawn_in_the_colour_of_their_precision(browser, demo_report, scheme):
    """Half, float32 and Casts can be told apart, in the palette of the scheme, or boxes by their error."""
    with Shown(browser, demo_report, scheme) as shown:
        assert shown.colour(shown.index("image to float16")) == shown.palette("cast")
        shown.fit()
        for name, colour in (("stem_conv1", "half"), ("rms_sqrt", "full"), ("refine_keep", "other")):
            assert shown.colour(shown.index(name)) == shown.palette(colour), name
        assert len({shown.palette(name) for name in ("half", "full", "other", "cast", "paper")}) == 5
        before = shown.colour(shown.index("score_softmax"))
        shown.page.check("#by-error")
        shown.fit()
        assert shown.colour(shown.index("score_softmax")) != before


def test_search_finds_a_node_and_brings_it_into_view(browser, demo_report):
    """After Enter the node is inside the canvas, large enough to read, and selected, with what the comparison
    found of it; nodes are found by their operator and by the values they touch, too.
    """
    with Shown(browser, demo_report) as shown:
        shown.find("refine_matmul")
        x, y, scale = shown.place(shown.index("refine_matmul"))
        size = shown.page.evaluate("[canvas.clientWidth, canvas.clientHeight]")
        assert 0 < x < size[0]
        assert 0 < y < size[1]
        assert scale >= 0.9
        assert "refine_matmul" in shown.details()
        assert "Inside" in shown.details()  # the body of the loop
        results = shown.page.locator("#results [role=option]")
        for text, count in (("softmax", 2), ("score_scale", 1), ("raw_scores", 2), ("no such thing", 0)):
            shown.page.fill("#search", text)
            assert results.count() == count, text
        assert "No match" in shown.page.text_content("#results")
        shown.find("score_softmax")
        assert "relative error" in shown.details()


@pytest.mark.slow
def test_the_graph_can_be_saved_as_svg(browser, demo_report):
    """All boxes with their titles, in the colours that are shown."""
    with Shown(browser, demo_report) as shown:
        boxes = shown.page.evaluate("ampReport.data.boxes.length")
        drawn = ET.fromstring(shown.page.evaluate("ampReport.drawing()"))
        titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
        assert len(titles) == boxes
        assert "Conv stem_conv1" in titles
        with shown.page.expect_download() as download:
            shown.page.click("#save")
        assert download.value.suggested_filename == "model.onnx.svg"
        assert shown.complaints == []


@pytest.mark.slow
def test_a_click_on_a_node_shows_its_chain_of_causes(browser, tmp_path):
    """The panel has every step that `explain` prints, and a link to each cause. A small graph is in sight as
    a whole when it opens.
    """
    proto = model(DOWNSTREAM)
    with Shown(browser, written(proto, tmp_path, "--skip=verify")) as shown:
        size = shown.page.evaluate("[canvas.clientWidth, canvas.clientHeight]")
        places = [shown.place(i) for i in range(shown.page.evaluate("ampReport.data.boxes.length"))]
        assert all(0 < x < size[0] and 0 < y < size[1] for x, y, _ in places)
        x, y, _ = shown.place(shown.index("squash"))
        shown.page.click("#canvas", position={"x": x, "y": y})
        analysis = analyze(proto)
        unit = next(unit for unit in analysis.graph.units if unit.node.name == "squash")
        steps = chain(analysis.decisions(), unit.index)
        said = [shown.page.locator(".chain li").nth(i).text_content() for i in range(len(steps))]
        assert len(said) == len(steps) == 4
        for step, text in zip(steps, said, strict=True):
            assert step.reason in text
        shown.page.locator(".chain li button").last.click()
        assert shown.page.text_content("#details .title") == "square"


@pytest.mark.slow
def test_the_graph_can_be_coloured_by_magnitude(browser, tmp_path):
    """Darker towards the largest number of half, lost ones apart; in the box and in the panel."""
    pytest.importorskip("onnxruntime", reason="it observes values")
    proto = model("""g (float[2, 2] x) => (float[2, 2] y, float[2, 2] z, float[2, 2] u) {
        million = Constant <value = float {1e6}> () trillion = Constant <value = float {1e12}> ()
        [large] y = Mul (x, million) [small] z = Div (x, trillion) [usual] u = Relu (x) }""")
    np.savez(tmp_path / "x.npz", x=np.ones((2, 2), np.float32))
    report = written(proto, tmp_path, "--skip", "rescale", "--calibrate", str(tmp_path / "x.npz"))
    with Shown(browser, report) as shown:
        shown.page.click("#by-magnitude")
        assert shown.complaints == []
        assert shown.page.is_visible(".legend.magnitude")
        assert not shown.page.is_visible(".legend.precision")
        colours = {"large": "magnitude-infinite", "small": "magnitude-zero", "usual": "magnitude-3"}
        for name, colour in colours.items():
            assert shown.page.evaluate(f"Magnitudes.colours(ampReport.data)({shown.index(name)})") == colour
            assert shown.colour(shown.index(name)) == shown.palette(colour)
        marks = shown.page.evaluate(f"Magnitudes.marks(ampReport.data)({shown.index('large')})")
        assert marks["text"] == "1e+6"
        assert marks["ends"][1] < marks["places"][1] < 1
        shown.find("large")
        assert "Largest magnitude observed" in shown.details()


PICTURE = """(title) => [...document.querySelectorAll(`svg[aria-label^="${title}"] > .fill`)]
  .map((each) => ({ x: each.getBBox().x, tone: each.classList[1], tag: each.tagName }))"""


@pytest.mark.slow
def test_pictures_show_errors_and_what_half_cannot_hold(browser, tmp_path):
    """A dot for each node in a place of its own; a bar for each power of two of stored values, in red where
    half loses them; of a few numbers the range says enough.
    """
    pytest.importorskip("onnxruntime", reason="it runs the models")
    proto = model(
        """g (float[2,32] x) => (float[2,32] y) <float[32,32] v, float[32] w, float[1] few> {
            a = MatMul (x, v) [scaled] s = Mul (a, w) [little] y = Add (s, few) }""",
        {"w": np.float32([1] * 20 + [3] * 8 + [2**-30] * 2 + [1e5, 0]), "few": np.ones(1, np.float32)},
    )
    with Shown(browser, written(proto, tmp_path)) as shown:
        dots = [each for each in shown.page.evaluate(PICTURE, "Relative error") if each["tag"] == "circle"]
        assert len({each["x"] for each in dots}) == len(dots) > 1
        assert len(dots) == shown.page.evaluate("ampReport.data.errors.length")
        bars = shown.page.evaluate(PICTURE, "Magnitudes")
        tones = [each["tone"] for each in bars if each["tag"] == "rect" and each["tone"] != "light"]
        assert sorted(tones)[:2] == ["bad", "bad"]
        assert "half" in tones
        shown.find("scaled")
        bars = "[...document.querySelectorAll('.histogram rect')].map(r => `${r.textContent} ${r.classList}`)"
        lost = ["2^-30: 2 lost", "2^0: 20 kept", "2^1: 8 kept", "2^16: 1 lost"]
        assert shown.page.evaluate(bars) == lost
        assert shown.page.locator(".histogram").bounding_box()["height"] < 40
        shown.find("little")
        assert shown.page.locator(".histogram").count() == 0
        assert shown.complaints == []


@pytest.mark.slow
def test_a_failure_opens_at_the_node_to_look_at(browser, tmp_path):
    """It is selected and in sight, its panel open, its way to the output drawn."""
    pytest.importorskip("onnxruntime", reason="the comparison runs models")
    proto = model("""g (float[2] x) => (float[2] y) {
        [shift] s = Add (x, x) [square] a = Mul (s, s) [root] y = Sqrt (a) }""")
    np.savez(tmp_path / "large.npz", x=np.float32([150, 1]))
    flags = ("--level", "unsafe-force-all", "--data", tmp_path / "large.npz")
    with Shown(browser, written(proto, tmp_path, *flags, exit_code=1)) as shown:
        assert shown.page.text_content("#details .title") == "square"
        assert "Compared with the original" in shown.details()
        shown.page.wait_for_timeout(600)
        x, y, scale = shown.place(shown.index("square"))
        size = shown.page.evaluate("[canvas.clientWidth, canvas.clientHeight]")
        assert (x, y) == pytest.approx([length / 2 for length in size], abs=2)
        assert scale >= 0.9
        path = shown.page.evaluate("ampReport.path.map((i) => ampReport.data.boxes[i].name)")
        assert (path[0], path[-1]) == ("square", "y")
        assert shown.complaints == []


def hostile():
    """A model in which everything that can have a name is called after an attack."""
    names = {"x": f"{HOSTILE}x", "w": f"{HOSTILE}w", "y": f"{HOSTILE}y"}
    weight = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), names["w"])
    nodes = [
        helper.make_node("MatMul", [names["x"], names["w"]], ["product"], HOSTILE),
        helper.make_node(f"{HOSTILE}op", ["product"], [names["y"]], "odd", domain=f"{HOSTILE}.domain"),
    ]
    ends = [helper.make_tensor_value_info(names[end], 1, [HOSTILE, 4]) for end in "xy"]
    graph = helper.make_graph(nodes, HOSTILE, ends[:1], ends[1:], [weight])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(f"{HOSTILE}.domain", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@pytest.mark.slow
def test_without_a_comparison(browser, tmp_path):
    """`explain` of a model, and of a result with the decisions that it carries; a click on a cause has its
    nodes stand out and all others fade, and what is proven to fit into half has a colour of its own.
    """
    report = written(demo.network(), tmp_path, "--skip=verify", "--range", "image=0:1")
    for page in (explained(tmp_path / "out.onnx", tmp_path), explained(tmp_path / "model.onnx", tmp_path)):
        with Shown(browser, page) as shown:
            assert "not compared" in shown.page.text_content("#verdict")
            assert shown.page.is_disabled("#by-error")
            shown.find("rms_sqrt")
            assert "part of a written-out RMSNormalization" in shown.details()
            shown.find("score_scale")
            assert "tensor cores" in shown.details()  # of the product at the end of its chain
            assert shown.complaints == []
    with Shown(browser, report) as shown:
        assert "to allow: --allow Pow --allow ReduceMean" in shown.page.text_content("#overview")
        shown.page.locator(".cause button").first.click()
        shown.page.wait_for_timeout(600)
        assert shown.colour(shown.index("rms_sqrt")) == shown.palette("full")
        assert shown.colour(shown.index("head_softmax")) != shown.palette("full")  # of another cause
        assert shown.colour(shown.index("stem_conv1")) != shown.palette("half")
    with Shown(browser, report) as shown:
        shown.page.click("#by-range")
        shown.fit()
        assert shown.colour(shown.index("stem_conv3")) == shown.palette("known-proven")
        assert shown.colour(shown.index("refine_matmul")) == shown.palette("known-unknown")
        assert shown.colour(shown.index("rms_sqrt")) == shown.palette("frame")


@pytest.mark.slow
def test_a_model_with_markup_in_its_names_is_harmless(browser, tmp_path):
    """Nothing of it runs or becomes an element, and its names are read as they are."""
    report = written(hostile(), tmp_path, "--skip=check", "--skip=verify")
    with Shown(browser, report) as shown:
        shown.find("MatMul")
        assert shown.page.text_content("#details .title") == HOSTILE
        shown.find("op ")
        assert shown.page.text_content("#details h2").endswith(f"{HOSTILE}op")
        shown.page.fill("#search", HOSTILE)
        assert shown.page.locator("#results [role=option]").count() > 2
        assert shown.page.evaluate("window.pwned") is None
        assert shown.page.locator("img").count() == 0
        assert shown.page.locator("script").count() == 3
        assert shown.complaints == []


@pytest.mark.slow
def test_repeated_layers_are_one_box_until_they_are_opened(browser, tmp_path):
    """A click opens them into a box each, and that into its nodes; search opens one layer, a button all: then
    the whole graph is in sight, and no two boxes lie on each other.
    """
    proto = Transformer(200).model()
    with Shown(browser, written(proto, tmp_path, "--skip=verify")) as shown:
        texts = "ampReport.scene.items.filter((i) => i.layers).map((i) => i.operator)"
        count = len(shown.page.evaluate("ampReport.data.layers[0]")) - 1
        assert shown.page.evaluate(texts) == [f"{count} layers of 50 nodes"]

        def click(item):
            x, y, _ = shown.place(item)
            shown.page.click("#canvas", position={"x": x, "y": y})
            shown.page.wait_for_timeout(600)

        start, other, *_ = shown.page.evaluate("ampReport.data.layers[0]")
        click(start)
        assert shown.page.evaluate(texts) == [f"layer {i + 1} of {count}" for i in range(count)]
        click(other)
        assert shown.page.evaluate(texts) == [f"layer {i + 1} of {count}" for i in range(count) if i != 1]
        click(other)
        assert "Why" in shown.details()
        shown.page.click("#fold")
        assert shown.page.evaluate("ampReport.scene.items.length") < 10
        shown.find(proto.graph.node[-1].name)
        assert shown.page.evaluate(texts) == [f"{count - 1} layers of 50 nodes"]
        shown.page.click("#fold")
        shown.page.click("#fold")
        assert shown.page.evaluate(texts) == []
        shown.fit()
        boxes = shown.page.evaluate("ampReport.scene.items.map(({x, y, w, h}) => [x, y, w, h])")
        assert len(boxes) > 200
        assert overlaps(np.array(boxes)) == 0
        inside = """() => { const c = document.getElementById("canvas");
            return ampReport.data.boxes.every((_, i) => { const [x, y] = ampReport.locate(i);
                return x > 0 && y > 0 && x < c.clientWidth && y < c.clientHeight; }); }"""
        assert shown.page.evaluate(inside)
        assert shown.complaints == []


MIXED = """g (float[4,4] x) => (float[4,4] y, float[4,4] s) <float[4,4] w> {
  scale = Constant <value = float {2.0}> () [product] a = MatMul (x, w) [exponential] e = Exp (a)
  [root] s = Sqrt (e) [scaled] c = Mul (e, scale) y = MatMul (c, w) }"""
MIXED_BOXES = """
0 border x: x
0 cast x to float16: x -> half x < x
0 half product: half x, half stored w -> half a < x to float16
0 cast a to float32: half a -> a < product
0 full exponential: a -> e < a to float32
0 full root: e -> s < exponential
0 border s: s < root
0 full scaled: e, stored scale -> c < exponential
0 cast c to float16: c -> half c < scaled
0 half y: half c, half stored w -> half y < c to float16
0 cast y to float32: half y -> y < y
0 border y: y < y to float32"""
LOOP = """g (float[4,4] x, float[4,4] w) => (float[4,4] y) <int64 trips = {2}> {
  [refine] y = Loop (trips, , x) <body = step (int64 i, bool go, float[4,4] before) =>
    (bool on, float[4,4] after) { [keep] on = Identity (go) [inner] after = MatMul (before, w) }> }"""
LOOP_BOXES = """
0 border x: x
0 border w: w
0 cast x to float16: x -> half x < x
0 cast w to float16: w -> half w < w
0 half refine: stored trips, half x -> half y < x to float16
0 cast y to float32: half y -> y < refine
0 border y: y < y to float32
1 border i: i
1 border go: go
1 other keep: go -> on < go
1 border on: on < keep
1 border before: half before
1 half inner: half before, half w -> half after < before, w to float16
1 border after: half after < inner"""


def listed(data):
    """Frame, colour and name of each box, what it reads and makes, and behind `<` what it is wired to."""
    names, lines = [box["name"] for box in data["boxes"]], [""]
    for at, box in enumerate(data["boxes"]):
        sides = [
            ", ".join("half " * one["half"] + "stored " * one["stored"] + one["name"] for one in box[side])
            for side in ("inputs", "outputs")
        ]
        wired = ", ".join(names[source] for source, target in data["wires"] if target == at)
        shown = " -> ".join(filter(None, sides)) + f" < {wired}" * bool(wired)
        lines.append(f"{box['graph']} {box['shade']} {box['name']}: {shown}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("source", "boxes"), [(MIXED, MIXED_BOXES), (LOOP, LOOP_BOXES)], ids=["mixed", "loop"]
)
@pytest.mark.slow
def test_boxes_and_wires(browser, tmp_path, source, boxes):
    """A box for each node, Cast, input and output, in the order of the nodes: a Cast stands between who makes
    a value and who reads it in the other type; a body is a frame of its own, into which wires lead. What is
    stored is named and not drawn. The result has the same boxes, and its own Casts.
    """
    with Shown(browser, written(model(source), tmp_path, "--skip=verify")) as shown:
        data = shown.page.evaluate("ampReport.data")
        assert listed(data) == boxes
        owners = [frame["owner"] and data["boxes"][frame["owner"]]["name"] for frame in data["frames"]]
        assert owners == [None, "refine"][: len(owners)]
    with Shown(browser, explained(tmp_path / "out.onnx", tmp_path)) as shown:
        again = listed(shown.page.evaluate("ampReport.data")).split("\n")
        assert sorted(line[:6] for line in again) == sorted(line[:6] for line in boxes.split("\n"))


@pytest.mark.slow
def test_what_the_page_counts_on(browser, demo_report):
    """As many nodes as the report counts are drawn in each shade, those of a frame in a row; every unit has a
    box, and wires point forward. Where the largest number of a value is known, it is at a box.
    """
    with Shown(browser, demo_report) as shown:
        data = shown.page.evaluate("ampReport.data")
    boxes, report = data["boxes"], analyze(demo.network()).report()
    shades = Counter(box["shade"] for box in boxes)
    expected = (report.nodes.half, report.nodes.mixed, report.nodes.full, report.casts_added)
    assert tuple(shades[shade] for shade in ("half", "mixed", "full", "cast")) == expected
    assert shades["other"] + data["constants"] == report.nodes.other
    frames = [box["graph"] for box in boxes]
    assert frames == sorted(frames)
    assert sorted(unit for box in boxes for unit in box["units"]) == list(range(len(data["reasons"])))
    assert all(a < b for a, b in data["wires"] if frames[a] == frames[b])
    assert sum(pair is not None for pair in data["magnitudes"]) > 40
    assert [(port["kind"], port["name"]) for port in data["ports"]] == [
        ("input", "image"),
        ("output", "probabilities"),
    ]
    assert {title.split(",")[0] for title in data["histograms"]} == {"stored numbers", "node outputs"}


@pytest.mark.slow
def test_layers_that_repeat(browser, demo_report):
    """As the first box, the size and the number of layers; Casts around a node do not count."""
    cases = {
        "one operator": (["Relu"] * 13, [(0, 1, 13)]),
        "too few": (["Relu"] * 12, []),
        "between others": ([*"ab", *("Exp Sqrt Relu Neg".split() * 4), "Abs"], [(2, 4, 4)]),
        "two sequences": ("Exp Sqrt Relu Neg".split() * 4 + ["Abs"] * 13, [(0, 4, 4), (16, 1, 13)]),
        "shortest": ((["Exp"] * 3 + ["Sqrt"]) * 6, [(0, 4, 6)]),  # the shortest period, not twice that
        "with Casts": (
            ("MatMul Sin Tanh ".split() * 2 + ["MatMul", "Cast", "Sin", "Cast", "Tanh"]) * 3,
            None,
        ),
    }
    call = """(operators) => Graph.layersOf(
        operators.map((operator, i) => ({ graph: 0, operator, name: `n${i}`, shade: "half", inputs: [0] })),
        operators.slice(1).map((_, i) => [i, i + 1]))"""
    with Shown(browser, demo_report) as shown:
        for title, (operators, layers) in cases.items():
            rows = shown.page.evaluate(call, operators)
            if layers is None:
                assert [end - start for start, end in itertools.pairwise(rows[0])] == [3, 3, 5] * 3
            else:
                assert [(row[0], row[1] - row[0], len(row) - 1) for row in rows] == layers, title


SHARED = Path(__file__).parents[2] / "shared" / "models"
ODD_ONES = """gtcrn_stream_raw onnx_sequence_model4 onnxscript_nested_functions pcb_aoi_opset1
silero_vad_v6""".split()


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the shared models are not here")
@pytest.mark.parametrize("name", ODD_ONES)
def test_real_models_open_without_a_complaint(browser, tmp_path, name):
    """A large one, those with bodies, sequences and functions, and one that is hardly ONNX."""
    with Shown(browser, explained(SHARED / name / "model.onnx", tmp_path)) as shown:
        boxes = shown.page.evaluate("ampReport.scene.items.map(({x, y, w, h}) => [x, y, w, h])")
        assert overlaps(np.array(boxes)) == 0
        assert shown.complaints == []


def overlaps(boxes):
    """How many pairs of boxes lie on each other; sorted by place, so that only near ones are compared."""
    boxes = boxes[np.argsort(boxes[:, 1])]
    found = 0
    for i, (x, y, w, h) in enumerate(boxes):
        near = boxes[i + 1 : np.searchsorted(boxes[:, 1], y + h)]
        apart = (np.abs(near[:, 0] - x) >= (near[:, 2] + w) / 2) | (near[:, 1] - y >= (near[:, 3] + h) / 2)
        found += int(np.count_nonzero(~apart))
    return found
