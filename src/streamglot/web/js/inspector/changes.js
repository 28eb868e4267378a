// Events and parameters that were lost, folded, dropped or changed, with the original and the result.

import { html } from "../../vendor/htm-preact.js";
import { duration, plain } from "../ui.js";
import { OWN } from "./data.js";

const SHOWN = 200; // of each list

/** How many changes there are, for the tab. */
export function changeCount(data) {
  const facts = data.facts ?? {};
  const lost = Object.values(data.head?.lost ?? {}).reduce((sum, count) => sum + count, 0);
  return (facts.verdicts?.length ?? 0) + lost + (data.head?.dropped_events ?? 0) + (facts.more?.dropped?.length ?? 0) + (facts.failures?.length ?? 0);
}

export function Changes({ data, onSelect }) {
  const facts = data.facts ?? {};
  const head = data.head ?? {};
  const own = data.events.mark.flatMap((mark, row) => (mark & OWN ? [row] : [])).slice(0, SHOWN);
  const parts = [
    verdicts(facts.verdicts ?? []),
    changed(data, own, onSelect),
    counted("Lost", "The client's dialect has no word for these events. They were not written.", head.lost, {}),
    counted("Folded", "The client's dialect has no events of this kind. Their content is written in another form.", head.folded, head.how_folded ?? {}),
    dropped(facts.more?.dropped ?? []),
    failures(facts.failures ?? []),
    tools(facts.more?.tools ?? []),
  ].filter(Boolean);
  if (!parts.length) {
    return html`<div class="empty"><h2>Nothing was changed</h2><p>
      Every event of the upstream was passed on unchanged, and the client's dialect can express all of them.
    </p></div>`;
  }
  return html`<div class="changes">${parts}</div>`;
}

function verdicts(list) {
  if (!list.length) return null;
  return html`<section key="verdicts"><h2>Policies</h2>
    ${list.slice(0, SHOWN).map(
      (fact, index) => html`<article key=${index} class="card verdict">
        <header class="row">
          <b>${fact.policy}</b><span class="badge ${fact.verdict === "forward" ? "" : "warn"}">${fact.verdict}</span>
          ${fact.dry_run ? html`<span class="badge">dry run</span>` : null}
          <span class="muted small">${[fact.direction, fact.kind, fact.tool, fact.label].filter(Boolean).join(" · ")}</span>
          <span class="spacer"></span>
          <span class="muted small number">${fact.count > 1 ? `${fact.count} times ` : ""}${fact.held_seconds ? `held ${duration(fact.held_seconds)}` : ""}</span>
        </header>
        ${fact.reason ? html`<p class="small">${fact.reason}</p>` : null}
        ${fact.original || fact.changed
          ? html`<div class="before-after"><div><span class="label">Original</span><pre tabindex="0">${fact.original ?? ""}</pre></div>
              <div><span class="label">Became</span><pre tabindex="0">${fact.changed ?? ""}</pre></div></div>`
          : null}
      </article>`,
    )}
  </section>`;
}

function changed(data, own, onSelect) {
  if (!own.length && !data.removed.length) return null;
  return html`<section key="changed"><h2>Events that a stage changed</h2>
    <div class="before-after">
      <div><span class="label">Received from the upstream and removed (${plain(data.head?.dropped_events ?? 0)})</span>
        <ol class="lines">${data.removed.slice(0, SHOWN).map(
          (one, index) => html`<li key=${index}><button type="button" class="link-row" onClick=${() => onSelect({ column: "upstream", row: Math.max(0, one.frame) })}>
            <span class="r-number">${one.frame + 1}</span><code>${one.text}</code></button></li>`,
        )}</ol></div>
      <div><span class="label">Added by streamglot</span>
        <ol class="lines">${own.map(
          (row) => html`<li key=${row}><button type="button" class="link-row" onClick=${() => onSelect({ column: "events", row })}>
            <span class="r-number">${row + 1}</span><code>${data.events.text[row]}</code></button></li>`,
        )}</ol></div>
    </div>
  </section>`;
}

function counted(title, words, counts, how) {
  const names = Object.keys(counts ?? {});
  if (!names.length) return null;
  return html`<section key=${title}><h2>${title}</h2><p class="muted small">${words}</p>
    <table class="plain-table"><tbody>${names.map(
      (name) => html`<tr key=${name}><td class="mono">${name}</td><td class="number">${plain(counts[name])}</td><td class="muted small">${how[name] ?? ""}</td></tr>`,
    )}</tbody></table>
  </section>`;
}

function dropped(names) {
  if (!names.length) return null;
  return html`<section key="dropped"><h2>Parameters that the upstream lacks</h2>
    <p class="muted small">They were left out of the request.</p>
    <p class="row wrap">${names.map((name) => html`<span key=${name} class="badge warn mono">${name}</span>`)}</p></section>`;
}

function failures(list) {
  if (!list.length) return null;
  return html`<section key="failures"><h2>Failed attempts</h2>
    ${list.map(
      (one, index) => html`<article key=${index} class="card verdict"><header class="row"><b>${one.upstream}</b>
        <span class="badge bad">${one.status} ${one.code}</span><span class="muted small">${one.model}</span><span class="spacer"></span>
        <span class="muted small number">${duration(one.seconds)}</span></header>
        ${one.message ? html`<p class="small">${one.message}</p>` : null}</article>`,
    )}
  </section>`;
}

function tools(list) {
  if (!list.length) return null;
  return html`<section key="tools"><h2>Tools that ran</h2>
    <table class="plain-table"><tbody>${list.slice(0, SHOWN).map(
      (one, index) => html`<tr key=${index}><td class="mono">${one.name}</td><td><span class=${`badge ${one.is_error ? "bad" : "good"}`}>${one.is_error ? "error" : "ok"}</span></td>
        <td class="number">${duration(one.seconds)}</td><td class="muted small mono">${one.call_id}</td></tr>`,
    )}</tbody></table></section>`;
}
