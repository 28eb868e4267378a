// The inspector: #/inspect, #/inspect/TURN, #/inspect/TURN?as=DIALECT&vs=OTHER_TURN

import { html, useEffect, useMemo, useReducer, useRef, useState } from "../../vendor/htm-preact.js";
import { download, request, save, send } from "../api.js";
import { href, navigate } from "../router.js";
import { compact, Dialog, duration, Glyph, MenuButton, money, plain, say, toast } from "../ui.js";
import { Changes, changeCount } from "../inspector/changes.js";
import { Columns, Detail } from "../inspector/columns.js";
import { Compare } from "../inspector/compare.js";
import { Inspection } from "../inspector/data.js";
import { endingBadge, Landing, open } from "../inspector/landing.js";
import { CurlDialog, Requests } from "../inspector/requests.js";
import { moment } from "../inspector/time.js";
import { Waterfall } from "../inspector/waterfall.js";

const TABS = { stream: "Stream", requests: "Requests", changes: "Changes" };

/** The page at #/inspect. ``route`` is {page, rest, query}. */
export function InspectPage({ route }) {
  const turn = route.rest[0] ?? "";
  const as = route.query.get("as") ?? "";
  const vs = route.query.get("vs") ?? "";
  const [pasted, setPasted] = useState(null);
  const [from, setFrom] = useState("");
  const [inband, setInband] = useState("");
  const [choices, setChoices] = useState(null);
  const [dragging, setDragging] = useState(false);
  useEffect(() => {
    request("/inspect").then(setChoices, () => {});
  }, []);
  useEffect(() => {
    if (turn) setPasted(null);
  }, [turn]);
  const paste = (body, name) => {
    setPasted({ body, name, from, inband });
    navigate(href("inspect"), true);
  };
  const drop = (event) => {
    event.preventDefault();
    setDragging(false);
    open(event.dataTransfer.files, paste);
  };
  const over = (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    setDragging(true);
  };
  const chosen = turn || pasted;
  return html`<main
    class=${`page inspect ${chosen ? "open" : ""} ${dragging ? "dragging" : ""}`}
    onDragOver=${over}
    onDragLeave=${(event) => event.currentTarget.contains(event.relatedTarget) || setDragging(false)}
    onDrop=${drop}
  >
    ${chosen
      ? html`<${Viewer}
          key=${turn || pasted}
          turn=${turn}
          pasted=${pasted}
          as=${as}
          vs=${vs}
          choices=${choices}
          onClose=${() => (setPasted(null), navigate(href("inspect")))}
        />`
      : html`<${Landing} onPaste=${paste} choices=${choices} from=${from} inband=${inband} onFrom=${setFrom} onInband=${setInband} />`}
    ${dragging ? html`<div class="drop-note" aria-hidden="true">Drop a recording to inspect it</div>` : null}
  </main>`;
}

/** The inspection of an address; another one is loaded when the address changes. The one before stays until that is read: a page
 *  that goes away meanwhile takes the focus with it. ``as`` is the dialect of the client's column. */
function useInspection(path, body, as = "") {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const [data, setData] = useState(null);
  useEffect(() => {
    if (!path) {
      setData(null);
      return undefined;
    }
    const made = new Inspection();
    made.as = as;
    const show = () => setData((before) => (before && made.state === "loading" ? before : made));
    made.subscribe(() => (show(), redraw()));
    made.load(path, body);
    show();
    return () => made.close();
  }, [path, body]);
  return data;
}

