"use strict";
// Wires the matrix, the strip above it, the controls and the panel together.

(() => {
  const part = (name) => document.getElementById(`matrix-${name}`);
  if (typeof DecompressionStream === "undefined") {
    part("old").hidden = false;
    return;
  }
  const cells = new Cells(JSON.parse(part("config").textContent), new Blobs());
  const panel = new Panel(cells, {
    title: part("cell-title"),
    summary: part("summary"),
    before: part("before"),
    piece: part("piece"),
    after: part("after"),
    rows: part("rows"),
    spoken: part("spoken"),
  });
  const slider = part("token");
  const strip = new Strip(cells, part("strip"), (token) => board.pick(token, board.picked.layer));
  const board = new Board(
    cells,
    {
      scroller: part("scroller"),
      sizer: part("sizer"),
      canvas: part("canvas"),
      gutter: part("gutter"),
    },
    {
      onMove: () => strip.draw(board.view, board.visible),
      onPick: (picked) => follow(picked, true),
    },
  );

  // Let the slider and the panel follow the picked cell.
  function follow(picked, aloud) {
    const { turn, step } = cells.place(picked.token);
    slider.value = String(picked.token);
    const place = cells.turns > 1 ? `turn ${turn}, step ${step}` : `step ${step}`;
    slider.setAttribute("aria-valuetext", place);
    panel.show(board.view, picked, aloud);
  }

  part("view").addEventListener("change", (event) => {
    board.show(Number(event.target.value));
    panel.show(board.view, board.picked, true);
  });
  slider.addEventListener("input", () => board.pick(Number(slider.value), board.picked.layer));
  for (const button of part("arrows").querySelectorAll("button")) {
    button.addEventListener("click", () => {
      const { token, layer } = board.picked;
      board.pick(token + Number(button.dataset.token), layer + Number(button.dataset.layer));
    });
  }
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", () => board.redraw());
  part("browser").hidden = false;
  board.layout();
  follow(board.picked, false);
})();
