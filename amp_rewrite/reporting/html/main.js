"use strict";

/* Puts the page together. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const kindsOf = (box) => [...new Set(box.units.map((unit) => data.reasons[unit].kind))];
  data.stepChip = (index) => Step.chip(data, index);
  data.boxes.forEach((box) => Object.assign(box, { kinds: kindsOf(box) }));

  const stateOf = (ok) => (ok === null ? "none" : ok ? "good" : "bad");

  const file = data.title.split(/[\\/]/).pop();
  document.title = `${file} · amp-rewrite`;
  byId("title").append(Dom.name(file));
  byId("path").append(Dom.name(data.title));
  byId("verdict").textContent = data.verification.said;
  byId("verdict").className = `verdict ${stateOf(data.verification.ok)}`;
  const executed = Execution.graphOf(data);
  // the layers that are not folded, and the sequences of layers
  for (const graph of [data, executed]) if (graph) graph.open = new Set();
  const hasRanges = data.reasons.some(({ range }) => range);
  const [goPlanned, goExecuted] = [data, executed].map((graph) => (index) => {
    use(graph);
    select(index);
  });
  byId("overview").append(...Overview.sections(data, goPlanned, marking(data), marking(executed)));

  const canvas = byId("canvas");
  const scenes = new Map();
  let shown = data;
  const view = View.open(canvas, sceneOf(data), pick, hover);
  const search = Search.open(byId("search"), byId("results"), data, (found) => view.set({ found }), select);
  data.limits.forEach((power, i) => (byId(`limit-${i}`).textContent = i ? d3.format(".5~g")(2 ** power) : `2^${power}`));
  for (const place of document.querySelectorAll("[data-colour]")) Dom.fill(place, { colour: place.dataset.colour }, []);
  document.querySelectorAll(".half-type").forEach((place) => (place.textContent = data.half));

  /** The positions of a graph, which is laid out when it is first shown. */
  function sceneOf(graph) {
    if (!scenes.has(graph)) {
      performance.mark("laying out");
      scenes.set(graph, Layout.place(graph, canvas.clientWidth / (canvas.clientHeight || 1)));
      performance.measure("layout", "laying out");
    }
    return scenes.get(graph);
  }

  /** Enables the modes that the graph has data for. */
  function enable() {
    byId("by-error").disabled = !shown.errors.length;
    byId("by-range").disabled = shown !== data || !hasRanges;
    byId("by-magnitude").disabled = !shown.magnitudes.some(Boolean);
    byId("by-step").disabled = shown !== data;
  }

  /** Shows one of the two graphs. */
  function use(graph) {
    if (graph === shown) return;
    shown = graph;
    show(null);
    document.querySelector(`input[name=graph][value=${graph === data ? "planned" : "executed"}]`).checked = true;
    document.body.dataset.graph = graph === data ? "planned" : "executed";
    enable();
    if (document.querySelector("input[name=mode]:checked").disabled)
      document.querySelector("input[name=mode][value=precision]").click();
    view.use(sceneOf(graph));
    search.use(graph);
  }

  /** Lays the graph out again with other layers folded. */
  function refold(change) {
    change();
    scenes.delete(shown);
    view.use(sceneOf(shown), true);
  }

  /** The first box of the layer of a box that is folded; undefined for others. */
  function layerOf(index) {
    return sceneOf(shown).boxes[index].layers?.findLast((start) => start <= index);
  }

  /** Opens the layer of a box if it is folded, selects the box and brings it into view; null selects nothing. */
  function select(index) {
    const layer = index === null ? undefined : layerOf(index);
    if (layer !== undefined) refold(() => shown.open.add(layer));
    show(index);
    if (index !== null) view.focus(index);
  }

  /** A function that highlights boxes of a graph, and shows the whole of it. */
  function marking(graph) {
    return (boxes) => {
      use(graph);
      show(null);
      view.set({ found: new Set(boxes) });
      view.fit();
    };
  }

  /** Handles a click in the graph; a click outside all boxes also ends highlighting. */
  function pick(index) {
    if (index === null) view.set({ found: null });
    else if (layerOf(index) !== undefined) return unfold(sceneOf(shown).boxes[index]);
    show(index);
    if (index !== null) view.reveal(index);
  }

  /** Opens folded layers: into one box for each layer, and that into its boxes. */
  function unfold({ layers, from, to }) {
    const isOne = layers.indexOf(to) - layers.indexOf(from) === 1;
    refold(() => shown.open.add(isOne ? from : layers));
    view.focus(from);
  }

  /** Folds all layers, or opens all where all are folded. */
  function foldAll() {
    show(null);
    const all = shown.layers.flatMap((starts) => starts.slice(0, -1));
    refold(() => (shown.open = new Set(shown.open.size ? [] : all)));
    view.home();
  }

  function show(index) {
    const [chain, path] = index === null ? [[], []] : [chainOf(index), Details.pathOf(shown, index)];
    view.set({ selected: index, chain, path });
    byId("details").hidden = index === null;
    if (index !== null) Details.show(byId("details"), shown, index, select, shown === data ? goExecuted : goPlanned);
  }

  /** Shows a tooltip for the box under the pointer: zoomed out, boxes have no labels. */
  function hover(index, place) {
    const tip = byId("tip");
    tip.hidden = index === null;
    if (tip.hidden) return;
    const box = sceneOf(shown).boxes[index];
    tip.replaceChildren(Dom.el("b", {}, box.operator), " ", Dom.name(box.name));
    tip.style.transform = `translate(${place[0] + 14}px, ${place[1] + 16}px)`;
  }

  function chainOf(index) {
    const units = shown.boxes[index].units;
    return units.length
      ? Details.chainOf(data, units[0])
          .map((unit) => data.reasons[unit].box)
          .filter((box) => box !== null)
      : [];
  }

  /** The error of each box on a logarithmic scale from 1e-5 to 0.1; null for boxes that were not compared. */
  function errors() {
    const worst = d3.rollup(
      data.errors,
      (all) => d3.max(all, (error) => (error.non_finite ? 1 : error.size)),
      (error) => error.box,
    );
    const scale = d3.scaleLog([1e-5, 0.1], [0, 1]).clamp(true);
    return (index) => (worst.has(index) ? scale(worst.get(index) || 1e-9) : null);
  }

  /** The colour of what is known of the units of a box: of that of which least is known; null for no half unit. */
  function ranges() {
    const order = ["unknown", "observed", "proven"];
    return (index) => {
      const units = shown === data ? data.boxes[index].units : [];
      const known = units.map((unit) => data.reasons[unit].range?.knowledge);
      const least = order.find((word) => known.includes(word));
      return least ? `known-${least}` : null;
    };
  }

  /** The graph that is shown as SVG, in the colours that it has. */
  function drawing() {
    const colours = Drawing.palette();
    const weigh = weights();
    return Export.text(sceneOf(shown), colours, (item) => Drawing.colour(item, weigh, colours));
  }

  /** The weights of boxes in this mode; null where their shades colour them. */
  function weights() {
    const [step, magnitude] = [Step, Magnitudes].map((each) => () => each.colours(data));
    const weighs = { error: errors, range: ranges, magnitude, step };
    return weighs[document.body.dataset.mode]?.() ?? null;
  }

  function setMode(mode) {
    document.body.dataset.mode = mode;
    for (const legend of document.querySelectorAll(".legend")) legend.hidden = !legend.classList.contains(mode);
    view.set({ weigh: weights(), marks: mode === "magnitude" ? Magnitudes.marks(data) : null });
  }

  byId("graphs").hidden = !executed;
  byId("step-mode").hidden = !data.step;
  document.querySelectorAll("input[name=graph]").forEach((input) => {
    input.addEventListener("change", () => use(input.value === "planned" ? data : executed));
  });
  enable();
  document.querySelectorAll("input[name=mode]").forEach((input) => {
    input.addEventListener("change", () => setMode(input.value));
  });
  byId("fold").hidden = ![data, executed].some((graph) => graph?.layers.length);
  byId("fold").addEventListener("click", foldAll);
  byId("fit").addEventListener("click", view.fit);
  byId("save").addEventListener("click", () => Export.save(drawing(), `${file}.svg`));
  byId("in").addEventListener("click", () => view.zoomBy(1.6));
  byId("out").addEventListener("click", () => view.zoomBy(1 / 1.6));
  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !typing) {
      byId("search").focus();
      event.preventDefault();
    }
    if (event.key === "Escape" && !typing) {
      search.clear();
      show(null);
    }
  });

  /* For scripts and tests: the position of a box on the canvas, and the scale. */
  window.ampReport = {
    get data() {
      return shown;
    },
    get scene() {
      return sceneOf(shown);
    },
    get path() {
      return view.path();
    },
    locate: view.locate,
    drawing,
    scale: view.scale,
  };
  setMode("precision");
  if (data.suspect !== null) select(data.suspect);
  document.body.dataset.ready = "true";
})();
