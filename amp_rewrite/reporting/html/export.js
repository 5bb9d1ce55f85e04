"use strict";

/* The graph that is shown, as an SVG file: boxes with their titles, wires and frames, in the colours of the page. */
const Export = (() => {
  const { svg } = Dom;
  const FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
  const MARGIN = 40;
  const LONGEST = 26; // characters of a title in a box

  /** The text of the file; `colourOf` gives the colour of a box. */
  function text(scene, colours, colourOf) {
    const { x, y, w, h } = scene.bounds;
    const box = [x - MARGIN, y - MARGIN, w + 2 * MARGIN, h + 2 * MARGIN];
    const root = svg(
      "svg",
      { viewBox: box.join(" "), width: box[2], height: box[3], "font-family": FONT },
      svg("rect", { x: box[0], y: box[1], width: box[2], height: box[3], fill: colours.paper }),
      ...scene.frames.slice(1).map((frame) => framed(frame, colours)),
      ...scene.wires.map((wire) => wired(wire, scene.boxes, colours)),
      ...scene.items.map((item) => boxed(item, colourOf(item), colours)),
    );
    return new XMLSerializer().serializeToString(root);
  }

  function framed(frame, colours) {
    const place = { x: frame.x - 24, y: frame.y - 30, width: frame.w + 48, height: frame.h + 54, rx: 14 };
    return svg(
      "g",
      {},
      svg("rect", { ...place, fill: colours.frame, stroke: colours.wire }),
      svg("text", { x: frame.x - 20, y: frame.y - 40, "font-size": 16, fill: colours.muted }, frame.title),
    );
  }

  function wired({ source, target, points }, boxes, colours) {
    const ends = [boxes[source], boxes[target]];
    const line = points || [
      [ends[0].x, ends[0].y + ends[0].h / 2],
      [ends[1].x, ends[1].y - ends[1].h / 2],
    ];
    const path = d3.line().curve(d3.curveBasis)(line);
    return svg("path", { d: path, fill: "none", stroke: colours.wire, opacity: points ? 1 : 0.4 });
  }

  function boxed(box, fill, colours) {
    const place = { x: box.x - box.w / 2, y: box.y - box.h / 2, width: box.w, height: box.h };
    const round = box.shade === "cast" || box.shade === "border" ? box.h / 2 : 7;
    const title = box.shade === "border" ? box.name : box.operator;
    const ink = d3.lab(fill).l < 55 ? "#ffffff" : "#17202b";
    return svg(
      "g",
      {},
      svg("title", {}, `${box.operator} ${box.name}`),
      svg("rect", { ...place, rx: round, fill, stroke: box.shade === "border" || box.layers ? colours.wire : null }),
      svg("text", { x: box.x, y: box.y + 4, "font-size": 12, "text-anchor": "middle", fill: ink }, Dom.cut(title, LONGEST)),
    );
  }

  /** Offers a text as a file to save. */
  function save(content, name) {
    const url = URL.createObjectURL(new Blob([content], { type: "image/svg+xml" }));
    Dom.el("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  return { text, save };
})();
