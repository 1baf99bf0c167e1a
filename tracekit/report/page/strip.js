"use strict";
// The whole run at a glance: how many lookups each token missed, and which part the matrix shows.

class Strip {
  // `onPick` is told of the token under a click.
  constructor(cells, canvas, onPick) {
    this.cells = cells;
    this.canvas = canvas;
    canvas.addEventListener("click", (event) => {
      onPick(Math.floor((event.offsetX / canvas.clientWidth) * cells.tokens));
    });
  }

  async draw(view, visible) {
    const missed = await this.cells.missed(view);
    const { tokens } = this.cells;
    const { width, height } = this.canvas.parentElement.getBoundingClientRect();
    const context = sized(this.canvas, width, height);
    const colour = palette();
    context.fillStyle = colour("blank");
    context.fillRect(0, 0, width, height);
    context.fillStyle = colour("miss");
    const columns = Math.min(Math.ceil(width), tokens);
    for (let column = 0; column < columns; column += 1) {
      const from = Math.floor((column * tokens) / columns);
      const to = Math.max(Math.floor(((column + 1) * tokens) / columns), from + 1);
      let sum = 0;
      for (let token = from; token < to; token += 1) {
        sum += missed[token];
      }
      const tall = ((sum / (to - from)) * height) / this.cells.perToken;
      context.fillRect((column * width) / columns, height - tall, width / columns + 0.5, tall);
    }
    const x = (visible.first * width) / tokens;
    const wide = Math.max(((visible.last - visible.first) * width) / tokens, 3);
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    context.strokeRect(x + 1, 1, Math.min(wide, width - x) - 2, height - 2);
  }
}
