"use strict";
// What the page says of the picked cell: to the eye in a table, to a screen reader in a sentence.
// All of it is set as text: a token may spell markup.

const MIB = 2 ** 20;
const CONTEXT = 24; // tokens of text on either side of the picked one

const mib = (bytes) => `${(bytes / MIB).toLocaleString("en", { maximumSignificantDigits: 3 })}\u00a0MiB`;
const shown = (piece) => (piece ?? "").replaceAll("\n", "⏎").replaceAll("\t", "⇥");

function row(slot, index, heaviest) {
  const line = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = String(index);
  line.append(head);
  for (const text of [
    String(slot.expert),
    slot.weight === null ? "-" : slot.weight.toFixed(3),
    RESIDENCY[slot.state],
  ]) {
    line.insertCell().textContent = text;
  }
  const [, weight, residency] = line.cells[0].parentNode.querySelectorAll("td");
  if (slot.weight !== null && heaviest > 0) {
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.style.width = `${(4 * Math.max(slot.weight, 0)) / heaviest}em`;
    weight.prepend(bar);
  }
  const mark = document.createElement("span");
  mark.className = `swatch state-${slot.state}`;
  residency.prepend(mark);
  return line;
}

class Panel {
  #latest = 0;

  constructor(cells, parts) {
    this.cells = cells;
    this.parts = parts;
  }

  // Show a cell; `aloud` tells a screen reader too, once the reader has moved.
  async show(view, { token, layer }, aloud) {
    this.#latest += 1;
    const ticket = this.#latest;
    const { cells, parts } = this;
    const found = await cells.token(view, token);
    const around = cells.hasPieces ? await cells.around(token, CONTEXT) : null;
    if (ticket !== this.#latest) {
      return; // the reader has moved on
    }
    const slots = found.slots(layer);
    const name = cells.layers[layer];
    const turn = cells.turns > 1 ? `turn ${found.turn}, ` : "";
    parts.title.textContent = `${turn}step ${found.step}, layer ${name}`.replace(/^./, (c) =>
      c.toUpperCase(),
    );
    const summary = this.#counted(slots, cells.expertBytes[layer]);
    parts.summary.textContent = `${summary} ${this.#whole(found)}`;
    if (around !== null) {
      parts.before.textContent = shown(around[0]);
      parts.piece.textContent = shown(found.piece);
      parts.after.textContent = shown(around[1]);
    }
    const heaviest = Math.max(...slots.map((slot) => slot.weight ?? 0));
    parts.rows.replaceChildren(...slots.map((slot, index) => row(slot, index, heaviest)));
    if (aloud) {
      const token = found.piece === null ? "" : `, token “${shown(found.piece)}”`;
      const experts = slots.map((slot) => `${slot.expert} ${RESIDENCY[slot.state]}`).join(", ");
      parts.said.textContent = `${parts.title.textContent}${token}. ${summary} Experts: ${experts}.`;
    }
  }

  #counted(slots, expertBytes) {
    const lookups = slots.filter((slot) => slot.state <= PREFETCHED).length;
    const missed = slots.filter((slot) => slot.state === MISS).length;
    if (lookups === 0) {
      return "Nothing was looked up here.";
    }
    const found = `${lookups - missed} of ${lookups} experts were resident`;
    return missed ? `${found}; ${missed} read, ${mib(missed * expertBytes)}.` : `${found}.`;
  }

  #whole(found) {
    let missed = 0;
    let lookups = 0;
    let bytes = 0;
    this.cells.layers.forEach((_, layer) => {
      for (const slot of found.slots(layer)) {
        lookups += slot.state <= PREFETCHED;
        missed += slot.state === MISS;
        bytes += slot.state === MISS ? this.cells.expertBytes[layer] : 0;
      }
    });
    return `The whole token: ${missed} of ${lookups} lookups missed, ${mib(bytes)} read.`;
  }
}
