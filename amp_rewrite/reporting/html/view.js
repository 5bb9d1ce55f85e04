"use strict";

/* The canvas: the visible part of the graph, and the selection. */
const View = (() => {
  const ZOOM = { out: 0.01, in: 3, readable: 0.85, focus: 0.9 };
  const NOTHING = { selected: null, chain: [], path: [], found: null };
  const EDGE = { top: 66, bottom: 62 }; // pixels, under the bar and the legend

  /**
   * Shows a scene on a canvas. `onselect` gets the index of the clicked box, or null, and `onhover` that of the box
   * under the pointer, with the pointer's position.
   */
  function open(canvas, scene, onselect, onhover) {
    const look = {
      ...NOTHING,
      weigh: null,
      marks: null,
      colours: null,
      wiresAt: wiresAt(scene),
    };
    const selection = d3.select(canvas);
    let transform = d3.zoomIdentity;
    let waiting = false;

    function redraw() {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(drawNow);
    }

    function drawNow() {
      waiting = false;
      Drawing.draw(canvas, scene, transform, look);
    }

    const zoom = d3
      .zoom()
      .scaleExtent([ZOOM.out, ZOOM.in])
      .on("zoom", (event) => {
        transform = event.transform;
        redraw();
      });

    function resize() {
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(canvas.clientWidth * ratio);
      canvas.height = Math.round(canvas.clientHeight * ratio);
      drawNow(); // the canvas is empty now, and would be for a frame
    }

    /** The centre of a box on the canvas, in CSS pixels. */
    function locate(index) {
      return transform.apply([scene.boxes[index].x, scene.boxes[index].y]);
    }

    function at(event) {
      const [x, y] = transform.invert(d3.pointer(event, canvas));
      const hit = (box) => Math.abs(x - box.x) <= box.w / 2 && Math.abs(y - box.y) <= box.h / 2;
      return scene.items.find(hit)?.from ?? null;
    }

    function go(target) {
      const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
      (still ? selection : selection.transition().duration(350)).call(zoom.transform, target);
    }

    function fit() {
      const [width, height] = [canvas.clientWidth, canvas.clientHeight - EDGE.top - EDGE.bottom];
      const { x, y, w, h } = scene.bounds;
      const k = Math.min(width / w, height / h, 1.2);
      const [left, top] = [(width - k * w) / 2, EDGE.top + (height - k * h) / 2];
      return d3.zoomIdentity.translate(left - k * x, top - k * y).scale(k);
    }

    /** The whole if its names are readable, else its beginning. */
    function home() {
      const [whole, k, { x, y }] = [fit(), ZOOM.readable, scene.bounds];
      if (whole.k >= k) return whole;
      const left = Math.min(canvas.clientWidth / 2 - k * (scene.items[0]?.x ?? 0), -k * x);
      return d3.zoomIdentity.translate(left, EDGE.top - k * y).scale(k);
    }

    function focus(index) {
      const box = scene.boxes[index];
      const k = Math.max(transform.k, ZOOM.focus);
      go(
        d3.zoomIdentity
          .translate(canvas.clientWidth / 2 - k * box.x, canvas.clientHeight / 2 - k * box.y)
          .scale(k),
      );
    }

    /** Brings a box into view if it is outside the canvas or behind the panels. */
    function reveal(index) {
      const [x, y] = locate(index);
      if (x < 0 || y < EDGE.top || x > canvas.clientWidth || y > canvas.clientHeight - EDGE.bottom)
        focus(index);
    }

    /** Shows another scene of the graph, where the first one was. */
    function use(another) {
      scene = another;
      look.wiresAt = wiresAt(scene);
      redraw();
    }

    function set(change) {
      Object.assign(look, change);
      redraw();
    }

    function start() {
      look.colours = Drawing.palette();
      canvas.addEventListener("click", (event) => onselect(at(event)));
      canvas.addEventListener("mousemove", (event) => {
        const index = at(event);
        canvas.style.cursor = index === null ? "grab" : "pointer";
        onhover(index, d3.pointer(event, canvas));
      });
      canvas.addEventListener("mouseleave", () => onhover(null));
      window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        set({ colours: Drawing.palette() });
      });
      selection.call(zoom).on("dblclick.zoom", null);
      selection.call(zoom.transform, home());
      resize();
      new ResizeObserver(resize).observe(canvas);
    }

    start();
    return {
      focus,
      locate,
      reveal,
      set,
      use,
      path: () => look.path,
      scale: () => transform.k,
      fit: () => go(fit()),
      home: () => go(home()),
      zoomBy: (factor) => zoom.scaleBy(selection.transition().duration(200), factor),
    };
  }

  function wiresAt({ wires }) {
    const found = new Map();
    const add = (box, wire) => found.set(box, [...(found.get(box) || []), wire]);
    wires.forEach(({ source, target }, wire) => {
      add(source, wire);
      add(target, wire);
    });
    return found;
  }

  return { open };
})();
