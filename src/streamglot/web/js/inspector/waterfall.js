// The waterfall: every block, wait and attempt on one time axis, with a scrubber above it.

import { html, useMemo, useRef, useState } from "../../vendor/htm-preact.js";
import { IconButton } from "../ui.js";
import { moment, ticks } from "./time.js";
import { VirtualList } from "./virtual.js";

const BINS = 300;
const WORDS = {
  wait: "waiting",
  attempt: "upstream",
  text: "text",
  reasoning: "reasoning",
  call: "call",
  result: "tool result",
  judge: "judge",
  approval: "approval",
  tool: "tool run",
  failed: "failed attempt",
  error: "error",
  media: "media",
};
const COLOURS = { approval: "judge", tool: "result", failed: "error", attempt: "other", wait: "wait", media: "other" };
const GAPS_SHOWN = 6;
const ROWS_SHOWN = 6; // always: a height that grew with the rows would move everything below under the pointer
const NARROW = 900; // pixels: a phone has room for few numbers on the axis

export const wordOf = (bar) => WORDS[bar.kind] ?? String(bar.kind);

function labelOf(bar) {
  const more = [bar.choice ? `choice ${bar.choice}` : "", bar.step ? `step ${bar.step + 1}` : ""].filter(Boolean).join(", ");
  return [bar.label || wordOf(bar), more].filter(Boolean).join(" · ");
}

/** ``time`` is the selected moment in seconds, ``onTime`` receives a new one. ``span`` is the length of the axis, where it is not
 *  the data's own. ``title`` names the waterfall where there are two. */
export function Waterfall({ data, time, onTime, onBar, activeBar, span: given, title = "Waterfall" }) {
  const [zoom, setZoom] = useState(null);
  const root = useRef(null);
  const timed = data.timed;
  const span = given ?? data.span;
  const [begin, end] = zoom ?? [0, span];
  const bars = useMemo(() => data.bars, [data, data.version]);
  const narrow = innerWidth < NARROW;
  const place = (at) => `${(100 * (at - begin)) / (end - begin)}%`;
  const visible = (at) => at >= begin && at <= end;
  const change = (factor) => {
    const middle = time != null && visible(time) ? time : (begin + end) / 2;
    const size = Math.min(span, Math.max(span / 10_000, (end - begin) * factor));
    const left = Math.max(0, Math.min(span - size, middle - size * ((middle - begin) / (end - begin))));
    setZoom(size >= span * 0.999 ? null : [left, left + size]);
  };
  const wheel = (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    change(event.deltaY > 0 ? 1.25 : 0.8);
  };
  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") change(0.5);
    else if (event.key === "-") change(2);
    else if (event.key === "0") setZoom(null);
  };
  const head = data.head;
  const marks = timed
    ? [
        ["first byte", head?.first_byte],
        ["first event", head?.first_event ?? data.facts?.timings?.first_event],
      ].filter(([, at]) => at > 0 && visible(at))
    : [];
  const gaps = timed ? (head?.gaps ?? []).slice(0, GAPS_SHOWN).filter((gap) => gap.end > begin && gap.begin < end) : [];
  const track = (bar) => {
    const left = Math.max(begin, bar.begin);
    const right = Math.min(end, Math.max(bar.end, bar.begin));
    if (right < begin || left > end) return null;
    const late = (right - begin) / (end - begin) > (narrow ? 0.7 : 0.95) && (left - begin) / (end - begin) > 0.15;
    const size = bar.end - bar.begin;
    return html`<span
        class=${`wf-bar k-${COLOURS[bar.kind] ?? bar.kind} ${bar.broken ? "broken" : ""} ${bar.open ? "open" : ""}`}
        style=${{ left: place(left), width: `${(100 * (right - left)) / (end - begin)}%` }}
      ></span>
      <span class=${`wf-size ${late ? "late" : ""}`} style=${late ? { right: `calc(100% - ${place(left)} + 6px)` } : { left: `calc(${place(right)} + 6px)` }}>
        ${timed ? moment(size) : frameCount(size)}
      </span>`;
  };
  const row = (index) => {
    const bar = bars[index];
    return html`<span class="wf-label" title=${bar.note || labelOf(bar)}>
        <i class=${`dot-k k-${COLOURS[bar.kind] ?? bar.kind}`}></i><span class="cut">${labelOf(bar)}</span>
      </span>
      <span class="wf-track">${track(bar)}</span>`;
  };
  return html`<section class="waterfall" aria-label=${title} ref=${root} onWheel=${wheel} onKeyDown=${keys}>
    <div class="wf-head">
      <span class="wf-label muted">${timed ? "time" : "frames"}</span>
      <div class="wf-track wf-axis" aria-hidden="true">
        ${ticks(begin, end, narrow ? 3 : 7).map(
          (at) => html`<span key=${at} class="wf-tick" style=${{ left: place(at) }}>${timed ? tickLabel(at, end - begin) : `#${Math.round(at * 1000) + 1}`}</span>`,
        )}
      </div>
      <span class="wf-zoom">
        <${IconButton} tiny name="plus" label="Zoom in (+)" onClick=${() => change(0.5)} />
        <${IconButton} tiny name="minus" label="Zoom out (-)" disabled=${!zoom} onClick=${() => change(2)} />
      </span>
    </div>
    <div class="wf-head">
      <span class="wf-label muted">${title === "Waterfall" ? "bytes" : title}</span>
      <div class="wf-track wf-strip">
        <${Density} data=${data} begin=${begin} end=${end} />
        ${gaps.map(
          (gap) => html`<span
            key=${gap.begin}
            class="wf-gap"
            title=${`silent for ${moment(gap.end - gap.begin)}`}
            style=${{ left: place(Math.max(begin, gap.begin)), width: `${(100 * (Math.min(end, gap.end) - Math.max(begin, gap.begin))) / (end - begin)}%` }}
          ></span>`,
        )}
        ${marks.map(([name, at]) => html`<span key=${name} class="wf-mark" style=${{ left: place(at) }} title=${`${name}: ${moment(at)}`}></span>`)}
        ${onTime
          ? html`<input
              class="scrubber"
              type="range"
              min="0"
              max="1000"
              step="1"
              value=${time == null ? 0 : Math.round((1000 * (time - begin)) / (end - begin))}
              aria-label="Moment"
              aria-valuetext=${moment(time ?? 0, timed)}
              onInput=${(event) => onTime(begin + (Number(event.currentTarget.value) / 1000) * (end - begin))}
            />`
          : null}
      </div>
      <span class="wf-zoom"></span>
    </div>
    <div class="wf-rows" style=${{ height: `${ROWS_SHOWN * 26}px` }}>
      ${time != null && visible(time) ? html`<div class="wf-cursor-lane" aria-hidden="true"><i style=${{ left: place(time) }}></i></div>` : null}
      <${VirtualList}
        name=${`${title} blocks`}
        count=${bars.length}
        row=${row}
        rowClass=${(index) => (index === activeBar ? "active" : "")}
        active=${activeBar ?? -1}
        reveal=${activeBar}
        onSelect=${(index) => onBar?.(index, bars[index])}
        empty=${data.state === "done" ? "No blocks." : "Waiting for the first block…"}
      />
    </div>
  </section>`;
}

