"use strict";

/* The column beside the graph: summary, coverage, causes of float32, verification, errors, plots. */
const Overview = (() => {
  const { el, name } = Dom;
  const WORST = 12;
  const [OPERATORS, CAUSES] = [10, 6]; // shown at first

  /** The sections that have content. */
  function sections(data, go, mark) {
    return [summary, step, coverage, causes, verification, errors, pictures, model].flatMap((section) =>
      section(data, go, mark),
    );
  }

  function section(title, ...children) {
    return [el("section", {}, el("h2", {}, title), ...children)];
  }

  function step(data, go, mark) {
    return data.step ? section("Train step", ...Step.section(data, mark)) : [];
  }

  function summary({ summary: lines, constants }) {
    const rows = lines.flatMap(([term, text]) => [el("dt", {}, term), el("dd", { class: term }, text)]);
    if (constants) {
      const text = `${constants.toLocaleString("en")} Constants are not drawn, but listed as inputs of their consumers`;
      rows.push(el("dt", {}, "graph"), el("dd", {}, text));
    }
    return section("Summary", el("dl", { class: "facts" }, ...rows));
  }

  /** Where the model comes from, what it takes and gives, and what was asked for. */
  function model({ facts: all, ports: borders, half }) {
    const facts = Dom.table(all.map(([term, text]) => [term, name(text)]));
    const ports = borders.map((port) =>
      el(
        "li",
        {},
        el("span", { class: "stored" }, port.kind),
        name(port.name),
        el("span", { class: "type" }, port.type),
        port.half ? el("span", { class: "chip half" }, half) : null,
      ),
    );
    return section("Model", facts, el("ul", { class: "ports" }, ...ports));
  }

  function verification({ verification: found }) {
    if (!found.columns) return section("Verification", el("p", { class: "note" }, found.how));
    const faults = found.faults.map((fault) => el("li", {}, fault));
    return section(
      "Verification",
      el("p", { class: "note" }, found.how),
      el("ul", { class: "outputs" }, ...found.rows.map((row) => output(found.columns, row))),
      ...found.notes.map((note) => el("p", { class: "note" }, note)),
      el("ul", { class: "faults" }, ...faults),
      ...found.next.map((line) => el("p", { class: "next" }, el("code", {}, line))),
    );
  }

  /** An output: its name, its verdict, and the metrics. */
  function output(columns, { cells, ok }) {
    const metrics = d3.range(1, cells.length - 1).filter((i) => cells[i]);
    return el(
      "li",
      {},
      name(cells[0]),
      el("span", { class: ok === null ? "number" : ok ? "number good" : "number bad" }, cells.at(-1)),
      el(
        "p",
        { class: "metrics" },
        ...metrics.map((i) => el("span", {}, `${columns[i]} `, el("b", {}, cells[i]))),
      ),
    );
  }

  function errors(data, go) {
    if (!data.errors.length) return [];
    const seen = new Set();
    const first = data.errors.filter(({ box }) => !seen.has(box) && seen.add(box));
    const items = first
      .slice(0, WORST)
      .map((error) => el("li", {}, Details.boxLink(data, error.box, go), " ", added(error)));
    return section("Nodes that add most error", el("ol", { class: "worst" }, ...items));
  }

  function added({ added: error, effect, non_finite: count }) {
    const text = count ? `${count.toLocaleString("en")} not finite` : `adds ${effect || error}`;
    return el("span", { class: count ? "number bad" : "number" }, text);
  }

  /** How much runs in half: in total, and by operator. */
  function coverage({ coverage: found, half }) {
    const totals = [
      ["nodes", found.nodes],
      ["FLOPs", found.flops],
      ["weights", found.weights],
    ];
    const whole = totals
      .filter(([, counts]) => floats(counts))
      .map(([title, counts]) => coverageRow(title, counts));
    if (!whole.length) return [];
    const assumptions = found.assumptions.map((text) => el("p", { class: "note" }, name(text)));
    return section(
      `Coverage, in ${half}`,
      el("div", { class: "coverage whole" }, ...whole),
      byOperator(found.operators),
      ...assumptions,
    );
  }

  const floats = ({ half, mixed, full }) => half + mixed + full;

  function coverageRow(title, counts, note = shareText(counts)) {
    const parts = ["half", "mixed", "full"].filter((shade) => counts[shade]);
    const bar = el("span", { class: "track" }, ...parts.map((shade) => barPart(shade, counts)));
    return el("div", { class: "row" }, name(title), bar, el("span", { class: "number" }, note));
  }

  function barPart(shade, counts) {
    const part = el("i", { class: shade, title: `${counts[shade].toLocaleString("en")} ${shade}` });
    part.style.flexGrow = counts[shade] / floats(counts);
    return part;
  }

  function shareText({ share }) {
    return share === null ? "" : d3.format(".1~%")(Math.floor(share * 1000) / 1000);
  }

  /** The operators with floats, sorted by nodes or by FLOPs; the first few until all are requested. */
  function byOperator(operators) {
    const all = Object.entries(operators).filter(([, row]) => floats(row.nodes));
    const list = el("div", { class: "coverage" });
    const more = el("button", { type: "button", class: "more" }, `all ${all.length} operators`);
    let [count, by] = [OPERATORS, "nodes"];
    const render = () => {
      const rows = d3.sort(
        all.filter(([, row]) => floats(row[by])),
        ([, row]) => -floats(row[by]),
      );
      const shown = rows.slice(0, count);
      list.replaceChildren(
        ...shown.map(([operator, row]) => coverageRow(operator, row[by], amount(by, row[by]))),
      );
      more.hidden = rows.length <= count;
    };
    const choices = ["nodes", "flops"].map((unit) =>
      choice("unit", unit, unit === by, () => (by = unit) && render()),
    );
    more.addEventListener("click", () => {
      count = all.length;
      render();
    });
    render();
    return el("div", {}, el("p", { class: "choices" }, "by operator", ...choices), list, more);
  }

  function choice(group, value, checked, onchange) {
    const input = el("input", { type: "radio", name: group, value, onchange });
    input.checked = checked;
    return el("label", {}, input, value === "flops" ? "FLOPs" : value);
  }

  function amount(by, counts) {
    const all = floats(counts);
    return by === "nodes" ? all.toLocaleString("en") : d3.format(".3~s")(all);
  }

  /** The causes of float32, the largest first; a click highlights their nodes in the graph. */
  function causes({ causes: all }, go, mark) {
    if (!all.length) return [];
    const items = all.map((cause) => causeOf(cause, mark));
    return section("Why float32", ...Dom.firstOf(el("div"), items, CAUSES, `all ${all.length} causes`));
  }

  function causeOf({ weight, origin, reason, suggestion, boxes }, mark) {
    const show = el(
      "button",
      { type: "button", class: "link", onclick: () => mark(boxes) },
      el("b", {}, weight),
    );
    return el(
      "div",
      { class: "cause" },
      el("p", {}, show, " ", name(origin)),
      el("p", { class: "reason" }, name(reason)),
      ...(suggestion ? [el("p", { class: "suggestion" }, name(suggestion))] : []),
    );
  }

  function pictures(data) {
    return [
      ...(data.errors.length ? section("Relative error of each node", Pictures.errors(data)) : []),
      ...(Object.keys(data.histograms).length
        ? section(`Magnitudes against the limits of ${data.half}`, Pictures.magnitudes(data))
        : []),
    ];
  }

  return { sections };
})();
