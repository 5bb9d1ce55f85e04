"use strict";

/*
 * Where everything stands. ONNX graphs are long and thin, and a layered layout of thousands of nodes is slow and
 * gives a thread that no screen can show. So a graph is cut, in the order of its nodes, into blocks where the
 * fewest values cross; dagre lays each block out; and the blocks are set like the text of a newspaper, down and
 * then to the right. Repeated layers make equal blocks, which are laid out once.
 */
const Layout = (() => {
  const BLOCK = { least: 16, most: 40 }; // boxes; with 64 dagre takes twice as long, and nothing reads better
  const SIZES = { cast: [128, 24], border: [156, 26], node: [156, 38] };
  const COLUMNS = 60; // at most
  const GAP = { rank: 26, node: 16, block: 46, column: 70, frame: 150, head: 34 };

  /** Boxes with x, y (their centres), w, h; blocks and frames as rectangles; points of the wires in a block. */
  function place(network, aspect) {
    const boxes = network.boxes.map(sized);
    const wires = network.wires.map(([maker, reader]) => ({ maker, reader, points: null }));
    const inside = wiresInside(network.boxes, wires);
    const memo = new Map();
    const frames = network.frames.map((frame, index) => {
      const blocks = cut(range(network.boxes, index), inside[index]).map((block) => laidOut(block, boxes, memo));
      return { ...frame, index, blocks, ...newspaper(blocks, aspect, GAP.block, GAP.column) };
    });
    newspaper(frames, aspect, GAP.frame, GAP.frame);
    for (const frame of frames) settle(frame, boxes);
    const blocks = frames.flatMap((frame) => frame.blocks);
    return { boxes, wires, frames, blocks, bounds: bounds(frames) };
  }

  function sized(box) {
    const [w, h] = SIZES[box.shade] || SIZES.node;
    return { ...box, x: 0, y: 0, w, h };
  }

  function wiresInside(boxes, wires) {
    const inside = new Map();
    for (const wire of wires) {
      const graph = boxes[wire.maker].graph;
      if (graph !== boxes[wire.reader].graph) continue;
      if (!inside.has(graph)) inside.set(graph, []);
      inside.get(graph).push(wire);
    }
    return Object.fromEntries(inside);
  }

  /** The boxes of one graph stand side by side: from the first to one past the last. */
  function range(boxes, graph) {
    const start = boxes.findIndex((box) => box.graph === graph);
    let end = start;
    while (start >= 0 && end < boxes.length && boxes[end].graph === graph) end++;
    return start < 0 ? [0, 0] : [start, end];
  }

  /** Blocks of about equal numbers of boxes, cut where the fewest wires cross. */
  function cut([start, end], wires = []) {
    const size = Math.min(BLOCK.most, Math.max(BLOCK.least, Math.ceil((end - start) / 4)));
    const crossing = new Int32Array(end - start + 2);
    for (const { maker, reader } of wires) {
      crossing[Math.min(maker, reader) - start + 1]++;
      crossing[Math.max(maker, reader) - start + 1]--;
    }
    for (let i = 1; i < crossing.length; i++) crossing[i] += crossing[i - 1];
    const cuts = [start];
    while (end - cuts.at(-1) > 1.5 * size) cuts.push(bestCut(cuts.at(-1), size, (at) => crossing[at - start]));
    const blocks = cuts.map((from, i) => ({ from, to: cuts[i + 1] ?? end, wires: [] }));
    const blockOf = (box) => blocks[d3.bisectRight(cuts, box) - 1];
    for (const wire of wires) {
      if (blockOf(wire.maker) === blockOf(wire.reader)) blockOf(wire.maker).wires.push(wire);
    }
    return blocks;
  }

  /** The place, about `size` boxes on, that the fewest wires cross. */
  function bestCut(from, size, crossing) {
    const places = d3.range(from + Math.ceil(size / 2), from + Math.ceil(1.5 * size));
    return d3.least(places, (a, b) => crossing(a) - crossing(b) || Math.abs(a - from - size) - Math.abs(b - from - size));
  }

  function laidOut(block, boxes, memo) {
    const shape = {
      sizes: boxes.slice(block.from, block.to).map((box) => [box.w, box.h]),
      edges: block.wires.map((wire) => [wire.maker - block.from, wire.reader - block.from]),
    };
    const key = JSON.stringify(shape);
    if (!memo.has(key)) memo.set(key, layered(shape));
    return { ...block, ...memo.get(key), title: scope(boxes.slice(block.from, block.to)) };
  }

  function layered({ sizes, edges }) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ ranksep: GAP.rank, nodesep: GAP.node });
    graph.setDefaultEdgeLabel(() => ({}));
    sizes.forEach(([width, height], i) => graph.setNode(String(i), { width, height }));
    for (const [maker, reader] of edges) graph.setEdge(String(maker), String(reader));
    dagre.layout(graph);
    const { width, height } = graph.graph();
    return {
      w: width,
      h: height,
      spots: sizes.map((_, i) => graph.node(String(i))),
      paths: edges.map(([maker, reader]) => graph.edge(String(maker), String(reader)).points),
    };
  }

  /** What the names of most nodes of a block begin with: `/layers.3/attn`. */
  function scope(boxes) {
    const names = boxes.filter((box) => !(box.shade in SIZES)).map((box) => box.name).filter((name) => /[/.]/.test(name));
    if (names.length < boxes.length / 2) return "";
    let prefix = "";
    for (;;) {
      const next = d3.rollup(names, (same) => same.length, (name) => step(name, prefix));
      const [best, count] = d3.greatest(next, ([, n]) => n);
      if (best === null || count < 0.7 * names.length) return prefix.replace(/[/.]$/, "");
      prefix = best;
    }
  }

  /** The next part of a name behind a prefix that it begins with; null where there is none. */
  function step(name, prefix) {
    if (!name.startsWith(prefix)) return null;
    const end = name.slice(prefix.length + 1).search(/[/.]/);
    return end < 0 ? null : name.slice(0, prefix.length + end + 2);
  }

  /** Sets items in columns, of the height with which the whole is shown largest where it has that aspect. */
  function newspaper(items, aspect, gap, columnGap) {
    const whole = d3.sum(items, (item) => item.h + gap);
    const tallest = d3.max(items, (item) => item.h) || 1;
    const heights = d3.range(1, COLUMNS).map((columns) => Math.max(tallest, whole / columns));
    const sizeOf = (height) => setColumns(items, height, gap, columnGap);
    const side = ({ w, h }) => Math.max(w / aspect, h);
    return sizeOf(d3.least(heights, (height) => side(sizeOf(height))));
  }

  /** Gives each item x and y (its corner): down a column, and on to the next one to the right. */
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

  /** From places in a block to places in the picture. */
  function settle(frame, boxes) {
    for (const block of frame.blocks) {
      block.x += frame.x;
      block.y += frame.y;
      block.spots.forEach((spot, i) => {
        const box = boxes[block.from + i];
        [box.x, box.y] = [block.x + spot.x, block.y + spot.y];
      });
      block.wires.forEach((wire, i) => {
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
