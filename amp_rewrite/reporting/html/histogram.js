"use strict";

/* A small histogram of the numbers of a stored value. */
const Histogram = (() => {
  const { svg } = Dom;
  const [BAR, HEIGHT] = [5, 26];

  /** A bar for each power of two that stored numbers begin with; those that half loses have another colour. */
  function of(value, half) {
    if (!value.binades.length) return null;
    const [least, most] = half === "bfloat16" ? [-133, 127] : [-24, 15];
    const highest = Math.max(...value.binades.map(([, count]) => count));
    const [first, last] = [value.binades[0][0], value.binades.at(-1)[0]];
    const bars = value.binades.map(([power, count]) => {
      const height = Math.max(1, (HEIGHT * count) / highest);
      const kind = power < least || power > most ? "lost" : "kept";
      const place = { x: (power - first) * BAR, y: HEIGHT - height, width: BAR - 1, height };
      return svg("rect", { class: kind, ...place }, svg("title", {}, `2^${power}: ${count}`));
    });
    const width = (last - first + 1) * BAR;
    const told = `numbers by power of two, 2^${first} to 2^${last}`;
    const frame = { class: "histogram", role: "img", "aria-label": told, width, height: HEIGHT };
    return svg("svg", { ...frame, viewBox: `0 0 ${width} ${HEIGHT}` }, ...bars);
  }

  return { of };
})();
