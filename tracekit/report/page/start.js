"use strict";
// Wires the matrix, the strip above it, the controls and the panel together.

(() => {
  const source = document.getElementById("matrix-config");
  if (source === null) {
    return; // the page says why it has no matrix
  }
  const part = (name) => document.getElementById(`matrix-${name}`);
  if (typeof DecompressionStream === "undefined") {
    part("old").hidden = false;
    return;
  }
  const cells = new Cells(JSON.parse(source.textContent), new Blobs());
  const panel = new Panel(cells, {
    title: part("cell-title"),
    summary: part("summary"),
    before: part("before"),
    piece: part("piece"),
    after: part("after"),
    rows: part("rows"),
    said: part("said"),
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
      onPick: (picked) => picked_(picked, true),
    },
  );

  function picked_(picked, aloud) {
    const { turn, step } = cells.place(picked.token);
    slider.value = String(picked.token);
    slider.setAttribute("aria-valuetext", cells.turns > 1 ? `turn ${turn}, step ${step}` : `step ${step}`);
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
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => board.redraw());
  part("browser").hidden = false;
  board.layout();
  picked_(board.picked, false);
})();
