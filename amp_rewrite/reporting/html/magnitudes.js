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

  /** The place on a logarithmic scale from 0 to 1 that extends 8 powers of two beyond the limits. */
  function place(size, [least, most]) {
    return d3.scaleLinear([least - 8, most + 8], [0, 1]).clamp(true)(size ? Math.log2(size) : least - 8);
  }

  /** A function that gives the colour of a box as stored: darker towards the largest, or lost. */
  function colours({ magnitudes, limits: [least, most] }) {
    const shades = d3.scaleQuantize([least, most], d3.range(5).map((i) => `magnitude-${i}`));
    return (index) => {
      if (!magnitudes[index]) return null;
      const [, after] = magnitudes[index];
      if (after && Math.log2(after) < least) return "magnitude-zero";
      return Math.log2(after) > most ? "magnitude-infinite" : shades(Math.log2(after));
    };
  }

  /** A function that gives the text of a box, before and after, and their places beside those of the limits. */
  function marks({ magnitudes, limits }) {
    return (index) => {
      if (!magnitudes[index]) return null;
      const [before, after] = magnitudes[index].map(d3.format(".3~g"));
      const places = magnitudes[index].map((size) => place(size, limits));
      const ends = limits.map((power) => place(2 ** power, limits));
      return { text: before === after ? before : `${before} → ${after}`, places, ends };
    };
  }

  return { histogram, colours, marks };
})();
