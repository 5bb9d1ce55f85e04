"use strict";

/* The panel with the details of one box. */
const Details = (() => {
  const { el, name, table } = Dom;
  const LONGEST = 64; // characters of a name in a link
  const SHOWN = 8; // links of a chain that are shown at first
  const SHADES = {
    half: (half) => half,
    mixed: (half) => `float32 and ${half}`,
    full: () => "float32",
    other: () => "no float32",
    cast: () => "Cast, added",
    border: () => "input or output of the graph",
  };

  /** Fills the panel; `data` is the content of the page, `go` selects another box. */
  function show(panel, data, index, go) {
    const box = data.boxes[index];
    const sections = [decided, casts, arithmetic, attributes, compared, observed, values, bodies, placed];
    panel.replaceChildren(
      el("button", { class: "close", type: "button", "aria-label": "Close", onclick: () => go(null) }, "×"),
      el("h2", {}, box.operator),
      el("p", { class: "title" }, name(box.name)),
      el("p", {}, el("span", { class: `chip ${box.shade}` }, SHADES[box.shade](data.half))),
      ...data.stepChip(index),
      ...sections.flatMap((section) => section(data, index, go)),
    );
    panel.hidden = false;
    panel.scrollTop = 0;
  }

  function decided(data, index, go) {
    const { units } = data.boxes[index];
    if (!units.length) return [];
    return [el("h3", {}, "Why"), ...units.map((unit) => why(data, unit, units.length > 1, go))];
  }

  /** The chain of causes of a unit. */
  function why(data, unit, isOneOfSeveral, go) {
    const chain = chainOf(data, unit);
    const steps = chain.map((link, i) => step(data, link, i, go));
    const rest = `${chain.length - SHOWN} more, down to the first cause`;
    const title = isOneOfSeveral ? el("p", { class: "unit" }, name(data.reasons[unit].unit)) : null;
    return el("div", {}, title, ...Dom.firstOf(el("ol", { class: "chain" }), steps, SHOWN, rest));
  }

  /** A unit, its cause, the cause of that one, and so on; an edited plan may contain a cycle. */
  function chainOf(data, unit) {
    const chain = new Set();
    for (let at = unit; at !== null && !chain.has(at); at = data.reasons[at]?.cause ?? null) chain.add(at);
    return [...chain];
  }

  /** The shortest way from a box to an output of the model; out of a body it leads to the body's node. */
  function pathOf({ boxes, wires, frames }, index) {
    const consumers = d3.rollup(wires, (all) => all.map(([, target]) => target), ([source]) => source);
    const before = new Map([[index, null]]);
    for (const at of before.keys()) {
      const { graph } = boxes[at];
      const next = consumers.get(at) || (graph ? [frames[graph].owner] : []);
      if (!next.length && boxes[at].operator === "output") {
        const path = [];
        for (let back = at; back !== null; back = before.get(back)) path.unshift(back);
        return path;
      }
      for (const one of next) if (!before.has(one)) before.set(one, at);
    }
    return [];
  }

  function step(data, unit, depth, go) {
    const { box, unit: unitName, colour, rule, kind, reason, range } = data.reasons[unit];
    const link = !depth ? null : box === null ? name(unitName) : boxLink(data, box, go);
    const facts = el(
      "span",
      { class: "rule" },
      `${colour === "half" ? data.half : "float32"} by rule ${rule} · list ${kind}`,
    );
    const why = el("span", { class: "reason" }, name(reason));
    return el("li", { class: colour }, link, facts, why, depth ? null : known(range));
  }

  /** What is known of the values of a half unit. */
  function known(range) {
    return range ? el("span", { class: "reason" }, `${range.knowledge} to stay in range: `, name(range.text)) : null;
  }

  function boxLink(data, index, go) {
    const { operator, name: called } = data.boxes[index];
    const button = { type: "button", class: "link", title: called, onclick: () => go(index) };
    return el("button", button, operator, " ", name(Dom.cut(called, LONGEST)));
  }

  /** The boxes on both sides of a Cast. */
  function casts(data, index, go) {
    if (data.boxes[index].shade !== "cast") return [];
    const [from, to] = around(data, index);
    const why = "Its value is produced in one precision and used in the other.";
    return [
      el("h3", {}, "Why"),
      el("p", {}, why),
      ...links("Producer", from, data, go),
      ...links("Consumers", to, data, go),
    ];
  }

  function around(data, index) {
    const from = data.wires.filter(([, target]) => target === index).map(([source]) => source);
    return [from, data.wires.filter(([source]) => source === index).map(([, target]) => target)];
  }

  function links(title, boxes, data, go) {
    if (!boxes.length) return [];
    const items = boxes.map((box) => el("li", {}, boxLink(data, box, go)));
    return [el("h3", {}, title), ...Dom.firstOf(el("ul", { class: "links" }), items, 40, `${boxes.length - 40} more`)];
  }

  function arithmetic(data, index) {
    const { flops } = data.boxes[index];
    return flops ? [el("h3", {}, "Arithmetic"), table([["FLOPs in one run", flops.toLocaleString("en")]])] : [];
  }

  function attributes(data, index) {
    const { attributes: all } = data.boxes[index];
    return all.length ? [el("h3", {}, "Attributes"), table(all.map(([term, text]) => [name(term), name(text)]))] : [];
  }

  function compared(data, index) {
    const found = data.errors.filter((error) => error.box === index);
    if (!found.length) return [];
    return [
      el("h3", {}, "Compared with the original"),
      ...found.map((error) => measured(error, found.length > 1)),
    ];
  }

  /** The largest observed magnitude of the outputs. */
  function observed(data, index) {
    if (!data.magnitudes[index]) return [];
    const [before, after] = data.magnitudes[index].map(d3.format(",.3~g"));
    const rows = [["in the original", before], ...(before === after ? [] : [["as stored, rescaled", after]])];
    return [el("h3", {}, "Largest magnitude observed"), table(rows)];
  }

  function measured(found, isOneOfSeveral) {
    const rows = [
      ["relative error", found.error],
      ["added here", found.added],
    ];
    if (found.effect) rows.unshift(["error of the outputs", found.effect]);
    if (found.non_finite) rows.push(["infinite or NaN", found.non_finite.toLocaleString("en")]);
    if (found.reads) rows.push(["input range", found.reads]);
    const title = isOneOfSeveral ? el("p", { class: "unit" }, name(found.value)) : null;
    return el("div", {}, title, table(rows));
  }

  function values(data, index) {
    const { inputs, outputs } = data.boxes[index];
    return [...valueList("Inputs", inputs, data), ...valueList("Outputs", outputs, data)];
  }

  function valueList(title, all, data) {
    if (!all.length) return [];
    return [el("h3", {}, title), el("ul", { class: "ports" }, ...all.map((value) => valueLine(data, value)))];
  }

  function valueLine(data, value) {
    const after = value.half ? el("span", { class: "chip half" }, data.half) : null;
    const known = value.range ? `constant, ${value.range}` : "constant";
    const stored = value.stored ? el("span", { class: "stored" }, known) : null;
    const type = el("span", { class: "type" }, value.type);
    return el("li", {}, name(value.name), type, stored, after, Magnitudes.histogram(value, data.limits));
  }

  function bodies(data, index, go) {
    const first = (body) => data.boxes.findIndex((box) => box.graph === body);
    return data.boxes[index].bodies.flatMap((body, i) => {
      const heading = i ? [] : [el("h3", {}, "Bodies")];
      const open = () => go(first(body));
      const link = el(
        "button",
        { type: "button", class: "link", onclick: open },
        name(data.frames[body].title),
      );
      return [...heading, el("p", {}, first(body) < 0 ? name(data.frames[body].title) : link)];
    });
  }

  /** The node whose body contains a box. */
  function placed(data, index, go) {
    const frame = data.frames[data.boxes[index].graph];
    if (frame.owner === null) return [];
    return [el("h3", {}, "Inside"), el("p", {}, boxLink(data, frame.owner, go), " ", name(frame.title))];
  }

  return { show, chainOf, pathOf, boxLink };
})();
