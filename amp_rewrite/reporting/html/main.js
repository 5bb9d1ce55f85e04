"use strict";

/* Puts the page together. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const kindsOf = (box) => [...new Set(box.units.map((unit) => data.reasons[unit].kind))];
  data.boxes.forEach((box) => Object.assign(box, { kinds: kindsOf(box) }));

  function verdictOn(ok) {
    if (ok === null) return ["not compared with the original", "none"];
    return ok ? ["PASS: verified against the original", "good"] : ["FAIL: not verified against the original", "bad"];
  }

  const file = data.title.split(/[\\/]/).pop();
  document.title = `${file} · amp-rewrite`;
  byId("title").append(Dom.name(file));
  byId("path").append(Dom.name(data.title));
  const [verdict, state] = verdictOn(data.verification.ok);
  byId("verdict").textContent = verdict;
  byId("verdict").className = `verdict ${state}`;
  byId("overview").append(...Overview.sections(data, select, mark));

  const canvas = byId("canvas");
  performance.mark("laying out");
  const scene = Layout.place(data, canvas.clientWidth / (canvas.clientHeight || 1));
  performance.measure("layout", "laying out");
  const view = View.open(canvas, scene, pick, hover);
  const search = Search.open(byId("search"), byId("results"), data, (found) => view.set({ found }), select);
  document.querySelectorAll(".half-type").forEach((place) => (place.textContent = data.half));

  /** Selects a box and brings it into view; null selects nothing. */
  function select(index) {
    show(index);
    if (index !== null) view.focus(index);
  }

  /** Highlights boxes and shows the whole graph. */
  function mark(boxes) {
    show(null);
    view.set({ found: new Set(boxes) });
    view.fit();
  }

  /** Handles a click in the graph; a click outside all boxes also ends highlighting. */
  function pick(index) {
    if (index === null) view.set({ found: null });
    show(index);
    if (index !== null) view.reveal(index);
  }

  function show(index) {
    view.set({ selected: index, chain: index === null ? [] : chainOf(index) });
    byId("details").hidden = index === null;
    if (index !== null) Details.show(byId("details"), data, index, select);
  }

  /** Shows a tooltip for the box under the pointer: zoomed out, boxes have no labels. */
  function hover(index, place) {
    const tip = byId("tip");
    tip.hidden = index === null;
    if (tip.hidden) return;
    const box = data.boxes[index];
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

  function setMode(mode) {
    document.body.dataset.mode = mode;
    view.set({ weigh: mode === "error" ? errors() : null });
  }

  byId("by-error").disabled = !data.errors.length;
  document.querySelectorAll("input[name=mode]").forEach((input) => {
    input.addEventListener("change", () => setMode(input.value));
  });
  byId("fit").addEventListener("click", view.fit);
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
  window.ampReport = { data, scene, locate: view.locate, scale: view.scale };
  document.body.dataset.ready = "true";
})();
