// The request as the client sent it and as the upstream got it, beside each other; and commands that send it again.

import { html, useEffect, useMemo, useState } from "../../vendor/htm-preact.js";
import { send } from "../api.js";
import { CopyButton, Dialog } from "../ui.js";
import { sideBySide } from "./diff.js";

const pretty = (value) => JSON.stringify(value, null, 2) ?? "";

/** A value with the fields of its objects in the order of another value's: a changed order is not a difference. */
export function inOrderOf(value, other) {
  if (Array.isArray(value)) return value.map((inner, index) => inOrderOf(inner, other?.[index]));
  if (value === null || typeof value !== "object") return value;
  const known = other !== null && typeof other === "object" && !Array.isArray(other) ? Object.keys(other) : [];
  const names = [...known.filter((name) => Object.hasOwn(value, name)), ...Object.keys(value).filter((name) => !known.includes(name))];
  return Object.fromEntries(names.map((name) => [name, inOrderOf(value[name], other?.[name])]));
}

export function Requests({ facts }) {
  const { client, upstream } = facts?.requests ?? { client: null, upstream: [] };
  const [number, setNumber] = useState(upstream.length - 1);
  const sent = upstream[Math.max(0, Math.min(number, upstream.length - 1))];
  if (!client && !sent) {
    return html`<div class="empty"><p>
      The request of this turn was not stored. Set <code>content = true</code> under <code>[store]</code> for what was said, and
      <code>raw = true</code> for the bytes.
    </p></div>`;
  }
  const left = client ? pretty(client.body) : "";
  const right = sent?.body ? pretty(inOrderOf(sent.body, client?.body)) : "";
  return html`<div class="requests">
    ${upstream.length > 1
      ? html`<label class="field inline"><span>Attempt</span>
          <select class="select" value=${number} onChange=${(event) => setNumber(Number(event.currentTarget.value))}>
            ${upstream.map((one, index) => html`<option key=${index} value=${index}>${index + 1} · ${one.upstream} · ${one.model}</option>`)}
          </select></label>`
      : null}
    <${SideBySide}
      left=${left}
      right=${right}
      leftTitle=${client ? `As the client sent it · ${client.dialect}` : "As the client sent it"}
      rightTitle=${sent ? `As the upstream got it · ${sent.upstream ?? ""} · ${sent.dialect}` : "As the upstream got it"}
      leftNote=${client && !client.recorded ? "built again from the stored request" : ""}
      rightNote=${sent && !sent.recorded ? "built again from the stored request" : (sent?.dropped ?? []).length ? `dropped: ${sent.dropped.join(", ")}` : (sent?.url ?? "")}
    />
  </div>`;
}

/** Two texts beside each other, with what differs marked. */
export function SideBySide({ left, right, leftTitle, rightTitle, leftNote = "", rightNote = "" }) {
  const rows = useMemo(() => sideBySide(left, right), [left, right]);
  const changed = rows.filter((row) => !row.same).length;
  return html`<div class="diff" role="table" aria-label=${`${leftTitle} and ${rightTitle}`}>
    <div class="diff-row head" role="row">
      <div role="columnheader"><b>${leftTitle}</b> ${leftNote ? html`<span class="muted small">${leftNote}</span>` : null}</div>
      <div role="columnheader"><b>${rightTitle}</b> ${rightNote ? html`<span class="muted small cut">${rightNote}</span>` : null}</div>
    </div>
    ${rows.map(
      (row, index) => html`<div key=${index} class=${`diff-row ${row.same ? "" : "changed"}`} role="row">
        <code role="cell" class=${row.same || row.left === null ? "" : "gone"}>${row.left ?? ""}</code>
        <code role="cell" class=${row.same || row.right === null ? "" : "added"}>${row.right ?? ""}</code>
      </div>`,
    )}
    <p class="muted small diff-count">${changed ? `${changed} lines differ` : "No difference"}</p>
  </div>`;
}

export function CurlDialog({ turn, onClose }) {
  const [of, setOf] = useState("client");
  const [text, setText] = useState("");
  useEffect(() => {
    let current = true;
    setText("");
    send(`/turns/${encodeURIComponent(turn)}/inspect/curl?of=${of}`)
      .then((response) => response.text())
      .catch((error) => `# ${error.message}`)
      .then((found) => current && setText(found));
    return () => (current = false);
  }, [of, turn]);
  return html`<${Dialog} title="Send this request again" onClose=${onClose}>
    <div class="row" role="group" aria-label="To whom">
      <button type="button" class="button tiny" aria-pressed=${of === "client"} onClick=${() => setOf("client")}>To this gateway</button>
      <button type="button" class="button tiny" aria-pressed=${of === "upstream"} onClick=${() => setOf("upstream")}>To the upstream</button>
      <span class="spacer"></span>
      <${CopyButton} text=${() => text} label="Copy the command" />
    </div>
    <pre class="curl" tabindex="0">${text || "…"}</pre>
    <p class="muted small">Keys are shell variables: set them before you run it.</p>
    <div class="row end"><button type="button" class="button" onClick=${onClose}>Close</button></div>
  <//>`;
}
