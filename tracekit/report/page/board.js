"use strict";
// The matrix itself: a canvas as wide as the window, stuck to the left of a long scroller, on which
// only the visible tokens are drawn. One column a token, one row a layer, the first layer lowest.

const AXIS = 24; // pixels of the step numbers above the cells
const PAD = 3; // pixels beside the outermost cells, for the frame of a picked one
const GUTTER = 44; // pixels of the layer numbers
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// Give a canvas a size in CSS pixels and return its context, scaled to the device's pixels.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

// The colours of the style sheet, which follow the reader's light or dark scheme.
function palette() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

class Board {
  #frame = null;

  // `onMove` is told of every scroll, `onPick` of the cell that a reader picks.
  constructor(cells, parts, { onMove, onPick }) {
    this.cells = cells;
    this.parts = parts;
    this.view = 0;
    this.picked = { token: 0, layer: 0 };
    this.onMove = onMove;
    this.onPick = onPick;
    const { scroller } = parts;
    scroller.addEventListener("scroll", () => this.redraw(), { passive: true });
    scroller.addEventListener("click", (event) => this.#click(event));
    scroller.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.layout()).observe(scroller);
  }

  // Sizes: a few tokens share the width, many keep a cell that can be seen and hit.
  layout() {
    const { scroller, sizer, gutter } = this.parts;
    const { tokens, layers } = this.cells;
    const least = window.matchMedia("(pointer: coarse)").matches ? 16 : 12;
    this.width = scroller.clientWidth;
    this.cellWidth = clamp(Math.floor((this.width - 2 * PAD) / tokens), least, 36);
    this.cellHeight = clamp(Math.round(440 / layers.length), 7, 28);
    this.height = AXIS + layers.length * this.cellHeight + PAD;
    sizer.style.width = `${Math.max(tokens * this.cellWidth + 2 * PAD, this.width)}px`;
    sizer.style.height = `${this.height}px`;
    this.context = sized(this.parts.canvas, this.width, this.height);
    this.gutter = sized(gutter, GUTTER, this.height);
    this.redraw();
  }

  get visible() {
    const left = this.parts.scroller.scrollLeft;
    const first = Math.floor(left / this.cellWidth);
    const last = Math.ceil((left + this.width) / this.cellWidth);
    return { first, last: Math.min(last, this.cells.tokens) };
  }

