// State that components watch. Watchers are notified once per frame, so that a fast stream costs one rendering per frame.

import { useLayoutEffect, useReducer } from "../../vendor/htm-preact.js";

export class Store {
  interval = 0; // the shortest time between two changes that are told, in milliseconds
  #listeners = new Set();
  #coming = false;
  #told = 0;

  /** Notifies the watchers in the next frame. A hidden page draws no frames, so a timer notifies it. */
  changed() {
    if (this.#coming) return;
    this.#coming = true;
    const wait = document.hidden ? 100 : this.#told + this.interval - performance.now();
    if (wait > 0) setTimeout(() => (document.hidden ? this.#tell() : requestAnimationFrame(() => this.#tell())), wait);
    else requestAnimationFrame(() => this.#tell());
  }

  #tell() {
    this.#coming = false;
    this.#told = performance.now();
    for (const listener of [...this.#listeners]) listener();
  }

  watch(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** Renders the component again whenever the store has changed. It watches as soon as it is drawn: an effect would begin a frame
 * later, and miss a change in between. */
export function useStore(store) {
  const [, again] = useReducer((number) => number + 1, 0);
  useLayoutEffect(() => store?.watch(again), [store]);
  return store;
}
