"use strict";

/* Puts the page together. */
(() => {
  const data = Graph.complete(JSON.parse(document.getElementById("data").textContent));
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
  data.open = new Set(); // the layers that are not folded, and the sequences of layers
  const hasRanges = data.reasons.some(({ range }) => range);
  byId("overview").append(...Overview.sections(data, select, mark));

  const canvas = byId("canvas");
  let scene = laidOut();
  const view = View.open(canvas, scene, pick, hover);
  const search = Search.open(byId("search"), byId("results"), data, (found) => view.set({ found }), select);
  data.limits.forEach((power, i) => (byId(`limit-${i}`).textContent = i ? d3.format(".5~g")(2 ** power) : `2^${power}`));
  for (const place of document.querySelectorAll("[data-colour]")) Dom.fill(place, { colour: place.dataset.colour }, []);
  document.querySelectorAll(".half-type").forEach((place) => (place.textContent = data.half));

  /** The positions of the graph. */
  function laidOut() {
    performance.mark("laying out");
    const found = Layout.place(data, canvas.clientWidth / (canvas.clientHeight || 1));
    performance.measure("layout", "laying out");
    return found;
  }

  /** Lays the graph out again with other layers folded. */
  function refold(change) {
    change();
    scene = laidOut();
    view.use(scene);
  }

  /** The first box of the layer of a box that is folded; undefined for others. */
  function layerOf(index) {
    return scene.boxes[index].layers?.findLast((start) => start <= index);
  }

  /** Opens the layer of a box if it is folded, selects the box and brings it into view; null selects nothing. */
  function select(index) {
    const layer = index === null ? undefined : layerOf(index);
    if (layer !== undefined) refold(() => data.open.add(layer));
    show(index);
    if (index !== null) view.focus(index);
  }

  /** Highlights boxes, and shows the whole graph. */
  function mark(boxes) {
    show(null);
    view.set({ found: new Set(boxes) });
    view.fit();
  }

  /** Handles a click in the graph; a click outside all boxes also ends highlighting. */
  function pick(index) {
    if (index === null) view.set({ found: null });
    else if (layerOf(index) !== undefined) return unfold(scene.boxes[index]);
    show(index);
    if (index !== null) view.reveal(index);
  }

  /** Opens folded layers: into one box for each layer, and that into its boxes. */
  function unfold({ layers, from, to }) {
    const isOne = layers.indexOf(to) - layers.indexOf(from) === 1;
    refold(() => data.open.add(isOne ? from : layers));
    view.focus(from);
  }

  /** Folds all layers, or opens all where all are folded. */
  function foldAll() {
    show(null);
    const all = data.layers.flatMap((starts) => starts.slice(0, -1));
    refold(() => (data.open = new Set(data.open.size ? [] : all)));
    view.home();
  }

  function show(index) {
    const [chain, path] = index === null ? [[], []] : [chainOf(index), Details.pathOf(data, index)];
    view.set({ selected: index, chain, path });
    byId("details").hidden = index === null;
    if (index !== null) Details.show(byId("details"), data, index, select);
  }

  /** Shows a tooltip for the box under the pointer: zoomed out, boxes have no labels. */
  function hover(index, place) {
    const tip = byId("tip");
    tip.hidden = index === null;
    if (tip.hidden) return;
    const box = scene.boxes[index];
    tip.replaceChildren(Dom.el("b", {}, box.operator), " ", Dom.name(box.name));
    tip.style.transform = `translate(${place[0] + 14}px, ${place[1] + 16}px)`;
  }

  function chainOf(index) {
    const units = data.boxes[index].units;
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
      const known = data.boxes[index].units.map((unit) => data.reasons[unit].range?.knowledge);
      const least = order.find((word) => known.includes(word));
      return least ? `known-${least}` : null;
    };
  }

  /** The graph as SVG, in the colours that it has. */
  function drawing() {
    const colours = Drawing.palette();
    const weigh = weights();
    return Export.text(scene, colours, (item) => Drawing.colour(item, weigh, colours));
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

  byId("step-mode").hidden = !data.step;
  byId("by-error").disabled = !data.errors.length;
  byId("by-range").disabled = !hasRanges;
  byId("by-magnitude").disabled = !data.magnitudes.some(Boolean);
  document.querySelectorAll("input[name=mode]").forEach((input) => {
    input.addEventListener("change", () => setMode(input.value));
  });
  byId("fold").hidden = !data.layers.length;
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
      return data;
    },
    get scene() {
      return scene;
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