  redraw() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#draw();
      this.onMove();
    });
  }

  show(view) {
    this.view = view;
    this.redraw();
  }

  // Pick a cell, and scroll so far that it can be seen.
  pick(token, layer) {
    this.picked = {
      token: clamp(token, 0, this.cells.tokens - 1),
      layer: clamp(layer, 0, this.cells.layers.length - 1),
    };
    const { scroller } = this.parts;
    const left = this.picked.token * this.cellWidth;
    const margin = Math.min(2 * this.cellWidth, this.width / 4);
    if (left - margin < scroller.scrollLeft) {
      scroller.scrollLeft = left - margin;
    } else if (left + this.cellWidth + margin > scroller.scrollLeft + this.width) {
      scroller.scrollLeft = left + this.cellWidth + margin - this.width;
    }
    this.redraw();
    this.onPick(this.picked);
  }

  #click(event) {
    const box = this.parts.canvas.getBoundingClientRect();
    const token = Math.floor(
      (this.parts.scroller.scrollLeft + event.clientX - box.left - PAD) / this.cellWidth,
    );
    const row = Math.floor((event.clientY - box.top - AXIS) / this.cellHeight);
    if (token >= 0 && token < this.cells.tokens && row >= 0) {
      this.pick(token, this.cells.layers.length - 1 - row);
    }
  }

  #key(event) {
    const { token, layer } = this.picked;
    const page = Math.max(1, Math.floor(this.width / this.cellWidth) - 1);
    const target = {
      ArrowLeft: [token - 1, layer],
      ArrowRight: [token + 1, layer],
      ArrowUp: [token, layer + 1],
      ArrowDown: [token, layer - 1],
      PageUp: [token - page, layer],
      PageDown: [token + page, layer],
      Home: [0, layer],
      End: [this.cells.tokens - 1, layer],
    }[event.key];
    if (target && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      this.pick(...target);
    }
  }

  #draw() {
    const { context, cellWidth, cellHeight, width, height } = this;
    const { first, last } = this.visible;
    const left = this.parts.scroller.scrollLeft - PAD;
    const colour = palette();
    context.clearRect(0, 0, width, height);
    this.#drawCells(colour, first, last, left);
    this.#drawAxis(colour, first, last, left);
    this.#drawLayers(colour);
    const { token, layer } = this.picked;
    const x = token * cellWidth - left;
    const y = this.#top(layer);
    context.strokeStyle = colour("paper");
    context.lineWidth = 5;
    context.strokeRect(x - 0.5, y - 0.5, cellWidth, cellHeight);
    context.strokeStyle = colour("accent");
    context.lineWidth = 2.5;
    context.strokeRect(x - 0.5, y - 0.5, cellWidth, cellHeight);
  }

  #top(layer) {
    return AXIS + (this.cells.layers.length - 1 - layer) * this.cellHeight;
  }

  // A cell has the mean of its lookups' colours: half of them missed is halfway to a miss.
  #shades(colour) {
    const [hit, miss, prefetched] = ["hit", "miss", "prefetched"].map((n) => channels(colour(n)));
    const known = new Map();
    return ([missed, fetched, lookups]) => {
      const key = (missed * 1024 + fetched) * 1024 + lookups;
      if (!known.has(key)) {
        const mixed = hit.map((_, i) =>
          Math.round(
            (miss[i] * missed + prefetched[i] * fetched + hit[i] * (lookups - missed - fetched)) /
              lookups,
          ),
        );
        known.set(key, lookups ? `rgb(${mixed})` : colour("blank"));
      }
      return known.get(key);
    };
  }

  #drawCells(colour, first, last, left) {
    const { cells, context, cellWidth, cellHeight } = this;
    const shade = this.#shades(colour);
    for (let chunk = cells.chunkOf(first); chunk <= cells.chunkOf(last - 1); chunk += 1) {
      const from = Math.max(first, chunk * cells.chunkTokens);
      const to = Math.min(last, (chunk + 1) * cells.chunkTokens);
      const counts = cells.counter(this.view, chunk);
      if (counts === null) {
        context.fillStyle = colour("blank");
        context.fillRect(
          from * cellWidth - left,
          AXIS,
          (to - from) * cellWidth,
          cells.layers.length * cellHeight,
        );
        cells.loadView(this.view, chunk).then(() => this.redraw());
        continue;
      }
      for (let token = from; token < to; token += 1) {
        for (let layer = 0; layer < cells.layers.length; layer += 1) {
          context.fillStyle = shade(counts(token, layer));
          context.fillRect(
            token * cellWidth - left,
            this.#top(layer),
            cellWidth - 1,
            cellHeight - 1,
          );
        }
      }
    }
  }

  // Step numbers above, and a line where a turn begins.
  #drawAxis(colour, first, last, left) {
    const { cells, context, cellWidth, height } = this;
    const every = [1, 2, 5, 10, 20, 50].find((n) => n * cellWidth >= 56) ?? 100;
    const picked = this.picked.token;
    context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    for (let token = first; token < last; token += 1) {
      const { turn, step } = cells.place(token);
      const x = token * cellWidth - left;
      const crowded = Math.abs(token - picked) * cellWidth < 40;
      if (token === picked || (step % every === 0 && !crowded)) {
        context.fillStyle = colour(token === picked ? "accent" : "muted");
        context.fillText(String(step), x, AXIS / 2 - 1);
        context.fillRect(x, AXIS - 5, 1, 4);
      }
      if (token > 0 && cells.place(token - 1).turn !== turn) {
        context.fillStyle = colour("ink");
        context.fillRect(x - 1, 0, 1.5, height);
      }
    }
  }

  #drawLayers(colour) {
    const { cells, cellHeight, gutter, height } = this;
    const every = [1, 2, 4, 5, 10].find((n) => n * cellHeight >= 15) ?? 20;
    gutter.clearRect(0, 0, GUTTER, height);
    gutter.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    gutter.textAlign = "right";
    gutter.textBaseline = "middle";
    cells.layers.forEach((name, layer) => {
      const picked = layer === this.picked.layer;
      const crowded = Math.abs(layer - this.picked.layer) * cellHeight < 13;
      if (picked || (layer % every === 0 && !crowded)) {
        gutter.fillStyle = colour(picked ? "accent" : "muted");
        gutter.fillText(String(name), GUTTER - 6, this.#top(layer) + cellHeight / 2);
      }
    });
  }
}
