"use strict";

/*
 * Computes positions. ONNX graphs are long and thin: a layered layout of thousands of nodes is slow, and its result
 * fits no screen. So a graph is cut, in node order, into blocks where the fewest wires cross; dagre lays out each
 * block; and the blocks are arranged in columns, like newspaper text. Repeated layers give equal blocks, which are
 * laid out once.
 */
const Layout = (() => {
  const BLOCK = { least: 16, most: 40 }; // boxes; 64 take dagre twice as long and look no better
  const SIZES = { cast: [146, 24], border: [180, 26], node: [180, 40], fold: [230, 60] };
  const COLUMNS = 60; // at most
  const GAP = { rank: 26, node: 16, block: 46, column: 70, frame: 150, head: 34 };

  /**
   * Items, which are boxes or stand for folded layers, with x, y (their centres), w and h; the item of each box;
   * blocks and frames as rectangles; the points of wires within blocks.
   */
  function place(network, aspect) {
    const items = folded(network);
    const boxes = items.flatMap((item) => Array(item.to - item.from).fill(item));
    const wires = joined(network.wires, boxes);
    const inside = d3.group(wires, ({ source, target }) =>
      boxes[source].graph === boxes[target].graph ? boxes[source].graph : null,
    );
    const memo = new Map();
    const frames = network.frames.map((frame, index) => {
      const contents = items.filter(({ graph }) => graph === index);
      const start = contents[0]?.at ?? 0;
      const at = (box) => boxes[box].at;
      const ends = inside.get(index)?.map((wire) => ({ wire, source: at(wire.source), target: at(wire.target) }));
      const blocks = cut([start, start + contents.length], ends).map((block) => laidOut(block, items, memo));
      return { ...frame, blocks, ...newspaper(blocks, aspect, GAP.block, GAP.column) };
    });
    newspaper(frames, aspect, GAP.frame, GAP.frame);
    for (const frame of frames) settle(frame, items);
    const blocks = frames.flatMap((frame) => frame.blocks);
    return { items, boxes, wires, frames, blocks, bounds: bounds(frames) };
  }

  /** The items in order: layers in a row are one, or one each if their sequence is open; an open layer is its boxes. */
  function folded({ boxes, layers, open }) {
    const items = [];
    const add = (item) => {
      const [w, h] = SIZES[item.shade] || SIZES.node;
      items.push({ ...item, at: items.length, x: 0, y: 0, w, h });
    };
    let at = 0;
    const addBoxes = (end) => {
      for (; at < end; at++) add({ ...boxes[at], from: at, to: at + 1 });
    };
    for (const starts of layers) {
      addBoxes(starts[0]);
      for (const [from, to] of d3.pairs(starts)) {
        const last = items.at(-1);
        if (open.has(from)) addBoxes(to);
        else if (last?.layers === starts && !open.has(starts)) last.to = to;
        else add({ shade: "fold", graph: boxes[from].graph, kinds: [], bodies: [], layers: starts, from, to });
        at = to;
      }
    }
    addBoxes(boxes.length);
    for (const item of items) if (item.layers) label(item, boxes);
    return items;
  }

  /** Sets the texts of folded layers: their number and size, and their scopes or operators. */
  function label(item, boxes) {
    const starts = item.layers.filter((start) => start >= item.from && start <= item.to);
    const count = starts.length - 1;
    const isNode = ({ shade }) => !(shade in SIZES);
    const inside = d3.pairs(starts).map(([from, to]) => boxes.slice(from, to));
    const size = inside[0].filter(isNode).length;
    const place = `layer ${item.layers.indexOf(item.from) + 1} of ${item.layers.length - 1}`;
    const [first, last] = [inside[0], inside.at(-1)].map(scope);
    const operators = [...new Set(inside[0].filter(isNode).map(({ operator }) => operator))].join(", ");
    item.shades = inside.flat().map(({ shade }) => shade);
    item.operator = count === 1 ? place : size === 1 ? `${count} × ${operators}` : `${count} layers of ${size} nodes`;
    item.name = first === last ? first || operators : `${first} to ${last}`;
  }

  /** The wires between items, by the first boxes of these. */
  function joined(all, boxes) {
    const wires = new Map();
    for (const [source, target] of all.map((ends) => ends.map((end) => boxes[end].from)))
      if (source !== target) wires.set(source * boxes.length + target, { source, target, points: null });
    return [...wires.values()];
  }

  /** Blocks of about equal numbers of items, cut where the fewest wires cross. */
  function cut([start, end], wires = []) {
    const size = Math.min(BLOCK.most, Math.max(BLOCK.least, Math.ceil((end - start) / 4)));
    const crossing = new Int32Array(end - start + 2);
    for (const { source, target } of wires) {
      crossing[Math.min(source, target) - start + 1]++;
      crossing[Math.max(source, target) - start + 1]--;
    }
    for (let i = 1; i < crossing.length; i++) crossing[i] += crossing[i - 1];
    if (start === end) return [];
    const cuts = [start];
    while (end - cuts.at(-1) > 1.5 * size)
      cuts.push(bestCut(cuts.at(-1), size, (at) => crossing[at - start]));
    const blocks = cuts.map((from, i) => ({ from, to: cuts[i + 1] ?? end, wires: [] }));
    const blockOf = (box) => blocks[d3.bisectRight(cuts, box) - 1];
    for (const wire of wires) {
      if (blockOf(wire.source) === blockOf(wire.target)) blockOf(wire.source).wires.push(wire);
    }
    return blocks;
  }

  /** The position, about `size` boxes after `from`, that the fewest wires cross. */
  function bestCut(from, size, crossing) {
    const places = d3.range(from + Math.ceil(size / 2), from + Math.ceil(1.5 * size));
    return d3.least(
      places,
      (a, b) => crossing(a) - crossing(b) || Math.abs(a - from - size) - Math.abs(b - from - size),
    );
  }

  function laidOut(block, items, memo) {
    const shape = {
      sizes: items.slice(block.from, block.to).map((item) => [item.w, item.h]),
      edges: block.wires.map((wire) => [wire.source - block.from, wire.target - block.from]),
    };
    const key = JSON.stringify(shape);
    if (!memo.has(key)) memo.set(key, layered(shape));
    return { ...block, ...memo.get(key), title: scope(items.slice(block.from, block.to)) };
  }

  function layered({ sizes, edges }) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ ranksep: GAP.rank, nodesep: GAP.node });
    graph.setDefaultEdgeLabel(() => ({}));
    sizes.forEach(([width, height], i) => graph.setNode(String(i), { width, height }));
    for (const [source, target] of edges) graph.setEdge(String(source), String(target));
    dagre.layout(graph);
    const { width, height } = graph.graph();
    return {
      w: width,
      h: height,
      spots: sizes.map((_, i) => graph.node(String(i))),
      paths: edges.map(([source, target]) => graph.edge(String(source), String(target)).points),
    };
  }

  /** The common prefix of most node names of a block, such as `/layers.3/attn`. */
  function scope(boxes) {
    const names = boxes
      .filter((box) => !(box.shade in SIZES))
      .map((box) => box.name)
      .filter((name) => /[/.]/.test(name));
    if (!names.length || names.length < boxes.length / 2) return "";
    let prefix = "";
    for (;;) {
      const next = d3.rollup(
        names,
        (same) => same.length,
        (name) => step(name, prefix),
      );
      const [best, count] = d3.greatest(next, ([, n]) => n);
      if (best === null || count < 0.7 * names.length) return prefix.replace(/[/.]$/, "");
      prefix = best;
    }
  }

  /** A prefix of a name that is one part longer than the given one; null where there is none. */
  function step(name, prefix) {
    if (!name.startsWith(prefix)) return null;
    const end = name.slice(prefix.length + 1).search(/[/.]/);
    return end < 0 ? null : name.slice(0, prefix.length + end + 2);
  }

  /** Arranges items in columns whose height makes the whole fit the aspect ratio best. */
  function newspaper(items, aspect, gap, columnGap) {
    const whole = d3.sum(items, (item) => item.h + gap);
    const tallest = d3.max(items, (item) => item.h) || 1;
    const heights = d3.range(1, COLUMNS).map((columns) => Math.max(tallest, whole / columns));
    const sizeOf = (height) => setColumns(items, height, gap, columnGap);
    const side = ({ w, h }) => Math.max(w / aspect, h);
    return sizeOf(d3.least(heights, (height) => side(sizeOf(height))));
  }

  /** Sets x and y (the upper left corner) of each item: down a column, then on to the next one. */
  function setColumns(items, height, gap, columnGap) {
    let [x, y, w, h] = [0, 0, 0, 0];
    for (const item of items) {
      if (y > 0 && y + item.h > height) [x, y, w] = [x + w + columnGap, 0, 0];
      [item.x, item.y] = [x, y];
      y += item.h + gap;
      w = Math.max(w, item.w);
      h = Math.max(h, item.y + item.h);
    }
    return { w: x + w, h };
  }

  /** Converts positions in blocks to positions in the picture. */
  function settle(frame, items) {
    for (const block of frame.blocks) {
      block.x += frame.x;
      block.y += frame.y;
      block.spots.forEach((spot, i) => {
        const item = items[block.from + i];
        [item.x, item.y] = [block.x + spot.x, block.y + spot.y];
      });
      block.wires.forEach(({ wire }, i) => {
        wire.points = block.paths[i].map((point) => [block.x + point.x, block.y + point.y]);
      });
    }
  }

  function bounds(frames) {
    const right = d3.max(frames, (frame) => frame.x + frame.w) || 1;
    const bottom = d3.max(frames, (frame) => frame.y + frame.h) || 1;
    return { x: -GAP.head, y: -2 * GAP.head, w: right + 2 * GAP.head, h: bottom + 3 * GAP.head };
  }

  return { place };
})();
