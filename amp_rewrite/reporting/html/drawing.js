"use strict";

/* Draws a graph that has been laid out on a canvas, in as much detail as the scale allows. */
const Drawing = (() => {
  const SHOWS = { wires: 0.05, operator: 0.42, name: 0.7, kind: 0.42 }; // the least scale, in screen pixels per unit
  const FAR = 0.3; // below this scale, wires between blocks are faint
  const HEADING = { least: 12, most: 30 }; // pixels
  const FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

  /** The colours of the active colour scheme, from the style sheet. */
  function palette() {
    const probe = document.body.appendChild(Dom.el("i"));
    const names = [...document.styleSheets[0].cssRules[0].style].filter((name) => name.startsWith("--"));
    const colourOf = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    const colours = Object.fromEntries(names.map((name) => [name.slice(2), colourOf(name)]));
    probe.remove();
    return { ...colours, scale: d3.interpolateLab(colours["error-low"], colours["error-high"]) };
  }

  /** Draws one frame of `scene`; `look` has the selection, the search matches and the colouring of boxes. */
  function draw(canvas, scene, transform, look) {
    const context = canvas.getContext("2d");
    const ratio = canvas.width / canvas.clientWidth || 1;
    const { k, x, y } = transform;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.setTransform(ratio * k, 0, 0, ratio * k, ratio * x, ratio * y);
    const seen = {
      left: -x / k,
      top: -y / k,
      right: (canvas.clientWidth - x) / k,
      bottom: (canvas.clientHeight - y) / k,
    };
    const pen = { context, k, seen, look, colours: look.colours };
    scene.frames.slice(1).forEach((frame) => drawFrame(pen, frame));
    if (k >= SHOWS.wires) drawWires(pen, scene);
    drawPath(pen, scene);
    drawChain(pen, scene);
    scene.items.forEach((item) => isSeen(seen, item) && drawBox(pen, item));
    scene.blocks.forEach((block) => drawHeading(pen, block));
    drawSelection(pen, scene);
  }

  function isSeen(seen, box) {
    return (
      box.x + box.w / 2 > seen.left &&
      box.x - box.w / 2 < seen.right &&
      box.y + box.h / 2 > seen.top &&
      box.y - box.h / 2 < seen.bottom
    );
  }

  function drawFrame({ context, k, colours }, frame) {
    const [x, y, w, h] = [frame.x - 24, frame.y - 30, frame.w + 48, frame.h + 54];
    context.fillStyle = colours.frame;
    context.strokeStyle = colours.wire;
    context.lineWidth = 1 / k;
    context.beginPath();
    context.roundRect(x, y, w, h, 14);
    context.fill();
    context.stroke();
    context.font = `600 ${Math.min(HEADING.most, HEADING.least / k, 22)}px ${FONT}`;
    write(context, frame.title, x + 4, y - 10, w, "left", colours.muted);
  }

  /** The titles above blocks: the common prefix of most node names. */
  function drawHeading({ context, k, colours }, block) {
    const size = Math.min(HEADING.most, HEADING.least / k);
    if (!block.title || size * k < HEADING.least / 2) return;
    context.font = `600 ${size}px ${FONT}`;
    write(context, block.title, block.x, block.y - 8, block.w, "left", colours.muted);
  }

  function drawWires({ context, k, seen, colours }, { wires, boxes }) {
    context.strokeStyle = colours.wire;
    context.lineWidth = Math.max(1, 0.6 / k);
    context.beginPath();
    for (const wire of wires) if (wire.points) trace(context, seen, wire.points);
    context.stroke();
    context.globalAlpha = k < FAR ? 0.2 : 0.4;
    context.beginPath();
    for (const wire of wires) if (!wire.points) leap(context, boxes[wire.source], boxes[wire.target]);
    context.stroke();
    context.globalAlpha = 1;
  }

  const curve = d3.line().curve(d3.curveBasis);

  function trace(context, seen, points) {
    const [first, last] = [points[0], points.at(-1)];
    if (last[1] < seen.top || first[1] > seen.bottom) return;
    if (Math.max(first[0], last[0]) < seen.left - 400 || Math.min(first[0], last[0]) > seen.right + 400)
      return;
    curve.context(context)(points);
  }

  /** A wire from one block to another. */
  function leap(context, source, target) {
    const [y0, y1] = [source.y + source.h / 2, target.y - target.h / 2];
    context.moveTo(source.x, y0);
    context.bezierCurveTo(source.x, y0 + 60, target.x, y1 - 60, target.x, y1);
  }

  function drawBox(pen, box) {
    const { context, k, look, colours } = pen;
    const isFound = !look.found || d3.range(box.from, box.to).some((index) => look.found.has(index));
    context.globalAlpha = isFound ? 1 : 0.22;
    if (box.layers) drawStack(pen, box);
    outline(context, box, 0);
    const fill = colour(box, look.weigh, colours);
    context.fillStyle = fill;
    context.fill();
    if (box.shade === "border" || box.layers) drawEdge(pen);
    if (box.layers) drawShares(pen, box);
    if (box.shade === "mixed" && !look.weigh) drawOtherHalf(pen, box);
    if (k >= SHOWS.kind) drawKinds(pen, box);
    if (k >= SHOWS.operator) drawWords(pen, box, inkOn(pen, box, fill));
    context.globalAlpha = 1;
  }

  /** The colour of a box: by its weight if there are weights, else by its shade. */
  function colour(box, weigh, colours) {
    if (box.layers) return colours.paper;
    return weigh ? weight(weigh(box.from), colours) : colours[box.shade] || colours.half;
  }

  /** The colour of a weight: from 0 to 1, or the name of a colour; boxes without one are pale. */
  function weight(found, colours) {
    if (found === null) return colours.frame;
    return typeof found === "string" ? colours[found] : colours.scale(found);
  }

  /** The outlines of further sheets behind folded layers. */
  function drawStack({ context, k, colours }, box) {
    for (const shift of [8, 4]) {
      outline(context, { ...box, x: box.x + shift, y: box.y - shift }, 0);
      context.fillStyle = colours.paper;
      context.fill();
      drawEdge({ context, k, colours });
    }
  }

  const PRECISIONS = { half: ["half"], mixed: ["half", "full"], full: ["full"] };

  /** A bar with the share of each colour among the boxes of folded layers. */
  function drawShares({ context, look, colours }, box) {
    const all = box.shades.flatMap((shade, i) =>
      look.weigh ? (look.weigh(box.from + i) ?? []) : PRECISIONS[shade] || [],
    );
    const shares = d3.rollups(
      d3.sort(all, (a, b) => d3.descending(a, b)),
      (same) => same.length / all.length,
      (each) => (typeof each === "number" ? Math.round(each * 8) / 8 : each),
    );
    let x = box.x - box.w / 2 + 12;
    for (const [each, share] of shares) {
      context.fillStyle = weight(each, colours);
      context.fillRect(x, box.y + box.h / 2 - 15, share * (box.w - 24), 7);
      x += share * (box.w - 24);
    }
  }

  /** A text colour that is readable on a box. */
  function inkOn({ look, colours }, box, fill) {
    if (look.weigh) return d3.lab(fill).l < 55 ? "#ffffff" : "#17202b";
    return box.shade === "cast" ? colours.paper : colours.ink;
  }

  function outline(context, box, margin) {
    const round = box.shade === "cast" || box.shade === "border" ? box.h / 2 : 7;
    context.beginPath();
    context.roundRect(
      box.x - box.w / 2 - margin,
      box.y - box.h / 2 - margin,
      box.w + 2 * margin,
      box.h + 2 * margin,
      round + margin,
    );
  }

  /** The outline of an input or output, which is not filled. */
  function drawEdge({ context, k, colours }) {
    context.strokeStyle = colours.wire;
    context.lineWidth = Math.max(1.5, 0.8 / k);
    context.stroke();
  }

  /** The second colour of a mixed box, which fills the opposite corner. */
  function drawOtherHalf({ context, colours }, box) {
    const [left, right] = [box.x - box.w / 2, box.x + box.w / 2];
    const [top, bottom] = [box.y - box.h / 2, box.y + box.h / 2];
    context.save();
    context.clip();
    context.fillStyle = colours.full;
    context.beginPath();
    context.moveTo(right, top);
    context.lineTo(right, bottom);
    context.lineTo(left, bottom);
    context.fill();
    context.restore();
  }

  /** A stripe for the kind of each of the node's units, along its left side. */
  function drawKinds({ context, colours }, box) {
    const height = (box.h - 10) / box.kinds.length;
    box.kinds.forEach((kind, i) => {
      context.fillStyle = colours[`kind-${kind}`];
      context.fillRect(box.x - box.w / 2 + 5, box.y - box.h / 2 + 5 + i * height, 4, height - 1);
    });
  }

  /** The scale of magnitudes at the foot of a box: the limits, and hollow the magnitude before, filled after. */
  function drawGauge(context, box, { places, ends }, ink) {
    const [left, width, y] = [box.x - box.w / 2 + 14, box.w - 24, box.y + box.h / 2 - 4];
    context.strokeStyle = context.fillStyle = ink;
    context.lineWidth = 0.8;
    context.beginPath();
    context.moveTo(left, y);
    context.lineTo(left + width, y);
    for (const end of ends) {
      context.moveTo(left + end * width, y - 3);
      context.lineTo(left + end * width, y + 3);
    }
    context.stroke();
    places.forEach((place, i) => {
      context.beginPath();
      context.arc(left + place * width, y, 2.6, 0, 2 * Math.PI);
      if (i) context.fill();
      else context.stroke();
    });
  }

  function drawWords({ context, k, look }, box, ink) {
    const small = box.h < 30;
    const mark = look.marks?.(box.from);
    if (mark && !small && !box.layers) drawGauge(context, box, mark, ink);
    const note = (!box.layers && mark?.text) || box.name;
    const named = k >= SHOWS.name && !small && note;
    const room = box.w - 30;
    const middle = box.layers ? box.y - 10 : box.y;
    context.font = `600 ${small ? 12 : 13}px ${FONT}`;
    const words = box.shade === "cast" ? box.name.replace(/^.* to /s, "Cast to ") : box.operator;
    const label = box.shade === "border" ? box.name : words;
    const lift = mark && named ? 4 : 0; // above the gauge
    write(context, label, box.x, middle - lift + (named ? -3 : 4), room, "center", ink);
    if (!named) return;
    context.font = `12px ${FONT}`;
    write(context, note, box.x, middle - lift + 12, room, "center", ink);
  }

  /** Text, cut in the middle if it is too wide. */
  function write(context, text, x, y, room, align, colour) {
    const fits = Math.max(4, Math.floor((text.length * room) / (context.measureText(text).width || 1)));
    context.textAlign = align;
    context.fillStyle = colour;
    context.fillText(Dom.cut(text, fits), x, y);
  }

  /** The selected box, its wires, and lines to its bodies. */
  function drawSelection({ context, k, look, colours }, { boxes, wires, frames }) {
    const { selected } = look;
    if (selected === null) return;
    context.strokeStyle = colours.select;
    context.lineWidth = Math.max(2, 1.6 / k);
    context.beginPath();
    for (const wire of look.wiresAt.get(selected) || []) {
      drawWire(context, wires[wire], boxes);
    }
    context.stroke();
    drawBodies(context, k, boxes[selected], frames);
    context.setLineDash([]);
    context.lineWidth = Math.max(3, 2.5 / k);
    outline(context, boxes[selected], Math.max(3, 3 / k));
    context.stroke();
  }

  function drawWire(context, { source, target, points }, boxes) {
    if (points) curve.context(context)(points);
    else leap(context, boxes[source], boxes[target]);
  }

  /** The way from the selected box to an output of the model: a broad band along its wires. */
  function drawPath({ context, k, look, colours }, { boxes, wires }) {
    context.strokeStyle = colours.select;
    context.lineWidth = Math.max(7, 4 / k);
    context.globalAlpha = 0.2;
    context.beginPath();
    for (const [source, target] of d3.pairs(look.path)) {
      const to = boxes[target].from;
      const wire = look.wiresAt.get(boxes[source].from)?.find((at) => wires[at].target === to);
      if (wire !== undefined) drawWire(context, wires[wire], boxes);
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  /** The chain of causes of the selected box: lines below the boxes, and a ring around each. */
  function drawChain({ context, k, look, colours }, { boxes }) {
    const chain = look.chain.map((index) => boxes[index]);
    context.strokeStyle = colours.select;
    context.lineWidth = Math.max(2, 1.6 / k);
    context.setLineDash([7 / k, 5 / k]);
    for (const box of chain) {
      outline(context, box, Math.max(3, 3 / k));
      context.stroke();
    }
    context.beginPath();
    for (const [from, to] of d3.pairs(chain)) {
      context.moveTo(from.x, from.y);
      context.lineTo(to.x, to.y);
    }
    context.stroke();
    context.setLineDash([]);
  }

  function drawBodies(context, k, box, frames) {
    context.setLineDash([2 / k, 5 / k]);
    for (const body of box.bodies) {
      context.beginPath();
      context.moveTo(box.x + box.w / 2, box.y);
      context.lineTo(frames[body].x - 24, frames[body].y - 10);
      context.stroke();
    }
  }

  return { draw, palette, colour };
})();
