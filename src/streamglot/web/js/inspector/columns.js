// Three columns, linked by number: upstream bytes, our events, client bytes; and the selected moment in full.

import { html, useRef } from "../../vendor/htm-preact.js";
import { CopyButton, plain } from "../ui.js";
import { COLUMNS, FOLDED, kindOf, LOST, OWN, parsed, typeOf } from "./data.js";
import { moment } from "./time.js";
import { VirtualList } from "./virtual.js";

const TITLES = { upstream: "Upstream bytes", events: "Events", client: "Client bytes" };
const REPEATED = 40; // characters that must be the same as in the frame before, to be left out
const CONTEXT = 14; // of them, characters that are shown before the first different one
const KEPT = 6; // characters of the beginning that are always shown: "data: "
const MOST_IN_FULL = 30; // rows of one column that are shown in full: a frame gives a few events

/** ``selection`` is {column, row} or null. */
export function Columns({ data, selection, onSelect, shown, onShow, names, follow }) {
  const root = useRef(null);
  const linked = selection ? data.linked(selection.column, selection.row) : {};
  const keys = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !selection || event.target.getAttribute("role") !== "listbox") return;
    const next = COLUMNS[COLUMNS.indexOf(selection.column) + step];
    if (!next || !data[next].length) return;
    event.preventDefault();
    onSelect({ column: next, row: linked[next]?.[0] ?? nearest(data, next, selection) });
    root.current.querySelector(`[data-column="${next}"] .vlist`)?.focus();
  };
  return html`<div class="trace-columns" ref=${root} onKeyDown=${keys}>
    <div class="trace-tabs" role="group" aria-label="Columns">
      ${COLUMNS.map(
        (name) => html`<button key=${name} type="button" class="button tiny" aria-pressed=${shown === name ? "true" : "false"} onClick=${() => onShow(name)}>
          ${TITLES[name]} <span class="muted number">${plain(data[name].length)}</span>
        </button>`,
      )}
    </div>
    ${COLUMNS.map(
      (name) => html`<section key=${name} class=${`trace-column ${shown === name ? "shown" : ""}`} data-column=${name} aria-label=${TITLES[name]}>
        <header class="trace-head">
          <h2>${TITLES[name]}</h2>
          ${names[name] ? html`<span class="badge">${names[name]}</span>` : null}
          <span class="spacer"></span>
          <span class="muted small number">${plain(data[name].length)}</span>
        </header>
        <${List} data=${data} name=${name} range=${linked[name]} selection=${selection} onSelect=${onSelect} follow=${follow} />
      </section>`,
    )}
  </div>`;
}

function List({ data, name, range, selection, onSelect, follow }) {
  const column = data[name];
  const active = selection?.column === name ? selection.row : -1;
  const near = selection && !range && column.length ? nearest(data, name, selection) : undefined;
  const row = name === "events" ? (index) => eventRow(data, index) : (index) => byteRow(data, column, index);
  return html`<${VirtualList}
    name=${TITLES[name]}
    count=${column.length}
    row=${row}
    rowClass=${(index) => `${range && index >= range[0] && index <= range[1] ? "linked" : ""} ${index === active ? "active" : ""}`}
    active=${active}
    reveal=${range ? range[0] : near}
    onSelect=${(index) => onSelect({ column: name, row: index })}
    follow=${follow}
    empty=${emptyWords(data, name)}
  />`;
}

/** The row of a column that was the last one when the selected row came: for a selection that has no linked row in that column. */
function nearest(data, name, selection) {
  return data[name].rowAt(data[selection.column].at[selection.row]);
}

function emptyWords(data, name) {
  if (data.state === "loading" || data.state === "live") return "Waiting for the first bytes…";
  if (name === "upstream") {
    return html`The bytes of this turn were not recorded. Set <code>raw = true</code> under <code>[store]</code> to record future turns.`;
  }
  return name === "client" ? "No stream was sent to the client." : "There are no events.";
}

function byteRow(data, column, index) {
  return html`<span class="r-number">${index + 1}</span><span class="r-time">${moment(column.at[index] / 1e6, data.timed)}</span
    ><code class="r-text">${oneLine(column.text[index], column.text[index - 1])}</code>`;
}

