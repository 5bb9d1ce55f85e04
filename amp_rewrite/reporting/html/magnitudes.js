"use strict";

/* Magnitudes against the limits of half: of the numbers of a stored value, and of the observed outputs of a box. */
const Magnitudes = (() => {
  const { svg } = Dom;
  const [BAR, HEIGHT] = [5, 26];

  /** A bar for each power of two that stored numbers begin with; those that half loses have another colour. */
  function histogram(value, [least, most]) {
    if (!value.binades.length) return null;
    const highest = Math.max(...value.binades.map(([, count]) => count));
    const [first, last] = [value.binades[0][0], value.binades.at(-1)[0]];
    const bars = value.binades.map(([power, count]) => {
      const height = Math.max(1, (HEIGHT * count) / highest);
      const kind = power < least || power >= most ? "lost" : "kept";
      const place = { x: (power - first) * BAR, y: HEIGHT - height, width: BAR - 1, height };
      return svg("rect", { class: kind, ...place }, svg("title", {}, `2^${power}: ${count}`));
    });
    const width = (last - first + 1) * BAR;
    const told = `numbers by power of two, 2^${first} to 2^${last}`;
    const frame = { class: "histogram", role: "img", "aria-label": told, width, height: HEIGHT };
    return svg("svg", { ...frame, viewBox: `0 0 ${width} ${HEIGHT}` }, ...bars);
  }

  /** A function that gives the colour of a box as stored: darker towards the largest, or lost. */
  function colours({ magnitudes, limits: [least, most] }) {
    const shades = d3.scaleQuantize([least, most], d3.range(5).map((i) => `magnitude-${i}`));
    return (index) => {
      if (!magnitudes[index]) return null;
      const power = Math.log2(magnitudes[index][1]); // of 0, which half has, -Infinity
      if (power > most) return "magnitude-infinite";
      return power < least && Number.isFinite(power) ? "magnitude-zero" : shades(power);
    };
  }

  /** A function that gives the text of a box, before and after, and their places on a scale around the limits. */
  function marks({ magnitudes, limits }) {
    const place = d3.scaleLinear([limits[0] - 8, limits[1] + 8], [0, 1]).clamp(true);
    return (index) => {
      if (!magnitudes[index]) return null;
      const places = magnitudes[index].map((size) => place(Math.log2(size)));
      const texts = new Set(magnitudes[index].map(d3.format(".3~g")));
      return { text: [...texts].join(" → "), places, ends: limits.map((power) => place(power)) };
    };
  }

  return { histogram, colours, marks };
})();
