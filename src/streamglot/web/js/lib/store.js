// State that components watch. Changes are told once for each frame, so that a fast stream costs one rendering per frame.

import { useEffect, useReducer } from "../../vendor/htm-preact.js";

export class Store {
  #listeners = new Set();
  #frame = 0;

  /** Tells the watchers in the next frame; a hidden page draws no frames and is told by a timer. */
  changed() {
    if (this.#frame) return;
    this.#frame = document.hidden ? setTimeout(() => this.#tell(), 100) : requestAnimationFrame(() => this.#tell());
  }

  #tell() {
    this.#frame = 0;
    for (const listener of [...this.#listeners]) listener();
  }

  watch(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** Renders the component again whenever the store has changed. */
export function useStore(store) {
  const [, again] = useReducer((number) => number + 1, 0);
  useEffect(() => store?.watch(again), [store]);
  return store;
}
