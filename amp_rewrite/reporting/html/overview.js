"use strict";

/* The column beside the graph: what was decided, how much of it, why not more, and how close it came. */
const Overview = (() => {
  const { el, name } = Dom;
  const WORST = 12;

  /** The sections that there is something to say in, in the order in which people ask. */
  function sections(data, go) {
    return [summary, coverage, causes, verification, misfits, pictures].flatMap((section) => section(data, go));
  }

  function section(title, ...children) {
    return [el("section", {}, el("h2", {}, title), ...children)];
  }

  function summary({ summary: lines }) {
    const rows = lines.flatMap(([term, text]) => [el("dt", {}, term), el("dd", { class: term }, text)]);
    return section("Summary", el("dl", { class: "facts" }, ...rows));
  }

  function verification({ verification: found }) {
    if (!found.columns) return section("Verification", el("p", { class: "note" }, found.how));
    const faults = found.faults.map((fault) => el("li", {}, fault));
    return section(
      "Verification",
      el("p", { class: "note" }, found.how),
      el("ul", { class: "outputs" }, ...found.rows.map((row) => output(found.columns, row))),
      el("ul", { class: "faults" }, ...faults),
    );
  }

  /** An output: its name and its verdict, and the metrics below. */
  function output(columns, { cells, ok }) {
    const metrics = d3.range(1, cells.length - 1).filter((i) => cells[i]);
    return el(
      "li",
      {},
      name(cells[0]),
      el("span", { class: ok ? "number good" : "number bad" }, cells.at(-1)),
      el("p", { class: "metrics" }, ...metrics.map((i) => el("span", {}, `${columns[i]} `, el("b", {}, cells[i])))),
    );
  }

  function misfits(data, go) {
    if (!data.misfits.length) return [];
    const seen = new Set();
    const first = data.misfits.filter(({ box }) => !seen.has(box) && seen.add(box));
    const items = first.slice(0, WORST).map((misfit) => el("li", {}, Details.boxLink(data, misfit.box, go), " ", added(misfit)));
    return section("Nodes that add most error", el("ol", { class: "worst" }, ...items));
  }

  function added({ added: error, lost }) {
    const text = lost ? `${lost.toLocaleString("en")} not finite` : `adds ${error}`;
    return el("span", { class: lost ? "number bad" : "number" }, text);
  }

  function coverage() {
    return [];
  }

  function causes() {
    return [];
  }

  function pictures({ pictures: all }) {
    return all.flatMap((picture) => section(picture.title, Pictures.draw(picture)));
  }

  return { sections };
})();
