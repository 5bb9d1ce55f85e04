"use strict";

/* Finds boxes by operator, by name, and by their inputs and outputs. */
const Search = (() => {
  const { el, name } = Dom;
  const [SHOWN, LONGEST] = [60, 64]; // results, and characters of a name

  /** Connects the field and the list of results; `onfound` gets the set of matches or null, `go` the choice. */
  function open(field, list, data, onfound, go) {
    const texts = data.boxes.map(searchable);
    let found = [];
    let current = 0;

    function search() {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      found = words.length ? matches(texts, words) : [];
      current = 0;
      onfound(words.length ? new Set(found) : null);
      render(words.length > 0);
    }

    function render(asked) {
      list.replaceChildren(...found.slice(0, SHOWN).map(item));
      const more = found.length - SHOWN;
      if (asked && !found.length) list.append(el("li", { class: "note" }, "No match."));
      if (more > 0) list.append(el("li", { class: "note" }, `and ${more.toLocaleString("en")} more`));
      list.hidden = !asked;
      field.setAttribute("aria-expanded", String(asked));
      mark();
    }

    function item(index, position) {
      const box = data.boxes[index];
      const chosen = () => choose(position);
      const chip = el("span", { class: `dot ${box.shade}` });
      const item = { role: "option", title: box.name, onmousedown: chosen };
      return el("li", item, chip, el("b", {}, box.operator), " ", name(Dom.cut(box.name, LONGEST)));
    }

    function mark() {
      [...list.children].forEach((child, i) => child.setAttribute("aria-selected", String(i === current)));
      list.children[current]?.scrollIntoView({ block: "nearest" });
    }

    function choose(position) {
      if (found[position] === undefined) return;
      current = position;
      list.hidden = true;
      onfound(null);
      go(found[position]);
    }

    function onkey(event) {
      const moves = { ArrowDown: 1, ArrowUp: -1 };
      if (event.key in moves) {
        current = Math.max(0, Math.min(Math.min(found.length, SHOWN) - 1, current + moves[event.key]));
        mark();
      } else if (event.key === "Enter") choose(current);
      else if (event.key === "Escape") clear();
      else return;
      event.preventDefault();
    }

    function clear() {
      field.value = "";
      search();
    }

    field.addEventListener("input", search);
    field.addEventListener("keydown", onkey);
    field.addEventListener("focus", () => field.value && search());
    field.addEventListener("blur", () => (list.hidden = true));
    return { clear };
  }

  function searchable(box) {
    const values = [...box.inputs, ...box.outputs].map((value) => value.name);
    return { called: `${box.operator} ${box.name}`.toLowerCase(), values: values.join(" ").toLowerCase() };
  }

  /** Boxes that match by name come first, then those that match by an input or output. */
  function matches(texts, words) {
    const all = (text) => words.every((word) => text.includes(word));
    const called = d3.range(texts.length).filter((i) => all(texts[i].called));
    const touching = d3.range(texts.length).filter((i) => !all(texts[i].called) && all(texts[i].values));
    return [...called, ...touching];
  }

  return { open };
})();
