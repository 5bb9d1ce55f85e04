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
    const head = el("tr", {}, ...found.columns.map((column) => el("th", {}, column)));
    const rows = found.rows.map(({ cells, ok }) => outputRow(cells, ok));
    const faults = found.faults.map((fault) => el("li", {}, fault));
    return section(
      "Verification",
      el("p", { class: "note" }, found.how),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows))),
      el("ul", { class: "faults" }, ...faults),
    );
  }

  function outputRow(cells, ok) {
    const [output, ...numbers] = cells;
    const values = numbers.map((cell) => el("td", {}, cell));
    values.at(-1).setAttribute("class", ok ? "good" : "bad");
    return el("tr", {}, el("th", { scope: "row" }, name(output)), ...values);
  }

  function misfits(data, go) {
    if (!data.misfits.length) return [];
    const worst = data.misfits.slice(0, WORST);
    const items = worst.map((misfit) => el("li", {}, Details.boxLink(data, misfit.box, go), " ", added(misfit)));
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
