// Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) out of text that comes in any pieces.

export class SseParser {
  #rest = "";
  #data = [];
  #event = "";
  #id = "";

  /** The events that are whole now, each as {id, event, data}. */
  feed(text) {
    const found = [];
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const line of lines) this.#line(line.endsWith("\r") ? line.slice(0, -1) : line, found);
    return found;
  }

  #line(line, found) {
    if (line === "") {
      if (this.#data.length) found.push({ id: this.#id, event: this.#event || "message", data: this.#data.join("\n") });
      this.#data = [];
      this.#event = "";
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
    else if (field === "id") this.#id = value;
  }
}