function Viewer({ turn, pasted, as, vs, choices, onClose }) {
  const [pastedAs, setPastedAs] = useState("");
  const shownAs = turn ? as : pastedAs;
  const path = turn
    ? `/turns/${encodeURIComponent(turn)}/inspect${shownAs ? `?as=${shownAs}` : ""}`
    : `/inspect?${new URLSearchParams({ ...(pasted.from && { from: pasted.from }), ...(pasted.inband && { inband: pasted.inband }), ...(shownAs && { as: shownAs }) })}`;
  const data = useInspection(path, pasted?.body, shownAs);
  const other = useInspection(turn && vs ? `/turns/${encodeURIComponent(vs)}/inspect` : "");
  const [selection, setSelection] = useState(null);
  const [time, setTime] = useState(null);
  const [bar, setBar] = useState(-1);
  const [tab, setTab] = useState("stream");
  const [shown, setShown] = useState("events");
  const [dialog, setDialog] = useState("");
  const told = useRef("");
  useEffect(() => {
    const now = `${data?.as} ${data?.state}`;
    if (!data || told.current === now) return;
    told.current = now;
    if (data.state === "done") say(`${plain(data.events.length)} events are shown`);
    if (data.state === "live") say("The turn is running; new rows appear as they arrive");
  }, [data, data?.state]);
  const query = useMemo(() => ({ ...(as && { as }), ...(vs && { vs }) }), [as, vs]);
  if (!data || (data.state === "loading" && !data.facts)) return html`<div class="empty"><p>Loading…</p></div>`;
  if (data.state === "failed" && !data.facts) return html`<${Failure} error=${data.error} onClose=${onClose} />`;
  const facts = data.facts;
  const names = {
    upstream: facts.follows === "client" ? `${facts.dialects.client}, to the client` : facts.dialects?.upstream || data.head?.attempts?.at(-1)?.dialect || "",
    events: facts.inband && facts.inband !== "none" ? `in-band: ${facts.inband}` : "",
    client: data.as || facts.dialects?.client || "",
  };
  const chosenAs = shownAs || facts.dialects?.client || "";
  const select = (chosen) => {
    setSelection(chosen);
    setShown(chosen.column);
    setTime(data[chosen.column].at[chosen.row] / 1e6);
    setBar(-1);
    setTab("stream");
  };
  const scrub = (seconds) => {
    setTime(seconds);
    setBar(-1);
    const column = data.events.length ? "events" : data.upstream.length ? "upstream" : "";
    if (column) setSelection({ column, row: data[column].rowAt(seconds * 1e6) });
  };
  const selectBar = (index, chosen) => {
    setBar(index);
    setTime(chosen.begin);
    setTab("stream");
    if (chosen.first >= 0) setSelection({ column: "events", row: chosen.first });
    else if (data.upstream.length) setSelection({ column: "upstream", row: data.upstream.rowAt(chosen.begin * 1e6) });
  };
  const changeAs = (name) => (turn ? navigate(href("inspect", turn, { ...query, as: name })) : setPastedAs(name));
  const count = changeCount(data);
  const changeTab = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const all = Object.keys(TABS).filter((name) => turn || name !== "requests");
    const next = all[(all.indexOf(tab) + step + all.length) % all.length];
    setTab(next);
    event.currentTarget.querySelector(`#tab-${next}`)?.focus();
  };
  return html`
    <header class="inspect-head">
      <button type="button" class="button plain icon" aria-label="Back to all turns" title="Back to all turns" onClick=${onClose}><${Glyph} name="left" /></button>
      <div class="inspect-title">
        <h1 class="cut">${turn ? facts.title || facts.model || turn : pasted.name}</h1>
        <p class="muted small cut">${subtitle(facts, data, turn)}</p>
      </div>
      <${Badges} facts=${facts} reading=${data.state === "loading" || data.as !== shownAs} turn=${turn} />
      <span class="spacer"></span>
      <label class="field inline as-field"><span>Show as</span>
        <select class="select" value=${chosenAs} onChange=${(event) => changeAs(event.currentTarget.value)}>
          ${writers(choices, chosenAs).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select></label>
      <${Actions} turn=${turn} pasted=${pasted} facts=${facts} onDialog=${setDialog} vs=${vs} query=${query} />
    </header>
    <${Figures} data=${data} />
    ${facts.error ? html`<p class="inspect-error"><b>${facts.error.code}</b> ${facts.error.message}</p>` : null}
    ${data.error ? html`<p class="inspect-error" role="alert">${data.error.message}</p>` : null}
    ${vs && other
      ? html`<${Compare} one=${data} two=${other} />`
      : html`
          <${Waterfall} data=${data} time=${time} onTime=${scrub} onBar=${selectBar} activeBar=${bar} />
          <div class="inspect-tabs">
            <div class="tab-row" role="tablist" aria-label="Parts" onKeyDown=${changeTab}>
            ${Object.entries(TABS)
              .filter(([name]) => turn || name !== "requests")
              .map(
                ([name, words]) => html`<button
                  key=${name}
                  type="button"
                  role="tab"
                  id=${`tab-${name}`}
                  aria-controls="inspect-panel"
                  aria-selected=${tab === name ? "true" : "false"}
                  tabindex=${tab === name ? "0" : "-1"}
                  onClick=${() => setTab(name)}
                >
                  ${words}${name === "changes" && count ? html` <span class="badge warn">${plain(count)}</span>` : null}
                </button>`,
              )}
            </div>
            <span class="spacer"></span>
            ${tab === "stream" ? html`<${Find} data=${data} selection=${selection} onSelect=${select} />` : null}
          </div>
          <div class="inspect-panel" id="inspect-panel" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
            ${tab === "stream"
              ? html`<${Columns}
                    data=${data}
                    selection=${selection}
                    onSelect=${select}
                    shown=${shown}
                    onShow=${setShown}
                    names=${names}
                    follow=${data.state === "live" && !selection}
                  />
                  <${Detail} data=${data} selection=${selection} names=${names} />`
              : tab === "requests"
                ? html`<${Requests} facts=${facts} />`
                : html`<${Changes} data=${data} onSelect=${select} />`}
          </div>
        `}
    ${dialog === "curl" ? html`<${CurlDialog} turn=${turn} onClose=${() => setDialog("")} />` : null}
    ${dialog === "compare" ? html`<${CompareDialog} turn=${turn} query=${query} onClose=${() => setDialog("")} />` : null}
  `;
}

