"use strict";

/* What onnxruntime executes of the result: its graph beside the planned one, and the section about it. */
const Execution = (() => {
  const { el } = Dom;
  const MARKED = {
    "in half": (box) => box.shade === "half",
    "in float32": (box) => box.shade === "full",
    Casts: (box) => box.shade === "cast",
    "inserted Casts": (box) => box.operator === "Cast" && isInserted(box),
    copies: (box) => box.operator.startsWith("Memcpy"),
    "nodes on the CPU": (box) => box.executed?.why_cpu,
  };

  function isInserted({ executed }) {
    return executed && !executed.origins.length;
  }

  /** The executed graph as content of the page, each graph with the other as `other`; null where there is none. */
  function graphOf(data) {
    const graph = data.placement?.executed;
    if (!graph) return null;
    for (const box of data.boxes) box.executedAs = null;
    graph.boxes.forEach((box, index) => {
      box.kinds = stripes(box);
      for (const origin of box.executed?.origins || [])
        if (origin.box !== null) data.boxes[origin.box].executedAs ??= index;
    });
    const executed = { ...data, ...graph, reasons: [], errors: [], magnitudes: [], other: data };
    data.other = executed;
    return executed;
  }

  function stripes(box) {
    if (!box.executed) return [];
    const found = { fused: box.executed.is_fused, inserted: isInserted(box), cpu: box.executed.why_cpu };
    return Object.keys(found).filter((kind) => found[kind]);
  }

  /** The section: counts against those of the original, what is fused, what is on the CPU and why. */
  function section({ placement }, mark) {
    if (!placement) return [];
    const refused = placement.refused
      ? [el("p", { class: "refused" }, `The result does not load: ${placement.refused}`)]
      : [counts(placement, mark), groups(placement, mark)];
    return [
      el(
        "section",
        { id: "placement" },
        el("h2", {}, "Executed by onnxruntime"),
        el("p", { class: "note" }, where(placement.runtime)),
        ...original(placement),
        ...refused,
      ),
    ];
  }

  function where({ onnxruntime, provider, stubs }) {
    const by = `onnxruntime ${onnxruntime}, ${provider.toUpperCase()} provider, after its own optimisation`;
    return stubs ? `${by}; without a GPU, against stub libraries` : by;
  }

  function original({ original_refused: why }) {
    return why ? [el("p", { class: "refused" }, `The original does not load: ${why}`)] : [];
  }

  function counts({ counts: rows, executed }, mark) {
    const isCompared = rows.some((row) => row.before !== null);
    const head = isCompared ? ["", "original", "result"] : ["", "result"];
    const lines = rows.map(({ what, before, after, is_worse: isWorse }) =>
      el(
        "tr",
        {},
        el("th", {}, after && MARKED[what] ? markLink(what, executed, MARKED[what], mark) : what),
        ...(isCompared ? [el("td", {}, before.toLocaleString("en"))] : []),
        el("td", { class: isWorse ? "bad" : "number" }, after.toLocaleString("en")),
      ),
    );
    return el("table", { class: "counts" }, el("tr", {}, ...head.map((title) => el("th", {}, title))), ...lines);
  }

  /** A text whose click highlights boxes of the executed graph. */
  function markLink(text, { boxes }, isMarked, mark) {
    const found = d3.range(boxes.length).filter((index) => isMarked(boxes[index]));
    return found.length
      ? el("button", { type: "button", class: "link", onclick: () => mark(found) }, text)
      : text;
  }

  function groups({ fused, on_cpu: onCpu, executed }, mark) {
    const fusions = Object.entries(fused).map(([operator, count]) =>
      line(`${count.toLocaleString("en")} ${operator}`, " fused", (box) => box.operator === operator),
    );
    const cpu = onCpu.map(({ operator, precision, why, count }) =>
      line(
        `${count.toLocaleString("en")} ${operator}`,
        ` (${precision}) on the CPU: ${why}`,
        (box) => box.operator === operator && box.executed?.why_cpu === why,
      ),
    );
    function line(text, note, isMarked) {
      return el("li", {}, markLink(text, executed, isMarked, mark), el("span", { class: "type" }, note));
    }
    return el("ul", { class: "groups" }, ...fusions, ...cpu);
  }

  return { graphOf, section };
})();
