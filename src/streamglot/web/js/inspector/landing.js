// The start page of the inspector: a form to paste or drop a stream, and the last turns.

import { html, useEffect, useState } from "../../vendor/htm-preact.js";
import { request } from "../api.js";
import { href } from "../router.js";
import { ago, duration, Glyph, plain } from "../ui.js";

const EXAMPLE = `data: {"id":"c1","object":"chat.completion.chunk","model":"qwen3","choices":[{"index":0,"delta":{"role":"assistant","content":"<think>The user wants the tide."}}]}

data: {"id":"c1","object":"chat.completion.chunk","model":"qwen3","choices":[{"index":0,"delta":{"content":"</think>I will look.\\n<tool_call>\\n{\\"name\\": \\"tides\\", \\"arguments\\""}}]}

data: {"id":"c1","object":"chat.completion.chunk","model":"qwen3","choices":[{"index":0,"delta":{"content":": {\\"port\\": \\"Bergen\\"}}\\n</tool_call>"}}]}

data: {"id":"c1","object":"chat.completion.chunk","model":"qwen3","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

`;
const BAD = new Set(["error", "truncated", "policy", "interrupted", "client_gone"]);

export function endingBadge(ending, running = !ending) {
  const kind = running ? "good" : BAD.has(ending) ? "bad" : "";
  return html`<span class=${`badge ${kind}`}>${running ? "running" : ending}</span>`;
}

/** ``onPaste`` gets the bytes of a stream and their name. */
export function Landing({ onPaste, choices, from, inband, onFrom, onInband }) {
  const [text, setText] = useState("");
  const [turns, setTurns] = useState(null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    let current = true;
    request("/turns?limit=60")
      .then((page) => current && setTurns(page.data))
      .catch((error) => current && (setTurns([]), setFailed(error.code === "store_off" ? "This gateway stores no turns: set store.url." : error.message)));
    return () => (current = false);
  }, []);
  return html`<div class="landing">
    <section class="landing-paste card" aria-labelledby="paste-title">
      <h1 id="paste-title">Inspect a stream</h1>
      <p class="muted">
        Paste the raw bytes of any provider’s stream, or drop a recording anywhere on this page. The dialect and the in-band notation
        are detected. Nothing is sent to any upstream.
      </p>
      <label class="field">
        <span>Raw stream</span>
        <textarea
          class="area mono"
          rows="9"
          spellcheck="false"
          placeholder=${'data: {"choices":[{"delta":{"content":"Hello"}}]}'}
          value=${text}
          onInput=${(event) => setText(event.currentTarget.value)}
        ></textarea>
      </label>
      <div class="row wrap">
        <label class="field inline"><span>Dialect</span>
          <select class="select" value=${from} onChange=${(event) => onFrom(event.currentTarget.value)}>
            <option value="">detected</option>
            ${(choices?.dialects ?? []).map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
            <option value="events">events</option>
          </select></label>
        <label class="field inline"><span>In-band format</span>
          <select class="select" value=${inband} onChange=${(event) => onInband(event.currentTarget.value)}>
            <option value="">detected</option>
            ${(choices?.inband ?? []).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
          </select></label>
        <span class="spacer"></span>
        <label class="button"><${Glyph} name="file" />Open a file
          <input type="file" class="hidden-text" onChange=${(event) => open(event.currentTarget.files, onPaste)} /></label>
        <button type="button" class="button" onClick=${() => setText(EXAMPLE)}>Example</button>
        <button type="button" class="button primary" disabled=${!text.trim()} onClick=${() => onPaste(new TextEncoder().encode(text), "pasted stream")}>
          Inspect
        </button>
      </div>
    </section>
    <section class="landing-turns" aria-labelledby="turns-title">
      <h2 id="turns-title">Recent turns</h2>
      ${failed ? html`<p class="muted small">${failed}</p>` : null}
      ${turns === null ? html`<p class="muted small">Loading…</p>` : turns.length ? turnList(turns) : failed ? null : noTurns()}
    </section>
  </div>`;
}

function turnList(turns) {
  return html`<ul class="turn-list">${turns.map(
    (turn) => html`<li key=${turn.id}><a class="turn-link" href=${href("inspect", turn.id)}>
      <span class="cut turn-title">${turn.title || "(no text)"}</span>
      <span class="turn-end">${endingBadge(turn.ending)}</span>
      <span class="muted small cut turn-more">${turn.model}${turn.upstream ? ` · ${turn.upstream}` : ""} · ${turn.dialects.client}</span>
      <span class="muted small number turn-when">${turn.duration == null ? "" : `${duration(turn.duration)} · `}${turn.usage?.output_tokens ? `${plain(turn.usage.output_tokens)} tok · ` : ""}${ago(turn.started)}</span>
    </a></li>`,
  )}</ul>`;
}

function noTurns() {
  return html`<div class="empty"><p>
    No turns yet. Everything that is asked through this gateway stands here: send a request, or try the <a href="#/chat">chat</a>.
  </p></div>`;
}

/** Reads dropped files: a recording, or a stream with its list of times (``NAME.times``) beside it. */
export async function open(files, onPaste) {
  const list = [...(files ?? [])];
  const main = list.find((file) => !file.name.endsWith(".times"));
  if (!main) return;
  const body = new Uint8Array(await main.arrayBuffer());
  const times = list.find((file) => file.name === `${main.name}.times`);
  onPaste(times ? withTimes(body, await times.text()) : body, main.name);
}

/** A stream and its times (``SECONDS BYTES`` a line) as one recording. */
function withTimes(body, times) {
  const lines = [];
  let place = 0;
  const add = (at, piece) => {
    if (piece.length) lines.push(JSON.stringify({ at, direction: "up", base64: base64(piece) }));
  };
  let at = 0;
  for (const line of times.split("\n")) {
    const [seconds, size] = line.trim().split(/\s+/).map(Number);
    if (!Number.isFinite(seconds) || !Number.isFinite(size)) continue;
    at = seconds;
    add(at, body.subarray(place, place + size));
    place += size;
  }
  add(at, body.subarray(place));
  return new TextEncoder().encode(lines.join("\n"));
}

function base64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
