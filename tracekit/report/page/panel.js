"use strict";
// What the page says of the picked cell: to the eye in a table, to a screen reader in a sentence.
// All of it is set as text: a token may spell markup.

const MIB = 2 ** 20;
const CONTEXT = 24; // tokens of text on either side of the picked one

const shortest = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
// Sizes that the trace does not know are left out.
const read = (bytes) => (bytes === null ? "" : `, ${shortest.format(bytes / MIB)}\u00a0MiB`);
const shown = (piece) => (piece ?? "").replaceAll("\n", "⏎").replaceAll("\t", "⇥");

function element(name, properties) {
  return Object.assign(document.createElement(name), properties);
}

// A row of the table of experts.
function row(slot, index, heaviest) {
  const line = element("tr");
  line.append(element("th", { scope: "row", textContent: String(index) }));
  line.insertCell().textContent = String(slot.expert);
  const weight = line.insertCell();
  if (slot.weight !== null && heaviest > 0) {
    const bar = element("span", { className: "bar" });
    bar.style.width = `${(4 * Math.max(slot.weight, 0)) / heaviest}em`;
    weight.append(bar);
  }
  weight.append(slot.weight === null ? "-" : slot.weight.toFixed(3));
  const swatch = element("span", { className: `swatch state-${slot.state}` });
  line.insertCell().append(swatch, RESIDENCY[slot.state]);
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
    const summary = this.#counted(slots, layer);
    parts.summary.textContent = `${summary} ${this.#whole(found)}`;
    if (around !== null) {
      parts.before.textContent = shown(around[0]);
      parts.piece.textContent = shown(found.piece);
      parts.after.textContent = shown(around[1]);
    }
    const heaviest = Math.max(...slots.map((slot) => slot.weight ?? 0));
    parts.rows.replaceChildren(...slots.map((slot, index) => row(slot, index, heaviest)));
    if (aloud) {
      const spelt = found.piece === null ? "" : `, token “${shown(found.piece)}”`;
      const experts = slots.map((slot) => `${slot.expert} ${RESIDENCY[slot.state]}`).join(", ");
      parts.spoken.textContent = `${parts.title.textContent}${spelt}. ${summary} Experts: ${experts}.`;
    }
  }

  #counted(slots, layer) {
    const { missed, lookups, bytes } = this.#tally([[slots, layer]]);
    if (lookups === 0) {
      return "Nothing was looked up here.";
    }
    const found = `${lookups - missed} of ${lookups} experts were resident`;
    return missed ? `${found}; ${missed} read${read(bytes)}.` : `${found}.`;
  }

  #whole(found) {
    const all = this.cells.layers.map((_, layer) => [found.slots(layer), layer]);
    const { missed, lookups, bytes } = this.#tally(all);
    return `The whole token: ${missed} of ${lookups} lookups missed${read(bytes)}.`;
  }

  // Misses, lookups and bytes read of the slots of some layers; null bytes where a size is unknown.
  #tally(layers) {
    const sum = { missed: 0, lookups: 0, bytes: 0 };
    for (const [slots, layer] of layers) {
      const size = this.cells.expertBytes[layer];
      const missed = slots.filter((slot) => slot.state === MISS).length;
      sum.missed += missed;
      sum.lookups += slots.filter((slot) => slot.state <= PREFETCHED).length;
      sum.bytes = size === null || sum.bytes === null ? null : sum.bytes + missed * size;
    }
    return sum;
  }
}
