"use strict";

/* Builds elements. All text enters the page as text nodes: nothing here, or in any other file, parses HTML. */
const Dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  /** An element with attributes, listeners (`onclick`) and children; texts and numbers become text nodes. */
  function el(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  /** The same for SVG. */
  function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(
      ...children
        .flat()
        .filter((child) => child !== null)
        .map(asNode),
    );
    return element;
  }

  function asNode(child) {
    return child instanceof Node ? child : document.createTextNode(String(child));
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

  return { el, svg, name, cut };
})();
