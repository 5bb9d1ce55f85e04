"use strict";

/* The two pictures of the column: the errors along the graph, and magnitudes against the limits of half. */
const Pictures = (() => {
  const { svg } = Dom;
  const [WIDTH, HEIGHT, LEFT, RIGHT] = [460, 180, 46, 452];
  const COLUMNS = 240; // dots side by side; more would overlap
  const [PANEL, PANEL_ROW] = [96, 156]; // the height of a histogram, without and with its title and labels
  const VISIBLE = 1.5; // the least height of a bar: a single number that overflows must be visible

  function draw(title, height, shapes) {
    return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": title }, ...shapes);
  }

  function label(x, y, text, anchor = "start", look = { class: "fill muted", "font-size": 11 }) {
    return svg("text", { x, y, "text-anchor": anchor, ...look }, text);
  }

  /** A dot for every node, in the order of the graph; where nodes are dense, the worst of each column. */
  function errors({ errors: all, boxes }) {
    const last = d3.max(boxes, (box, index) => (box.graph ? 0 : index)) || 1;
    const [x, y] = [d3.scaleLinear([0, last], [LEFT, RIGHT]), d3.scaleLog([1e-8, 10], [HEIGHT, 0]).clamp(true)];
    const worst = d3.rollup(
      all,
      (some) => d3.greatest(some, ({ size }) => size),
      ({ box }) => Math.floor((COLUMNS * box) / last),
    );
    const scale = d3.range(-8, 2, 2).flatMap((power) => {
      const at = y(10 ** power);
      const line = svg("line", { x1: LEFT, y1: at, x2: RIGHT, y2: at, class: "stroke light" });
      return [line, label(LEFT - 8, at + 4, power > -8 ? `1e${power}` : "≤1e-8", "end")];
    });
    const dots = [...worst.values()].map((error) => {
      const [lost, { operator, name }] = [error.lost, boxes[error.box]];
      const title = svg("title", {}, `${operator} ${name}: ${lost ? "not finite" : error.error}`);
      const at = lost ? 0 : y(Math.max(error.size, 1e-8));
      return svg("circle", { cx: x(error.box), cy: at, r: lost ? 3.5 : 2.2, class: `fill ${lost ? "bad" : "half"}` }, title);
    });
    const caption = label(RIGHT, HEIGHT + 18, "along the graph", "end");
    return draw("Relative error of each node", HEIGHT + 24, [...scale, caption, ...dots]);
  }

  /** Histograms by power of two. */
  function magnitudes({ histograms, limits: [smallest, largest], normal, half }) {
    const step = largest < 64 ? 8 : 32;
    const [first, last] = [Math.floor(smallest / step) * step - step, Math.ceil(largest) + step];
    const x = d3.scaleLinear([first, last + 1], [0, RIGHT]).clamp(true);
    const marks = [
      [smallest, "0 below", "end"],
      [normal, "subnormal below", "start"],
      [largest, "infinite above", "middle"],
    ];

    function bars(counts, bottom) {
      const heights = d3.rollup(
        counts,
        (some) => d3.sum(some, ([, count]) => count),
        ([power]) => Math.min(Math.max(power, first), last),
      );
      const [most, wide] = [d3.max(heights.values()), x(first + 1)];
      return Array.from(heights, ([power, count]) => {
        const height = Math.max((count / most) * (PANEL - 4), VISIBLE);
        const look = power >= smallest && power < largest ? "fill half" : "fill bad";
        return svg("rect", { x: x(power) + wide / 16, y: bottom - height, width: (wide * 7) / 8, height, class: look });
      });
    }

    function panel([title, counts], row) {
      const top = row * PANEL_ROW + 36;
      const bottom = top + PANEL;
      const outside = [
        [0, x(smallest)],
        [x(largest), RIGHT],
      ].map(([from, to]) => svg("rect", { x: from, y: top, width: to - from, height: PANEL, class: "fill light" }));
      const ends = marks.flatMap(([power, text, anchor]) => [
        svg("line", { x1: x(power), y1: top, x2: x(power), y2: bottom, class: "stroke muted", "stroke-dasharray": "4 3" }),
        label(x(power), top - 6, text, anchor),
      ]);
      const powers = d3.range(first, last, step);
      const scale = powers.map((power) => label(x(power), bottom + 16, `2^${power}`, power > first ? "middle" : "start"));
      const heading = label(0, top - 22, title, "start", { class: "fill ink", "font-weight": 600 });
      return [...outside, heading, ...bars(counts, bottom), ...ends, ...scale];
    }

    const all = Object.entries(histograms);
    return draw(`Magnitudes against the limits of ${half}`, PANEL_ROW * all.length, all.flatMap(panel));
  }

  return { errors, magnitudes };
})();
