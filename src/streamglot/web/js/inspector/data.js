// The rows of one inspection, as they come from the gateway: three columns that are linked by number.

import { send } from "../api.js";

export const COLUMNS = ["upstream", "events", "client"];
export const LOST = 1;
export const FOLDED = 2;
export const OWN = 4;

/** One column. ``link`` is the row that a row came from: of an event its upstream frame, of a client frame its event.
 *  ``from(n)`` is the range of rows that came from row n of the column before. */
class Column {
  constructor() {
    this.at = [];
    this.link = [];
    this.mark = [];
    this.text = [];
    this.ranges = new Map();
  }

  get length() {
    return this.at.length;
  }

  append(page) {
    const begin = this.length;
    push(this.at, page.at);
    push(this.link, page.link);
    push(this.mark, page.mark);
    push(this.text, page.text);
    for (let row = begin; row < this.length; row++) {
      const source = this.link[row];
      if (source < 0) continue;
      const range = this.ranges.get(source);
      if (range) range[1] = row;
      else this.ranges.set(source, [row, row]);
    }
  }

  from(source) {
    return this.ranges.get(source) ?? null;
  }

  /** The last row that was there at this time, in microseconds; 0 where none was. */
  rowAt(time) {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.at[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }
}

function push(list, more) {
  for (const one of more) list.push(one); // a spread of 100,000 arguments is more than a call may have
}

/** ``facts`` is what is known of a stored turn, or of what was pasted. ``state``: loading, live, done or failed. ``as``: the dialect in
 *  which the client column was asked for. */
export class Inspection {
  constructor() {
    this.as = "";
    this.facts = null;
    this.pasted = false;
    this.state = "loading";
    this.error = null;
    this.head = null;
    this.upstream = new Column();
    this.events = new Column();
    this.client = new Column();
    this.blocks = [];
    this.removed = [];
    this.version = 0;
    this.listeners = new Set();
    this.abort = new AbortController();
    this.scheduled = false;
  }

  /** Calls ``listener`` after changes, at most once in a frame. */
  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  close() {
    this.abort.abort();
    this.listeners.clear();
  }

  /** Reads all lines of an address. ``body`` is what was pasted. */
  async load(path, body) {
    try {
      const response = await send(path, { body, signal: this.abort.signal });
      for await (const line of jsonLines(response)) this.take(line);
      if (this.state !== "failed") this.state = "done";
    } catch (error) {
      if (error.name === "AbortError") return;
      this.state = "failed";
      this.error = error;
    }
    this.changed();
  }

  take(line) {
    if (line.turn) this.facts = line.turn;
    if (line.pasted) {
      this.facts = line.pasted;
      this.pasted = true;
    }
    if (line.error) {
      this.state = "failed";
      this.error = line.error;
    }
    if (line.rows) this.page(line.rows);
    if (this.state !== "failed") this.state = this.facts?.running ? "live" : "loading";
    this.changed();
  }

  page(rows) {
    for (const name of COLUMNS) this[name].append(rows[name]);
    this.blocks.length = rows.waterfall.first;
    push(this.blocks, rows.waterfall.bars);
    push(this.removed, rows.removed);
    this.head = rows;
    for (const name of COLUMNS) rows[name] = null; // the columns have them now
  }

  changed() {
    this.version += 1;
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      for (const listener of this.listeners) listener();
    });
  }

  // --- what is shown

  get timed() {
    return !this.pasted || this.facts?.timed !== false;
  }

  /** Seconds from the first to the last moment. */
  get span() {
    const facts = this.facts ?? {};
    const known = [this.head?.seconds ?? 0, facts.timings?.seconds ?? 0, ...(facts.bars ?? []).map((bar) => bar.end)];
    const running = facts.running ? Math.max(0, Date.now() / 1000 - facts.started) : 0;
    return Math.max(0.001, running, ...known);
  }

  /** All bars of the waterfall, in the order of their begin. */
  get bars() {
    const bars = [];
    for (const attempt of this.head?.attempts ?? []) {
      const last = attempt.last_byte >= 0 ? attempt.last_byte : attempt.at;
      const label = attempt.upstream || attempt.dialect;
      if (attempt.first_byte > attempt.at) {
        bars.push({ kind: "wait", label: `${label}: first byte`, begin: attempt.at, end: attempt.first_byte, first: -1, last: -1 });
      }
      if (attempt.first_byte >= 0 && this.timed) {
        bars.push({ kind: "attempt", label, begin: attempt.first_byte, end: last, first: -1, last: -1, note: `${attempt.frames} frames` });
      }
    }
    push(bars, this.facts?.bars ?? []);
    push(bars, this.blocks);
    return bars.sort((one, two) => one.begin - two.begin || (one.first ?? -1) - (two.first ?? -1) || two.end - one.end);
  }

  /** The rows that belong together with one row: for each column a range [first, last], or null. */
  linked(column, row) {
    if (column === "upstream") {
      const events = this.events.from(row);
      return { upstream: [row, row], events, client: this.clientOf(events) };
    }
    if (column === "events") {
      const source = this.events.link[row] ?? -1;
      return { upstream: source < 0 ? null : [source, source], events: [row, row], client: this.clientOf([row, row]) };
    }
    const event = this.client.link[row] ?? -1;
    const source = event < 0 ? -1 : (this.events.link[event] ?? -1);
    return { upstream: source < 0 ? null : [source, source], events: event < 0 ? null : [event, event], client: [row, row] };
  }

  clientOf(events) {
    if (!events) return null;
    let first = -1;
    let last = -1;
    for (let event = events[0]; event <= events[1] && event - events[0] < 1000; event++) {
      const range = this.client.from(event);
      if (!range) continue;
      if (first < 0) first = range[0];
      last = range[1];
    }
    return first < 0 ? null : [first, last];
  }

  /** The words of the answer, for comparing two turns. */
  get answer() {
    const pieces = [];
    for (const text of this.events.text) {
      if (text.startsWith('{"type":"text_delta"')) pieces.push(parsed(text)?.text ?? "");
    }
    return pieces.join("");
  }
}

export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // it was cut, because it is long
  }
}

/** The type of an event, of its line of JSON. */
export function typeOf(text) {
  const end = text.indexOf('"', 9);
  return text.startsWith('{"type":"') && end > 0 ? text.slice(9, end) : "event";
}

const KINDS = [
  ["text_", "text"],
  ["reasoning_", "reasoning"],
  ["tool_call_", "call"],
  ["tool_result", "result"],
  ["stream_error", "error"],
];

/** The kind of block that an event belongs to: the name of a colour. */
export function kindOf(type) {
  return KINDS.find(([prefix]) => type.startsWith(prefix))?.[1] ?? "other";
}

/** The values of an answer that has one JSON value on each line. */
async function* jsonLines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      let begin = 0;
      let end = value.indexOf("\n");
      while (end >= 0) {
        pieces.push(value.slice(begin, end));
        yield JSON.parse(pieces.join(""));
        pieces = [];
        begin = end + 1;
        end = value.indexOf("\n", begin);
      }
      if (begin < value.length) pieces.push(value.slice(begin));
    }
    const rest = pieces.join("");
    if (rest.trim()) yield JSON.parse(rest);
  } finally {
    reader.cancel().catch(() => {});
  }
}