function subtitle(facts, data, turn) {
  const way = [facts.dialects?.upstream, facts.dialects?.client].filter(Boolean).join(" → ");
  if (!turn) return `${facts.dialects?.upstream}${facts.inband && facts.inband !== "none" ? `, ${facts.inband} in its text` : ""}, detected${data.timed ? "" : "; without times, the axis counts frames"}`;
  return [facts.model, facts.upstream && `at ${facts.upstream}`, way, new Date(facts.started * 1000).toLocaleString()].filter(Boolean).join(" · ");
}

function writers(choices, current) {
  const able = (choices?.dialects ?? []).filter((one) => one.writes).map((one) => one.name);
  return able.includes(current) || !current ? able : [current, ...able];
}

function Badges({ facts, reading, turn }) {
  return html`<span class="row badges">
    ${turn ? endingBadge(facts.ending, facts.running) : null}
    ${reading ? html`<span class="badge">reading…</span>` : null}
    ${turn && !facts.running && !facts.recorded?.upstream
      ? html`<span class="badge warn" title="Set raw = true under [store] to record the bytes of turns to come">upstream bytes not recorded</span>`
      : null}
    ${facts.more?.cached ? html`<span class="badge">cached</span>` : null}
  </span>`;
}

function Figures({ data }) {
  const facts = data.facts;
  const head = data.head ?? {};
  const seconds = facts.timings?.seconds ?? (data.timed ? head.seconds : null);
  const out = facts.usage?.output_tokens;
  const first = facts.timings?.first_event ?? (head.first_event > 0 ? head.first_event : null);
  const figures = [
    data.timed ? ["first byte", head.first_byte > 0 ? moment(head.first_byte) : "–"] : null,
    data.timed ? ["first event", first == null ? "–" : moment(first)] : null,
    data.timed ? ["longest gap", facts.timings?.longest_gap == null ? gapOf(head) : moment(facts.timings.longest_gap)] : null,
    data.timed ? ["duration", duration(seconds)] : null,
    ["events", plain(data.events.length)],
    ["bytes in / out", `${compact(head.bytes?.upstream)} / ${compact(head.bytes?.client)}`],
    facts.usage ? ["tokens in / out", `${compact(facts.usage.input_tokens)} / ${compact(out)}`] : null,
    out && seconds > first ? ["tokens/s", (out / (seconds - first)).toFixed(1)] : null,
    facts.cost == null ? null : ["cost", money(facts.cost)],
  ].filter(Boolean);
  return html`<dl class="figures">${figures.map(([words, value]) => html`<div key=${words}><dt>${words}</dt><dd class="number">${value}</dd></div>`)}</dl>`;
}

function gapOf(head) {
  const gap = head.gaps?.[0];
  return gap ? moment(gap.end - gap.begin) : "–";
}