function frameCount(size) {
  const count = Math.round(size * 1000) + 1;
  return count === 1 ? "1 frame" : `${count} frames`;
}

function tickLabel(at, span) {
  if (at === 0) return "0";
  if (span < 0.02) return `${(at * 1000).toFixed(1)} ms`;
  if (span < 2) return `${Math.round(at * 1000)} ms`;
  return `${at.toFixed(span < 10 ? 1 : 0)} s`;
}

/** How much came from the upstream (above) and went to the client (below), over time. */
function Density({ data, begin, end }) {
  const up = useMemo(() => binned(data.upstream, begin, end), [data, data.version, begin, end]);
  const down = useMemo(() => binned(data.client, begin, end), [data, data.version, begin, end]);
  return html`<svg class="wf-density" viewBox=${`0 0 ${BINS} 40`} preserveAspectRatio="none" aria-hidden="true">
    <path class="up" d=${area(up, 20, -18)} />
    <path class="down" d=${area(down, 20, 18)} />
  </svg>`;
}

function binned(column, begin, end) {
  const bins = new Float64Array(BINS);
  const scale = BINS / ((end - begin) * 1e6);
  for (let row = 0; row < column.length; row++) {
    const bin = Math.floor((column.at[row] - begin * 1e6) * scale);
    if (bin >= 0 && bin <= BINS) bins[Math.min(bin, BINS - 1)] += column.text[row].length;
  }
  let most = 0;
  for (const bin of bins) most = Math.max(most, bin);
  return { bins, most };
}

function area({ bins, most }, middle, height) {
  if (!most) return "";
  const pieces = [`M0 ${middle}`];
  for (let bin = 0; bin < BINS; bin++) {
    const y = (middle + height * Math.sqrt(bins[bin] / most)).toFixed(1);
    pieces.push(`L${bin} ${y}L${bin + 1} ${y}`);
  }
  return `${pieces.join("")}L${BINS} ${middle}Z`;
}
