// The list of sessions: search, rename, delete, export.

import { html, useCallback, useEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { download, request } from "../api.js";
import { href } from "../router.js";
import { Dialog, Glyph, MenuButton, ago, plain, toast } from "../ui.js";

const PAGE = 60;
const STORED_MILLISECONDS = 400; // a new session is in the store within 200 ms, later on a busy machine
const STORED_TRIES = 75; // half a minute
const SEARCH_MILLISECONDS = 200; // typing on is waited for before it is searched

/** ``current`` is the open session. The list is fetched again whenever ``version`` changes. */
export function Sessions({ current, version, onNew, onGone, onClose }) {
  const [list, setList] = useState(null);
  const [words, setWords] = useState("");
  const [problem, setProblem] = useState("");
  const [dialog, setDialog] = useState(null);
  const asked = useRef(0);
  const tries = useRef(0);
  const fetchList = useCallback(async (text) => {
    const number = (asked.current += 1);
    try {
      const found = text ? await searched(text) : (await request(`/sessions?limit=${PAGE}`)).data;
      if (number === asked.current) {
        setList(found);
        setProblem("");
      }
    } catch (error) {
      if (number !== asked.current) return;
      setList([]);
      setProblem(error.code === "store_off" ? "off" : error.message);
    }
  }, []);
  useEffect(() => {
    const timer = setTimeout(() => fetchList(words.trim()), words ? SEARCH_MILLISECONDS : 0);
    return () => clearTimeout(timer);
  }, [words, version]);
  useEffect(() => {
    tries.current = 0;
  }, [current]);
  useEffect(() => {
    const missing = current && list && !words && !problem && !list.some((session) => session.id === current);
    if (!missing || tries.current >= STORED_TRIES) return undefined;
    tries.current += 1;
    const timer = setTimeout(() => fetchList(""), STORED_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [list, current]);
  const change = async (work) => {
    setDialog(null);
    try {
      await work();
    } catch (error) {
      toast(error.message);
    }
    fetchList(words.trim());
  };
  const rename = (session, title) => change(() => request(`/sessions/${encodeURIComponent(session.id)}`, { method: "PATCH", body: { title } }));
  const remove = (session) =>
    change(async () => {
      await request(`/sessions/${encodeURIComponent(session.id)}`, { method: "DELETE" });
      if (session.id === current) onGone();
    });
  const save = (session, format, ending) =>
    change(() => download(`/sessions/${encodeURIComponent(session.id)}/export?format=${format}`, `${session.id}.${ending}`));
  return html`<aside class="sessions" aria-label="Sessions">
    <div class="row">
      <button type="button" class="button new" onClick=${onNew}><${Glyph} name="plus" />New chat</button>
      <button type="button" class="button plain icon close" aria-label="Close the list" onClick=${onClose}><${Glyph} name="close" /></button>
    </div>
    <label class="search">
      <${Glyph} name="search" />
      <input class="input" type="search" aria-label="Search sessions" placeholder="Search" value=${words} onInput=${(event) => setWords(event.target.value)} />
    </label>
    <ul class="session-list">
      ${(list ?? []).map(
        (session) =>
          html`<li key=${session.id} class=${session.id === current ? "current" : ""}>
            <a href=${href("chat", session.id)} aria-current=${session.id === current ? "true" : undefined} onClick=${onClose}>
              <span class="cut">${session.title || "Without a title"}</span>
              <span class="muted small number">${ago(session.updated ?? session.started)}${session.turns ? ` · ${plain(session.turns)} ${session.turns === 1 ? "turn" : "turns"}` : ""}</span>
            </a>
            <${MenuButton} label=${`Actions for ${session.title || session.id}`}>
              ${(close) => {
                const entry = (glyph, title, act, kind = "") =>
                  html`<button type="button" role="menuitem" class=${kind} onClick=${() => (close(), act())}><${Glyph} name=${glyph} />${title}</button>`;
                return [
                  entry("edit", "Rename", () => setDialog({ kind: "rename", session })),
                  entry("save", "Export as Markdown", () => save(session, "markdown", "md")),
                  entry("save", "Export as JSON lines", () => save(session, "jsonl", "jsonl")),
                  entry("trash", "Delete", () => setDialog({ kind: "delete", session }), "danger"),
                ];
              }}
            <//>
          </li>`,
      )}
    </ul>
    ${list?.length === 0
      ? html`<p class="small muted hint">
          ${problem === "off"
            ? html`This gateway stores nothing, so there is no history. <code>store.url</code> turns it on.`
            : problem || (words ? "No message contains these words." : "Sessions of every client appear here, not only of this page.")}
        </p>`
      : null}
    ${dialog?.kind === "rename" ? html`<${Rename} session=${dialog.session} onRename=${rename} onClose=${() => setDialog(null)} />` : null}
    ${dialog?.kind === "delete"
      ? html`<${Dialog} title="Delete this session?" onClose=${() => setDialog(null)}>
          <p class="muted small">“${dialog.session.title || dialog.session.id}” is removed from the store with everything that was said in it. This cannot be undone.</p>
          <div class="row end">
            <button type="button" class="button" onClick=${() => setDialog(null)}>Keep it</button>
            <button type="button" class="button danger" onClick=${() => remove(dialog.session)}>Delete</button>
          </div>
        <//>`
      : null}
  </aside>`;
}

function Rename({ session, onRename, onClose }) {
  const [title, setTitle] = useState(session.title);
  const submit = (event) => {
    event.preventDefault();
    onRename(session, title);
  };
  return html`<${Dialog} title="Rename the session" onClose=${onClose}>
    <form onSubmit=${submit}>
      <label class="field"><span>Title</span><input class="input" autofocus maxlength="200" value=${title} onInput=${(event) => setTitle(event.target.value)} /></label>
      <div class="row end">
        <button type="button" class="button" onClick=${onClose}>Cancel</button>
        <button class="button primary">Rename</button>
      </div>
    </form>
  <//>`;
}

/** The sessions of the turns in which these words occur, each once. */
async function searched(words) {
  const { data } = await request(`/search?limit=${PAGE}&q=${encodeURIComponent(words)}`);
  const found = new Map();
  for (const turn of data) if (!found.has(turn.session_id)) found.set(turn.session_id, { id: turn.session_id, title: turn.title, started: turn.started });
  return [...found.values()];
}
