"use strict";

/* Builds elements. All text enters the page as text nodes: nothing here, or in any other file, parses HTML. */
const Dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  /**
   * An element with attributes, a `colour` of the style sheet, listeners (`onclick`) and children: nodes, texts, and
   * null for none.
   */
  function el(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  /** The same for SVG. */
  function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "colour") element.style.background = `var(--${value})`;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child !== null));
    return element;
  }

  /** Terms and what there is to them. */
  function table(rows) {
    const lines = rows.flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]);
    return el("dl", { class: "facts" }, ...lines);
  }

  /** A list filled with its first items, and a button for the others if there are any. */
  function firstOf(list, items, most, text) {
    const add = () => list.append(...items.slice(most)) || more.remove();
    const more = el("button", { type: "button", class: "more", onclick: add }, text);
    list.append(...items.slice(0, most));
    return items.length > most ? [list, more] : [list];
  }

  /** A name, isolated for bidirectional text; it may wrap between its parts. */
  function name(text) {
    const parts = (text || "(unnamed)").split(/(?<=[/.:_])|(?<=[a-z])(?=[A-Z])/);
    return el("bdi", { class: "name" }, ...parts.flatMap((part, i) => (i ? [el("wbr"), part] : [part])));
  }

  /** A text of at most so many characters, cut in the middle: the end of a name tells more than its beginning. */
  function cut(text, most) {
    const head = Math.floor((most - 1) / 3);
    return text.length <= most ? text : `${text.slice(0, head)}…${text.slice(head + 1 - most)}`;
  }

  return { el, svg, fill, table, firstOf, name, cut };
})();
