"use strict";
// What stands in one cell of the matrix: the arrays of a trace, read through the pieces that hold
// them. Tokens, layers and slots are counted from 0 here; names of layers are the model's own.

const MISS = 0;
const PREFETCHED = 2;
const RESIDENCY = ["miss", "hit", "prefetched", "not looked up"];

// Four states stand in a byte, the first in its lowest bits.
const stateAt = (packed, slot) => (packed[slot >> 2] >> (2 * (slot & 3))) & 3;

class Cells {
  #pieces = new Map();

  constructor(config, blobs) {
    Object.assign(this, config); // tokens, layers, topK, expertBytes, views, segments …
    this.blobs = blobs;
  }

  chunkOf(token) {
    return Math.floor(token / this.chunkTokens);
  }

  // A function (token, layer) → [missed, prefetched, looked up] of one chunk; null until the chunk is
  // unpacked.
  counter(view, chunk) {
    const states = this.blobs.peek(`view-${view}-${chunk}`);
    if (states === null) {
      return null;
    }
    const first = chunk * this.chunkTokens;
    return (token, layer) => {
      const start = ((token - first) * this.layers.length + layer) * this.topK;
      let missed = 0;
      let prefetched = 0;
      let lookups = 0;
      for (let slot = start; slot < start + this.topK; slot += 1) {
        const state = stateAt(states, slot);
        missed += state === MISS;
        prefetched += state === PREFETCHED;
        lookups += state <= PREFETCHED;
      }
      return [missed, prefetched, lookups];
    };
  }

  loadView(view, chunk) {
    return this.blobs.load(`view-${view}-${chunk}`);
  }

  // Missed lookups of every token under one view.
  async missed(view) {
    const bytes = await this.blobs.load(`missed-${view}`);
    return new Uint32Array(bytes.buffer);
  }

  // Everything about one token: its place, its piece of text, and its slots at every layer.
  async token(view, token) {
    const chunk = this.chunkOf(token);
    const [states, experts, weights, pieces] = await Promise.all([
      this.loadView(view, chunk),
      this.blobs.load(`experts-${chunk}`),
      this.weightScale === null ? null : this.blobs.load(`weights-${chunk}`),
      this.hasPieces ? this.pieces(chunk) : null,
    ]);
    const ids = this.wideExperts ? new Uint16Array(experts.buffer) : experts;
    const width = this.layers.length * this.topK;
    const start = (token - chunk * this.chunkTokens) * width;
    const slots = (layer) =>
      Array.from({ length: this.topK }, (_, slot) => {
        const at = start + layer * this.topK + slot;
        return {
          expert: ids[at],
          state: stateAt(states, at),
          // 255 stands for a weight that the trace does not know.
          weight: weights === null || weights[at] === 255 ? null : weights[at] * this.weightScale,
        };
      });
    return {
      token,
      ...this.place(token),
      piece: pieces === null ? null : pieces[token - chunk * this.chunkTokens],
      slots,
    };
  }

  // The pieces of text of one chunk's tokens; null for one the trace does not know.
  pieces(chunk) {
    if (!this.#pieces.has(chunk)) {
      const parsed = this.blobs
        .load(`pieces-${chunk}`)
        .then((bytes) => JSON.parse(new TextDecoder().decode(bytes)));
      this.#pieces.set(chunk, parsed);
    }
    return this.#pieces.get(chunk);
  }

  // The pieces of up to `reach` tokens on either side, and their own: [before, after].
  async around(token, reach) {
    const { first, last } = this.segmentOf(token);
    const from = Math.max(first, token - reach);
    const to = Math.min(last, token + reach);
    const text = async (start, end) => {
      const parts = [];
      for (let at = start; at < end; at += 1) {
        const chunk = this.chunkOf(at);
        parts.push((await this.pieces(chunk))[at - chunk * this.chunkTokens] ?? "");
      }
      return parts.join("");
    };
    return [await text(from, token), await text(token + 1, to + 1)];
  }

  // A segment is a run of tokens of one turn at consecutive steps.
  segmentOf(token) {
    let index = this.segments.length - 1;
    while (this.segments[index].token > token) {
      index -= 1;
    }
    const next = this.segments[index + 1];
    return {
      ...this.segments[index],
      first: this.segments[index].token,
      last: (next ? next.token : this.tokens) - 1,
    };
  }

  place(token) {
    const segment = this.segmentOf(token);
    return { turn: segment.turn, step: segment.step + token - segment.first };
  }
}
