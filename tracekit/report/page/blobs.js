"use strict";
// The page carries its data as deflated, base64-coded pieces in inert script elements. A piece is
// unpacked when it is first shown, so that a page of any length opens at once.

class Blobs {
  #unpacked = new Map();
  #waiting = new Map();

  // The bytes of a piece if they are at hand, else null.
  peek(name) {
    return this.#unpacked.get(name) ?? null;
  }

  // A promise of the bytes of a piece.
  load(name) {
    if (!this.#waiting.has(name)) {
      this.#waiting.set(name, this.#unpack(name));
    }
    return this.#waiting.get(name);
  }

  async #unpack(name) {
    const coded = atob(document.getElementById(name).textContent);
    const packed = Uint8Array.from(coded, (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    this.#unpacked.set(name, bytes);
    return bytes;
  }
}
