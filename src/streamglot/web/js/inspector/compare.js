// Two turns side by side: figures, waterfalls on one axis, answers and requests.

import { html, useState } from "../../vendor/htm-preact.js";
import { duration, money, plain } from "../ui.js";
import { inOrderOf, SideBySide } from "./requests.js";
import { Waterfall } from "./waterfall.js";

const FIGURES = [
  ["Model", (data) => data.facts?.model],
  ["Upstream", (data) => data.facts?.upstream],
  ["Dialects", (data) => [data.facts?.dialects?.upstream, data.facts?.dialects?.client].filter(Boolean).join(" → ")],
  ["Ending", (data) => data.facts?.ending || "running"],
  ["First byte", (data) => data.head?.first_byte, duration],
  ["First event", (data) => data.facts?.timings?.first_event, duration],
  ["Longest gap", (data) => data.facts?.timings?.longest_gap, duration],
  ["Duration", (data) => data.facts?.timings?.seconds, duration],
  ["Events", (data) => data.events.length, plain],
  ["Bytes from the upstream", (data) => data.head?.bytes?.upstream, plain],
  ["Bytes to the client", (data) => data.head?.bytes?.client, plain],
  ["Input tokens", (data) => data.facts?.usage?.input_tokens, plain],
  ["Output tokens", (data) => data.facts?.usage?.output_tokens, plain],
  ["Cost", (data) => data.facts?.cost, money],
];
const PARTS = { figures: "Figures", answer: "Answers", client: "Requests of the clients", upstream: "Requests to the upstreams" };

export function Compare({ one, two }) {
  const [part, setPart] = useState("figures");
  if (two.state === "failed") return html`<div class="empty"><p role="alert">${two.error?.message}</p></div>`;
  // Shown while it is read, it would move under the pointer with every row of a waterfall.
  if ([one, two].some((data) => data.state === "loading")) return html`<div class="empty"><p>Reading both turns…</p></div>`;
  const span = Math.max(one.span, two.span);
  const sent = (data) => data.facts?.requests?.upstream?.at(-1)?.body ?? null;
  const given = (data) => data.facts?.requests?.client?.body ?? null;
  const texts = {
    answer: (data) => data.answer,
    client: (data) => JSON.stringify(inOrderOf(given(data), given(one)), null, 2),
    upstream: (data) => JSON.stringify(inOrderOf(sent(data), sent(one)), null, 2),
  };
  return html`<div class="compare">
    <${Waterfall} data=${one} span=${span} title="This turn" />
    <${Waterfall} data=${two} span=${span} title="Other turn" />
    <div class="row wrap" role="group" aria-label="What to compare">
      ${Object.entries(PARTS).map(
        ([name, words]) => html`<button key=${name} type="button" class="button tiny" aria-pressed=${part === name ? "true" : "false"} onClick=${() => setPart(name)}>${words}</button>`,
      )}
    </div>
    ${part === "figures"
      ? html`<table class="plain-table figures-table"><thead><tr><th></th><th>This turn</th><th>Other turn</th><th>Difference</th></tr></thead>
          <tbody>${FIGURES.map(([words, get, show]) => figure(words, get(one), get(two), show))}</tbody></table>`
      : html`<${SideBySide} left=${texts[part](one)} right=${texts[part](two)} leftTitle="This turn" rightTitle="Other turn" />`}
  </div>`;
}

function figure(words, left, right, show = (value) => value ?? "–") {
  const numbers = typeof left === "number" && typeof right === "number";
  const shown = (value) => (value == null || value === -1 ? "–" : show(value));
  const factor = numbers && left > 0 && right > 0 && left !== right ? `${right > left ? "+" : "−"}${Math.round(Math.abs(right / left - 1) * 100)} %` : "";
  const differs = !numbers && left !== right ? html`<span class="badge warn">differs</span>` : factor;
  return html`<tr key=${words}><th scope="row">${words}</th><td class="number">${shown(left)}</td><td class="number">${shown(right)}</td><td class="number muted">${differs}</td></tr>`;
}
