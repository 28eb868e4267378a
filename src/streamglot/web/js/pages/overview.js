// The page at #/overview: running requests, numbers of the last hour, upstreams, approvals, errors. One live stream updates it.

import { html, useEffect, useState } from "../../vendor/htm-preact.js";
import { request } from "../api.js";
import { ApprovalCard } from "../chat/messages.js";
import { overviewFeed as feed } from "../feed.js";
import { useStore } from "../lib/store.js";
import { href } from "../router.js";
import { Glyph, IconButton, ago, compact, duration, money, plain, toast } from "../ui.js";

const MAX_BATCHES = 8;
const BATCH_MILLISECONDS = 1000; // at most one question a second while requests end
const STATES = { closed: ["good", "ready"], half_open: ["warn", "tried again"], open: ["bad", "resting"] };

export function OverviewPage() {
  useStore(feed);
  useEffect(() => feed.use(), []);
  const { state, problem } = feed;
  if (!state) {
    return html`<main class="page"><div class="empty"><p>${problem ? problem.message : "Asking the gateway…"}</p></div></main>`;
  }
  const { totals } = state;
  return html`<main class="page overview">
    <div class="overview-column">
      <header class="row">
        <h1>Overview</h1>
        <span class="spacer"></span>
        <span class="live-mark small muted"><span class=${`dot ${problem ? "bad" : "good"}`}></span>${problem ? "The feed is interrupted" : "Live"}</span>
      </header>
      <p class="muted small">
        ${state.operator ? "All requests of this process" : "The requests of your key"} in the last hour. streamglot ${state.version}, started ${ago(state.since)}.
      </p>
      ${state.approvals.length
        ? html`<section class="panel" aria-label="Pending approvals">
            <h2>Waiting for approval</h2>
            ${state.approvals.map((asked) => html`<${ApprovalCard} key=${asked.id} asked=${asked} />`)}
          </section>`
        : null}
      <dl class="tiles">
        <${Tile} title="Open now" value=${plain(state.open_count)} />
        <${Tile} title="Requests" value=${compact(totals.requests)} />
        <${Tile} title="Errors" value=${compact(totals.errors)} kind=${totals.errors ? "bad" : ""} />
        <${Tile} title="Tokens in" value=${compact(totals.input_tokens)} />
        <${Tile} title="Tokens out" value=${compact(totals.output_tokens)} />
        <${Tile} title="Cost" value=${money(totals.cost)} />
        <${Tile} title="First event, median" value=${duration(totals.p50)} />
        <${Tile} title="First event, p95" value=${duration(totals.p95)} />
      </dl>
      <${Minutes} minutes=${state.minutes} />
      <${OpenStreams} state=${state} />
      <${Batches} finished=${totals.requests} />
      <div class="panels">
        <${Groups} title="By model" rows=${state.by_model} />
        <${Groups} title="By upstream" rows=${state.by_upstream} none="none was asked" />
        ${state.operator && state.by_key.some((row) => row.name) ? html`<${Groups} title="By key" rows=${state.by_key} none="without a key" />` : null}
        ${state.upstreams.length ? html`<${Upstreams} rows=${state.upstreams} />` : null}
      </div>
      <${Errors} state=${state} />
    </div>
  </main>`;
}

function Tile({ title, value, kind = "" }) {
  return html`<div class="tile card">
    <dt>${title}</dt>
    <dd class=${`number ${kind}`}>${value}</dd>
  </div>`;
}

/** Requests of each of the last sixty minutes; errors stand out in their colour. */
function Minutes({ minutes }) {
  const most = Math.max(4, ...minutes.map((minute) => minute.requests));
  const sum = minutes.reduce((total, minute) => total + minute.requests, 0);
  return html`<figure class="minutes card">
    <figcaption class="label">Requests a minute<span class="spacer"></span><span class="number">${most === 4 ? "" : `max: ${plain(most)}`}</span></figcaption>
    <svg viewBox="0 0 600 72" preserveAspectRatio="none" role="img" aria-label=${`${plain(sum)} requests in the last hour`}>
      ${minutes.map((minute, number) => {
        const height = (72 * minute.requests) / most;
        const bad = (72 * minute.errors) / most;
        return html`<g key=${number}>
          <rect class="bar" x=${number * 10 + 1} y=${72 - height} width="8" height=${height} />
          <rect class="bar bad" x=${number * 10 + 1} y=${72 - bad} width="8" height=${bad} />
        </g>`;
      })}
    </svg>
    <div class="row small muted"><span>60 min ago</span><span class="spacer"></span><span>now</span></div>
  </figure>`;
}