function eventRow(data, index) {
  const column = data.events;
  const text = column.text[index];
  const type = typeOf(text);
  const mark = column.mark[index];
  return html`<span class="r-number">${index + 1}</span><span class="r-time">${moment(column.at[index] / 1e6, data.timed)}</span
    ><span class=${`r-type k-${kindOf(type)}`}>${type}</span><code class="r-text">${wordsOf(text, type)}</code>${flags(mark)}`;
}

function flags(mark) {
  return html`${mark & LOST ? html`<span class="badge bad" title="The client's dialect has no word for it">lost</span>` : null}${mark & FOLDED
    ? html`<span class="badge" title="The client's dialect says it in another form">folded</span>`
    : null}${mark & OWN ? html`<span class="badge warn" title="Created by a policy or a tool, not by an upstream frame">ours</span>` : null}`;
}

/** The content of an event without its type: the text of a delta, or the fields of another event. */
function wordsOf(text, type) {
  const rest = text.slice(`{"type":"${type}"`.length, -1).replace(/^,/, "");
  if (type.endsWith("_delta")) {
    const value = parsed(text);
    if (value) return JSON.stringify(value.text ?? value.args ?? "");
  }
  return rest.length > 400 ? `${rest.slice(0, 400)}…` : rest;
}

/** A frame on one line, without the beginning that it shares with the frame before: frames differ near their end. */
function oneLine(frame, frameBefore = "") {
  const [text, before] = [frame, frameBefore].map((one) => one.replace(/^id: \d+\n/, ""));
  const most = Math.min(text.length, before.length);
  let same = 0;
  while (same < most && text[same] === before[same]) same++;
  const begin = same > REPEATED ? same - CONTEXT : 0;
  const short = begin ? `${text.slice(0, KEPT)}…${text.slice(begin, begin + 400)}` : text.slice(0, 400);
  return short.replaceAll("\n", " ⏎ ");
}

/** The selected moment: the linked rows of all three columns, in full. */
export function Detail({ data, selection, names }) {
  if (!selection) {
    return html`<p class="detail-hint muted small">
      Select a frame, an event or a block: what belongs to it is marked in every column. <kbd>↑</kbd> <kbd>↓</kbd> move,${" "}
      <kbd>←</kbd> <kbd>→</kbd> change the column.
    </p>`;
  }
  const linked = data.linked(selection.column, selection.row);
  return html`<div class="detail" aria-label="The selected moment">
    ${COLUMNS.map((name) => {
      const text = fullText(data, name, linked[name]);
      return html`<section key=${name} class=${`detail-pane ${name === selection.column ? "shown" : ""}`} aria-label=${`${TITLES[name]} of the moment`}>
        <header>
          <h2>${TITLES[name]}</h2>
          <span class="muted small number">${rangeWords(linked[name])}</span>
          <span class="muted small">${names[name]}</span>
          <span class="spacer"></span>
          ${text ? html`<${CopyButton} text=${text} label=${`Copy ${TITLES[name].toLowerCase()}`} />` : null}
        </header>
        <pre tabindex="0">${text || nothingWords(data, name, selection)}</pre>
      </section>`;
    })}
  </div>`;
}

function rangeWords(range) {
  if (!range) return "";
  return range[0] === range[1] ? `#${range[0] + 1}` : `#${range[0] + 1}–${range[1] + 1}`;
}

function nothingWords(data, name, selection) {
  if (name === "upstream") return data.upstream.length ? "No frame: a policy, a tool or the gateway made this event." : "Not recorded.";
  if (name === "events") return "No event: this frame says nothing that the vocabulary has a word for.";
  const mark = selection.column === "events" ? data.events.mark[selection.row] : 0;
  return mark & LOST ? "Lost: this dialect cannot express it." : "Not written separately: it is part of a later frame.";
}

function fullText(data, name, range) {
  if (!range) return "";
  const column = data[name];
  const pieces = [];
  for (let row = range[0]; row <= range[1] && row - range[0] < MOST_IN_FULL; row++) {
    const text = column.text[row];
    const value = name === "events" ? parsed(text) : null;
    pieces.push(value ? JSON.stringify(value, null, 2) : text);
  }
  const left = range[1] - range[0] + 1 - pieces.length;
  return pieces.join("\n\n") + (left > 0 ? `\n\n… and ${left} more` : "");
}