function Actions({ turn, pasted, facts, onDialog, vs, query }) {
  const attempt = (work) => work.catch((error) => toast(error.message));
  const saveTest = () => {
    if (turn) return attempt(download(`/turns/${encodeURIComponent(turn)}/inspect/test`, `${turn}.zip`));
    const query = new URLSearchParams({ ...(pasted.from && { from: pasted.from }), ...(pasted.inband && { inband: pasted.inband }) });
    return attempt(
      send(`/inspect/test?${query}`, { body: pasted.body })
        .then((response) => response.blob())
        .then((blob) => save(blob, "stream-test.zip")),
    );
  };
  const has = !turn || facts.recorded?.upstream;
  return html`<span class="row inspect-actions">
    ${turn ? html`<button type="button" class="button" onClick=${() => onDialog("curl")}>curl</button>` : null}
    ${turn
      ? html`<button type="button" class="button" aria-pressed=${vs ? "true" : "false"} onClick=${() => (vs ? navigate(href("inspect", turn, query.as ? { as: query.as } : {})) : onDialog("compare"))}>
          ${vs ? "End comparison" : "Compare"}
        </button>`
      : null}
    <${MenuButton} label="More actions" tiny=${false}>${(close) => [
      html`<button key="test" type="button" role="menuitem" disabled=${!has} onClick=${() => (close(), saveTest())}><${Glyph} name="check" />Save as test</button>`,
      turn
        ? html`<button key="raw" type="button" role="menuitem" disabled=${!has} onClick=${() => (close(), attempt(download(`/turns/${encodeURIComponent(turn)}/raw`, `${turn}.recording.jsonl`)))}>
            <${Glyph} name="save" />Download as recording
          </button>`
        : null,
      turn
        ? html`<button key="export" type="button" role="menuitem" onClick=${() => (close(), attempt(download(`/turns/${encodeURIComponent(turn)}/export`, `${turn}.jsonl`)))}>
            <${Glyph} name="file" />Export the turn
          </button>`
        : null,
    ]}<//>
  </span>`;
}

/** Finds the next row that has a text, in the column of the selection. */
function Find({ data, selection, onSelect }) {
  const [text, setText] = useState("");
  const find = (event) => {
    event.preventDefault();
    const wanted = text.toLowerCase();
    if (!wanted) return;
    const column = selection?.column ?? "events";
    const rows = data[column].text;
    const begin = selection ? selection.row + 1 : 0;
    for (let step = 0; step < rows.length; step++) {
      const row = (begin + step) % rows.length;
      if (rows[row].toLowerCase().includes(wanted)) {
        onSelect({ column, row });
        return;
      }
    }
    toast(`No row of ${column} has “${text}”`);
  };
  return html`<form class="find" role="search" onSubmit=${find}>
    <input class="input" type="search" placeholder="Find in rows" aria-label="Find in rows" value=${text} onInput=${(event) => setText(event.currentTarget.value)} />
  </form>`;
}

function CompareDialog({ turn, query, onClose }) {
  const [turns, setTurns] = useState(null);
  const [id, setId] = useState("");
  useEffect(() => {
    request("/turns?limit=30").then((page) => setTurns(page.data.filter((one) => one.id !== turn)), () => setTurns([]));
  }, []);
  const go = (chosen) => {
    onClose();
    navigate(href("inspect", turn, { ...query, vs: chosen }));
  };
  const submit = (event) => {
    event.preventDefault();
    if (id.trim()) go(id.trim());
  };
  return html`<${Dialog} title="Compare with another turn" onClose=${onClose}>
    <form onSubmit=${submit}>
      <label class="field"><span>Id of the turn</span>
        <input class="input mono" value=${id} placeholder="turn_…" onInput=${(event) => setId(event.currentTarget.value)} /></label>
    </form>
    <ul class="turn-list small">${(turns ?? []).map(
      (one) => html`<li key=${one.id}><button type="button" class="turn-link" onClick=${() => go(one.id)}>
        <span class="cut turn-title">${one.title || "(no text)"}</span><span class="turn-end">${endingBadge(one.ending)}</span>
        <span class="muted small cut turn-more">${one.model}</span><span class="muted small turn-when">${duration(one.duration)}</span></button></li>`,
    )}</ul>
    <div class="row end"><button type="button" class="button" onClick=${onClose}>Cancel</button></div>
  <//>`;
}

function Failure({ error, onClose }) {
  return html`<div class="empty"><h1>This stream cannot be shown</h1><p role="alert">${error?.message}</p>
    <button type="button" class="button" onClick=${onClose}>Back</button></div>`;
}