function OpenStreams({ state }) {
  const [words, setWords] = useState("");
  const wanted = words.trim().toLowerCase();
  const rows = state.open.filter((row) => !wanted || `${row.model} ${row.upstream} ${row.key} ${row.dialect} ${row.request_id}`.toLowerCase().includes(wanted));
  const stop = (row) => request(`/overview/${encodeURIComponent(row.request_id)}/stop`, { method: "POST" }).catch((error) => toast(error.message));
  return html`<section class="panel" aria-label="Open streams">
    <div class="row">
      <h2>Open streams</h2>
      <span class="spacer"></span>
      <label class="search"><${Glyph} name="search" /><input class="input" type="search" aria-label="Filter open streams" placeholder="Filter" value=${words} onInput=${(event) => setWords(event.target.value)} /></label>
    </div>
    ${rows.length === 0
      ? html`<p class="nothing card muted small">
          ${state.open_count ? "No open stream matches the filter." : "No request is running. Requests of all clients appear here while they run."}
        </p>`
      : html`<div class="table card" tabindex="0" role="region" aria-label="Open streams, table">
          <table>
            <thead>
              <tr>
                <th>Model</th>
                <th>Upstream</th>
                <th>Dialect</th>
                ${state.operator ? html`<th>Key</th>` : null}
                <th class="right">Running</th>
                <th class="right">First event</th>
                <th class="right">Events</th>
                <th><span class="hidden-text">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              ${rows.map(
                (row) =>
                  html`<tr key=${row.request_id}>
                    <td class="cut">${row.turn_id ? html`<a href=${href("inspect", row.turn_id)}>${row.model || "?"}</a>` : row.model || "?"}</td>
                    <td class="cut">${row.upstream || "waiting"}</td>
                    <td class="cut">${row.dialect}</td>
                    ${state.operator ? html`<td class="cut">${row.key || "–"}</td>` : null}
                    <td class="right number">${duration(row.seconds)}</td>
                    <td class="right number">${duration(row.first_event)}</td>
                    <td class="right number">${plain(row.events)}</td>
                    <td class="right"><${IconButton} tiny name="stop" label=${`Stop ${row.model}`} onClick=${() => stop(row)} /></td>
                  </tr>`,
              )}
            </tbody>
          </table>
        </div>`}
  </section>`;
}

/** The newest batches, asked for again as requests end. A gateway without batches has no such address, and nothing is shown. */
function Batches({ finished }) {
  const [batches, setBatches] = useState([]);
  useEffect(() => {
    const timer = setTimeout(
      () => request(`/v1/batches?limit=${MAX_BATCHES}`).then((found) => setBatches(found?.data ?? []), () => setBatches([])),
      batches.length ? BATCH_MILLISECONDS : 0,
    );
    return () => clearTimeout(timer);
  }, [finished]);
  if (!batches.length) return null;
  return html`<section class="panel" aria-label="Batches">
    <h2>Batches</h2>
    <ul class="card batches">
      ${batches.map((batch) => {
        const { total = 0, completed = 0, failed = 0 } = batch.request_counts ?? {};
        return html`<li key=${batch.id}>
          <div class="row"><span class="mono cut">${batch.id}</span><span class="badge">${batch.status}</span><span class="spacer"></span><span class="muted number">${plain(completed + failed)} of ${plain(total)}${failed ? `, ${plain(failed)} failed` : ""}</span></div>
          <progress max=${Math.max(1, total)} value=${completed + failed} aria-label=${`Progress of ${batch.id}`}></progress>
        </li>`;
      })}
    </ul>
  </section>`;
}

function Groups({ title, rows, none = "not named" }) {
  const most = Math.max(1, ...rows.map((row) => row.requests));
  return html`<section class="panel" aria-label=${title}>
    <h2>${title}</h2>
    ${rows.length === 0
      ? html`<p class="nothing card muted small">No request has ended in the last hour.</p>`
      : html`<div class="table card" tabindex="0" role="region" aria-label=${`${title}, table`}>
          <table>
            <thead>
              <tr>
                <th>Name</th>
                <th class="right">Requests</th>
                <th class="right">Errors</th>
                <th class="right">Tokens</th>
                <th class="right">Cost</th>
                <th class="right">p50</th>
                <th class="right">p95</th>
              </tr>
            </thead>
            <tbody>
              ${rows.map(
                (row) =>
                  html`<tr key=${row.name}>
                    <td class="cut named"><meter min="0" max=${most} value=${row.requests} aria-label=${`Share of ${row.name || none}`}></meter>${row.name || none}</td>
                    <td class="right number">${plain(row.requests)}</td>
                    <td class=${`right number ${row.errors ? "bad-text" : "muted"}`}>${plain(row.errors)}</td>
                    <td class="right number">${compact(row.input_tokens + row.output_tokens)}</td>
                    <td class="right number">${money(row.cost)}</td>
                    <td class="right number">${duration(row.p50)}</td>
                    <td class="right number">${duration(row.p95)}</td>
                  </tr>`,
              )}
            </tbody>
          </table>
        </div>`}
  </section>`;
}

function Upstreams({ rows }) {
  return html`<section class="panel" aria-label="Upstreams">
    <h2>Upstreams</h2>
    <ul class="card upstreams">
      ${rows.map((row) => {
        const [kind, words] = STATES[row.state] ?? ["", row.state];
        return html`<li key=${row.name}>
          <span class=${`dot ${kind}`}></span><strong class="cut">${row.name}</strong><span class="muted small cut">${row.dialect}, ${row.place}</span><span class="spacer"></span
          ><span class=${`badge ${kind}`}>${words}${row.state === "open" ? `, ${duration(row.wait)} left` : ""}</span>
        </li>`;
      })}
    </ul>
  </section>`;
}

function Errors({ state }) {
  if (!state.last_errors.length) return null;
  return html`<section class="panel" aria-label="Last errors">
    <h2>Last errors</h2>
    <p class="row codes">${state.errors.map((one) => html`<span class="badge bad" key=${one.code}>${one.code} <span class="number">${plain(one.count)}</span></span>`)}</p>
    <ul class="card errors">
      ${state.last_errors.map(
        (one) =>
          html`<li key=${`${one.at} ${one.request_id}`}>
            <div class="row"><span class="mono">${one.error}</span><span class="muted small cut">${one.model || "no model"}${one.upstream ? `, ${one.upstream}` : ""}</span><span class="spacer"></span><span class="muted small number">${ago(one.at)}</span></div>
            <p class="small plain-text">${one.message}</p>
            ${one.turn_id ? html`<a class="small" href=${href("inspect", one.turn_id)}>Inspect</a>` : null}
          </li>`,
      )}
    </ul>
  </section>`;
}
