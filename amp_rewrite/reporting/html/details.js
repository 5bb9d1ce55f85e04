"use strict";

/* The panel beside the graph: what is known of one box. */
const Details = (() => {
  const { el, name } = Dom;
  const SHOWN = 8; // links of a chain, before the rest is asked for
  const SHADES = {
    half: (half) => half,
    mixed: (half) => `float32 and ${half}`,
    full: () => "float32",
    other: () => "no float32",
    cast: () => "Cast, added",
    border: () => "border of the graph",
  };

  /** Fills the panel; `data` is the page's, `go` selects another box. */
  function show(panel, data, index, go) {
    const box = data.boxes[index];
    const sections = [decided, casts, compared, reads, makes, bodies, placed];
    panel.replaceChildren(
      el("button", { class: "close", type: "button", "aria-label": "Close", onclick: () => go(null) }, "×"),
      el("h2", {}, box.operator),
      el("p", { class: "title" }, name(box.name)),
      el("p", {}, el("span", { class: `chip ${box.shade}` }, SHADES[box.shade](data.half))),
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

  /** The chain of causes of a unit, down to where it all began. */
  function why(data, unit, isOneOfSeveral, go) {
    const chain = chainOf(data, unit);
    const list = el("ol", { class: "chain" });
    const fill = (links) => list.replaceChildren(...links.map((link, i) => step(data, link, i, go)));
    fill(chain.slice(0, SHOWN));
    const rest = chain.length - SHOWN;
    const more = el("button", { type: "button", class: "more" }, `${rest} more, to where it began`);
    more.addEventListener("click", () => {
      fill(chain);
      more.remove();
    });
    const title = isOneOfSeveral ? el("p", { class: "unit" }, name(data.reasons[unit].unit)) : null;
    return el("div", {}, ...[title, list, rest > 0 ? more : null].filter(Boolean));
  }

  /** A unit, its cause, the cause of that one: a saved plan may have been edited to a circle. */
  function chainOf(data, unit) {
    const chain = new Set();
    for (let at = unit; at !== null && !chain.has(at); at = data.reasons[at]?.cause ?? null) chain.add(at);
    return [...chain];
  }

  function step(data, unit, depth, go) {
    const { box, unit: unitName, colour, rule, kind, reason } = data.reasons[unit];
    const link = !depth ? null : box === null ? name(unitName) : boxLink(data, box, go);
    const facts = el("span", { class: "rule" }, `${colour === "half" ? data.half : "float32"} by rule ${rule} · kind ${kind}`);
    return el("li", { class: colour }, ...[link, facts, el("span", { class: "reason" }, name(reason))].filter(Boolean));
  }

  function boxLink(data, index, go) {
    const { operator, name: called } = data.boxes[index];
    return el("button", { type: "button", class: "link", onclick: () => go(index) }, operator, " ", name(called));
  }

  /** Between which boxes a Cast stands. */
  function casts(data, index, go) {
    if (data.boxes[index].shade !== "cast") return [];
    const [from, to] = around(data, index);
    const why = "Its value is made in one precision and read in the other.";
    return [
      el("h3", {}, "Why"),
      el("p", {}, why),
      ...links("Made by", from, data, go),
      ...links("Read there by", to, data, go),
    ];
  }

  function around(data, index) {
    const from = data.wires.filter(([, reader]) => reader === index).map(([maker]) => maker);
    return [from, data.wires.filter(([maker]) => maker === index).map(([, reader]) => reader)];
  }

  function links(title, boxes, data, go) {
    if (!boxes.length) return [];
    const items = boxes.slice(0, 40).map((box) => el("li", {}, boxLink(data, box, go)));
    if (boxes.length > 40) items.push(el("li", {}, `and ${boxes.length - 40} more`));
    return [el("h3", {}, title), el("ul", { class: "links" }, ...items)];
  }

  function compared(data, index) {
    const found = data.misfits.filter((misfit) => misfit.box === index);
    if (!found.length) return [];
    return [el("h3", {}, "Compared with the original"), ...found.map((misfit) => measured(misfit, found.length > 1))];
  }

  function measured(misfit, isOneOfSeveral) {
    const rows = [["relative L2 error", misfit.error], ["added here", misfit.added]];
    if (misfit.lost) rows.push(["made infinite or NaN", misfit.lost.toLocaleString("en")]);
    if (misfit.reads) rows.push(["reads", misfit.reads]);
    const title = isOneOfSeveral ? el("p", { class: "unit" }, name(misfit.value)) : null;
    return el("div", {}, ...[title, table(rows)].filter(Boolean));
  }

  function table(rows) {
    const lines = rows.flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]);
    return el("dl", { class: "facts" }, ...lines);
  }

  function reads(data, index) {
    return ports("Reads", data, data.boxes[index].reads);
  }

  function makes(data, index) {
    return ports("Makes", data, data.boxes[index].makes);
  }

  function ports(title, data, all) {
    if (!all.length) return [];
    return [el("h3", {}, title), el("ul", { class: "ports" }, ...all.map((port) => portLine(data, port)))];
  }

  function portLine(data, port) {
    const after = port.half ? el("span", { class: "chip half" }, data.half) : null;
    const stored = port.stored ? el("span", { class: "stored" }, "stored") : null;
    return el("li", {}, ...[name(port.name), el("span", { class: "type" }, port.type), stored, after].filter(Boolean));
  }

  function bodies(data, index, go) {
    const first = (body) => data.boxes.findIndex((box) => box.graph === body);
    return data.boxes[index].bodies.flatMap((body, i) => {
      const heading = i ? [] : [el("h3", {}, "Bodies")];
      const open = () => go(first(body));
      const link = el("button", { type: "button", class: "link", onclick: open }, name(data.frames[body].title));
      return [...heading, el("p", {}, first(body) < 0 ? name(data.frames[body].title) : link)];
    });
  }

  /** In whose body a box stands. */
  function placed(data, index, go) {
    const frame = data.frames[data.boxes[index].graph];
    if (frame.owner === null) return [];
    return [el("h3", {}, "Inside"), el("p", {}, boxLink(data, frame.owner, go), " ", name(frame.title))];
  }

  return { show, chainOf, boxLink };
})();
