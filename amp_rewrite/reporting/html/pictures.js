"use strict";

/* Draws pictures, which are lists of shapes, as SVG. */
const Pictures = (() => {
  const { svg } = Dom;
  const DRAW = {
    rect: ({ x, y, w, h, tone }) =>
      svg("rect", { x, y, width: w, height: h, class: `fill ${tone}`, rx: 1.5 }),
    line: ({ x1, y1, x2, y2, tone, dash }) =>
      svg("line", { x1, y1, x2, y2, class: `stroke ${tone}`, "stroke-dasharray": dash ? "4 3" : null }),
    dot: ({ x, y, r, tone, title }) =>
      svg("circle", { cx: x, cy: y, r, class: `fill ${tone}` }, ...hint(title)),
    text: ({ x, y, text, anchor, size, bold, tone }) =>
      svg(
        "text",
        {
          x,
          y,
          "text-anchor": anchor,
          "font-size": size,
          "font-weight": bold ? 600 : null,
          class: `fill ${tone}`,
        },
        text,
      ),
  };

  function hint(title) {
    return title ? [svg("title", {}, title)] : [];
  }

  function draw(picture) {
    const { width, height, title, shapes } = picture;
    const drawn = shapes.map((shape) => DRAW[shape.shape](shape));
    return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, ...drawn);
  }

  return { draw };
})();
