"use strict";

/* Makes the graph that is drawn of the nodes, values and decisions that a page carries. */
const Graph = (() => {
  const LAYER = { most: 1024, saved: 12 }; // nodes: the largest layer, and the fewest that repeat a first layer

  /** Adds boxes, their wires and repeated layers to the data, and to each fact the box that it is about. */
  function complete(data) {
    const items = data.frames.flatMap((_, frame) => inOrder(data, frame).map((item) => ({ ...item, frame })));
    const boxes = items.map((item) => ({ ...EMPTY, graph: item.frame, ...boxOf(data, item) }));
    const wires = wiresOf(items);
    const boxOfNode = new Map(items.map(({ node }, index) => [node, index]));
    const ownerOf = ({ owner }) => (owner === null ? null : boxOfNode.get(data.nodes[owner]));
    const frames = data.frames.map((frame) => ({ title: frame.title, owner: ownerOf(frame) }));
    const drawn = { boxes, wires, frames, layers: layersOf(boxes, wires) };
    return { ...data, ...drawn, ...placed(data, boxes) };
  }

  const EMPTY = { units: [], inputs: [], outputs: [], bodies: [], flops: null, attributes: [] };

  /** The contents of a frame: inputs before their first use, Casts and outputs after the producer of their value. */
  function inOrder({ frames, nodes, casts }, frame) {
    const own = nodes.filter((node) => node.frame === frame);
    const [used, made] = [new Map(), new Map()];
    own.forEach((node, place) => {
      for (const { value } of node.inputs) if (!used.has(value)) used.set(value, place);
      for (const value of node.outputs) made.set(value, place);
    });
    const items = own.map((node, place) => ({ place, rank: 2, node }));
    for (const input of frames[frame].inputs) items.push({ place: used.get(input) ?? 0, rank: 0, input });
    for (const [at, cast] of casts.entries()) {
      const [place, rank] = made.has(cast.value) ? [made.get(cast.value), 3] : [used.get(cast.value) ?? 0, 1];
      if (cast.frame === frame) items.push({ place, rank, cast, at });
    }
    for (const output of frames[frame].outputs)
      items.push({ place: made.get(output.value) ?? own.length, rank: 4, output });
    return items.sort((a, b) => a.place - b.place || a.rank - b.rank);
  }

  function boxOf({ values, reasons }, { node, cast, input, output }) {
    const read = ({ value, half }) => ({ ...values[value], half });
    if (input !== undefined)
      return { operator: "input", name: values[input].name, shade: "border", outputs: [values[input]] };
    if (output) return { operator: "output", name: values[output.value].name, shade: "border", inputs: [read(output)] };
    if (!cast) return { ...node, shade: shadeOf(node, reasons), inputs: node.inputs.map(read), outputs: node.outputs.map((value) => values[value]) };
    const [value, half] = [values[cast.value], cast.to !== "float32"];
    const name = `${value.name || "value"} to ${cast.to}`;
    return { operator: "Cast", name, shade: "cast", inputs: [{ ...value, half: !half }], outputs: [{ ...value, half }] };
  }

  function shadeOf({ added, units }, reasons) {
    const colours = new Set(units.map((unit) => reasons[unit].colour));
    return added ? "cast" : colours.size > 1 ? "mixed" : ([...colours][0] ?? "other");
  }

  /** A wire to each box from the Cast that it reads, else from the box that makes the value. */
  function wiresOf(items) {
    const [casts, makers] = [new Map(), new Map()];
    items.forEach(({ node, cast, at, input }, index) => {
      if (cast) casts.set(at, index);
      for (const value of node?.outputs ?? (input === undefined ? [] : [input])) makers.set(value, index);
    });
    const wires = new Map();
    items.forEach(({ node, cast, output }, target) => {
      for (const read of node?.inputs ?? [cast ?? output].filter(Boolean)) {
        const source = casts.get(read.cast) ?? makers.get(read.value);
        if (source !== undefined) wires.set(source * items.length + target, [source, target]);
      }
    });
    return [...wires.values()];
  }

  /**
   * The starts of repeated layers, and their end. Borders and Casts do not count, as precisions may differ from layer
   * to layer; between two layers, those before the first input belong to the former.
   */
  function layersOf(boxes, wires) {
    const nodes = d3.range(boxes.length).filter((i) => boxes[i].shade !== "border" && boxes[i].operator !== "Cast");
    const numbers = new Map();
    const codes = nodes.map((i) => {
      const key = `${boxes[i].graph} ${boxes[i].operator}`;
      if (!numbers.has(key)) numbers.set(key, numbers.size);
      return numbers.get(key);
    });
    const crossing = new Int32Array(boxes.length + 2);
    for (const [source, target] of new Map(wires)) {
      crossing[source + 1]++;
      crossing[target + 1]--;
    }
    for (let i = 1; i < crossing.length; i++) crossing[i] += crossing[i - 1];

    /** The box that ends a layer before this node. */
    function end(at) {
      const last = nodes[at - 1];
      if (at === nodes.length || boxes[nodes[at]].graph !== boxes[last].graph) return last + 1;
      return d3.range(last + 1, nodes[at]).find((i) => !boxes[i].inputs.length) ?? nodes[at];
    }

    return repeats(codes, 0, codes.length).map(({ first, size, count, slack }) => {
      const starts = (at) => [nodes[at], ...d3.range(1, count + 1).map((i) => end(at + size * i))];
      const crossed = (at) => d3.sum(starts(at), (start) => crossing[start]);
      const shared = (at) => prefix(boxes[nodes[at]].name, boxes[nodes[at + size - 1]].name);
      const ranks = d3.range(first, first + slack + 1).map((at) => ({ at, crossed: crossed(at), shared: shared(at) }));
      // the cut that the fewest values cross, then the one between scopes of names
      return starts(d3.least(ranks, (a, b) => a.crossed - b.crossed || b.shared - a.shared).at);
    });
  }

  /** The number of letters that both names begin with. */
  function prefix(name, other) {
    let at = 0;
    while (at < name.length && name[at] === other[at]) at++;
    return at;
  }

  /** The longest repeats in a range, in order, and by how many positions each may be shifted. */
  function repeats(codes, low, high) {
    let best = { saved: LAYER.saved - 1 };
    for (let size = 1; size <= Math.min((high - low) >> 1, LAYER.most); size++) {
      let [start, first, longest] = [low, low, 0];
      for (let at = low; at <= high - size; at++) {
        if (at < high - size && codes[at] === codes[at + size]) continue;
        if (at - start > longest) [first, longest] = [start, at - start];
        start = at + 1;
      }
      const saved = longest - (longest % size);
      if (saved > best.saved) best = { saved, first, size, count: saved / size + 1, slack: longest - saved };
    }
    if (best.saved < LAYER.saved) return [];
    const after = best.first + best.saved + best.size + best.slack;
    return [...repeats(codes, low, best.first), best, ...repeats(codes, after, high)];
  }

  /** What is known by names of values and by units, for the boxes: decisions, errors, magnitudes, parts of a step. */
  function placed({ reasons, causes, errors, worst, magnitudes, exponents, stored, step }, boxes) {
    const boxOfUnit = new Map(boxes.flatMap(({ units }, box) => units.map((unit) => [unit, box])));
    const isNode = ({ shade }) => shade !== "cast" && shade !== "border";
    const named = ({ outputs }, box) => outputs.map(({ name }) => [name, box]);
    const makers = new Map(boxes.flatMap((box, at) => (isNode(box) && !box.graph ? named(box, at) : [])));
    const maps = [magnitudes, exponents, step?.parts ?? {}].map((facts) => new Map(Object.entries(facts)));
    const [seen, scales, parts] = maps;
    const asStored = (name) => seen.get(name) * 2 ** -(scales.get(name) ?? 0);
    const largest = ({ outputs }) => {
      const observed = outputs.map(({ name }) => name).filter((name) => seen.has(name));
      return d3.greatest(observed, (name) => seen.get(name));
    };
    const partOf = ({ outputs }) => outputs.map(({ name }) => parts.get(name)).find(Boolean) ?? "forward";
    const histograms = {
      "stored numbers": stored,
      "node outputs, each by its largest magnitude": binades([...seen.values()]),
      "the same, rescaled as in the result": scales.size ? binades([...seen.keys()].map(asStored)) : [],
    };
    return {
      reasons: reasons.map((reason, unit) => ({ ...reason, box: boxOfUnit.get(unit) ?? null })),
      causes: causes.map((cause) => ({ ...cause, boxes: cause.affected.map((unit) => boxOfUnit.get(unit)).filter(Number.isInteger) })),
      errors: errors.filter(({ value }) => makers.has(value)).map((error) => ({ ...error, box: makers.get(error.value) })),
      suspect: makers.get(worst) ?? null,
      magnitudes: boxes.map(largest).map((name) => (name === undefined ? null : [seen.get(name), asStored(name)])),
      histograms: Object.fromEntries(Object.entries(histograms).filter(([, counts]) => counts.length)),
      step: step && { ...step, parts: boxes.map((box) => (box.shade === "border" ? null : partOf(box))) },
      ports: boxes
        .filter((box) => box.shade === "border" && !box.graph)
        .map(({ operator, inputs, outputs }) => ({ kind: operator, ...[...inputs, ...outputs][0] })),
    };
  }

  /** Counts of numbers by power of two, without zeros. */
  function binades(numbers) {
    const counts = d3.rollup(numbers.filter(Boolean), (some) => some.length, (size) => Math.floor(Math.log2(size)));
    return d3.sort(counts, ([power]) => power);
  }

  return { complete, layersOf };
})();
