// The live feeds of the gateway. Each feed is one connection for all its watchers, and is open only while it has one.

import { events, send } from "./api.js";
import { Store } from "./lib/store.js";

const AGAIN_MILLISECONDS = 2000; // the pause before a feed that ended is opened again

class Feed extends Store {
  constructor(path) {
    super();
    this.path = path;
  }

  state = null;
  problem = null;
  #users = 0;
  #abort = null;

  /** Adds a watcher; returns a function that removes it. */
  use() {
    this.#users += 1;
    if (this.#users === 1) this.#follow();
    return () => {
      this.#users -= 1;
      if (!this.#users) this.#abort?.abort();
    };
  }

  async #follow() {
    const abort = (this.#abort = new AbortController());
    while (!abort.signal.aborted) {
      try {
        const response = await send(this.path, { signal: abort.signal });
        this.problem = null;
        for await (const list of events(response)) {
          const last = list.at(-1);
          if (last) this.state = JSON.parse(last.data);
          this.changed();
        }
      } catch (error) {
        if (abort.signal.aborted) return;
        this.problem = error;
        this.changed();
        if (error.status === 401) return;
      }
      await new Promise((done) => setTimeout(done, AGAIN_MILLISECONDS));
    }
  }
}

export const overviewFeed = new Feed("/overview/events");
export const approvalsFeed = new Feed("/approvals/events");
