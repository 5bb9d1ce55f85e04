"use strict";

/* What there is to a train step: its parts, and where the loss scale enters and leaves. */
const Step = (() => {
  const { el } = Dom;
  const PARTS = {
    forward: "forward pass",
    loss: "around the loss, float32",
    enters: "the scale enters",
    backward: "backward pass, multiplied by the scale",
    leaves: "the scale leaves: gradients",
    optimiser: "optimiser, float32",
    scale: "skipping, and the next scale",
  };

  /** The section on the step; `mark` highlights boxes. */
  function section({ step }, mark) {
    const parts = Object.keys(PARTS)
      .map((part) => [part, boxesOf(step, part)])
      .filter(([, boxes]) => boxes.length);
    return [
      Dom.table(step.lines),
      el("ul", { class: "parts" }, ...parts.map(([part, boxes]) => line(part, boxes, mark))),
    ];
  }

  function line(part, boxes, mark) {
    const link = el("button", { type: "button", class: "link", onclick: () => mark(boxes) }, PARTS[part]);
    const dot = el("i", { class: "dot", colour: `part-${part}` });
    return el("li", {}, dot, link, el("span", { class: "number" }, boxes.length.toLocaleString("en")));
  }

  function boxesOf({ parts }, part) {
    return d3.range(parts.length).filter((box) => parts[box] === part);
  }

  /** A function that gives the colour of a box. */
  function colours({ step }) {
    return (index) => (step.parts[index] ? `part-${step.parts[index]}` : null);
  }

  /** What the panel of a box says. */
  function chip({ step }, index) {
    const part = step?.parts[index];
    return part ? [el("p", {}, el("span", { class: `chip part-${part}`, colour: `part-${part}` }, PARTS[part]))] : [];
  }

  return { section, colours, chip };
})();
