// The page at #/chat and #/chat/SESSION.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { request } from "../api.js";
import { shownWords, useShownState } from "../chat/approvals.js";
import { Composer } from "../chat/composer.js";
import { Conversation } from "../chat/conversation.js";
import { AnswerTurn, Numbers, UserTurn } from "../chat/messages.js";
import { Sessions } from "../chat/sessions.js";
import { SettingsDialog, loadSettings, saveSettings } from "../chat/settings.js";
import { Welcome } from "../chat/welcome.js";
import { useStore } from "../lib/store.js";
import { href, navigate } from "../router.js";
import { Glyph, IconButton } from "../ui.js";

const PINNED_PIXELS = 60; // nearer to the end than this, the page follows what is written

// One conversation for the lifetime of the page: it continues while another page is shown.
const conversation = new Conversation();

export function ChatPage({ route }) {
  useStore(conversation);
  const [settings, setSettings] = useState(loadSettings);
  const [models, setModels] = useState(null);
  const [problem, setProblem] = useState("");
  const [dialog, setDialog] = useState(false);
  const [drawer, setDrawer] = useState(false);
  const [draft, setDraft] = useState(null);
  const session = route.page === "chat" ? (route.rest[0] ?? "") : "";

  useEffect(() => {
    request("/overview/models").then(setModels, (error) => setProblem(error.message));
  }, []);
  const shown = useRef(null);
  // before the page is painted: a question may be answered by then
  useLayoutEffect(() => {
    const before = shown.current;
    shown.current = session;
    if (session && session !== conversation.sessionId) conversation.open(session);
    else if (!session && conversation.sessionId && before === null) navigate(href("chat", conversation.sessionId), true);
    else if (!session && conversation.sessionId && conversation.sessionId === before) conversation.reset();
    else if (!session && !conversation.turns.length) {
      let left = false;
      conversation.pendingSession().then((found) => !left && found && navigate(href("chat", found), true));
      return () => (left = true);
    }
    return undefined;
  }, [session]);
  useEffect(() => {
    if (conversation.sessionId && conversation.sessionId !== session) navigate(href("chat", conversation.sessionId), true);
  }, [conversation.sessionId]);
  useEffect(() => {
    if (session && session === conversation.sessionId) conversation.forgetPending();
  }, [session, conversation.sessionId]);
  useEffect(() => {
    const keys = (event) => {
      if (event.key === "Escape" && conversation.busy && !document.querySelector("dialog[open], .menu")) {
        event.preventDefault();
        conversation.stop();
      } else if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        begin();
      }
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, []);

  const change = (next) => {
    setSettings(next);
    saveSettings(next);
  };
  const begin = () => {
    conversation.reset();
    navigate("#/chat");
    setDraft({ text: "" });
    setDrawer(false);
  };
  const branch = (turn) => {
    conversation.branch(turn);
    navigate("#/chat");
  };
  const edit = (turn) => {
    const place = conversation.turns.indexOf(turn);
    conversation.reset(conversation.turns.slice(0, place));
    navigate("#/chat");
    setDraft({ text: turn.text, attachments: turn.attachments });
  };
  const asked = { ...settings, model: settings.model || models?.default || "" };
  return html`<main class=${`page chat ${drawer ? "with-drawer" : ""}`}>
    <${Sessions} current=${conversation.sessionId} version=${`${conversation.sessionId} ${conversation.busy}`} onNew=${begin} onGone=${begin} onClose=${() => setDrawer(false)} />
    <section class="talk" aria-label="Chat">
      <div class="talk-bar">
        <${IconButton} name="menu" label="Show the sessions" class="drawer-button" onClick=${() => setDrawer(!drawer)} />
        <span class="cut muted small">${conversation.heading}</span>
      </div>
      ${conversation.turns.length ? html`<h1 class="hidden-text">${conversation.heading || "Chat"}</h1>` : null}
      <${Scroller} version=${conversation.turns.length}>
        ${conversation.turns.length === 0 && !conversation.loading && !conversation.problem ? html`<${Welcome} models=${models} problem=${problem} />` : null}
        ${conversation.loading ? html`<p class="empty">Opening the session…</p>` : null}
        ${conversation.problem ? html`<${Problem} onBegin=${begin} />` : null}
        ${conversation.turns.map((turn, number) =>
          turn.role === "user"
            ? html`<${UserTurn} key=${`u${number}`} turn=${turn} disabled=${conversation.busy} onBranch=${branch} onEdit=${edit} />`
            : html`<${AnswerTurn}
                key=${`a${number} ${turn.requestId}`}
                answer=${turn}
                busy=${conversation.busy}
                onAgain=${(answer) => conversation.again(answer, asked)}
                onBranch=${branch}
                onShow=${(answer, variant) => conversation.show(answer, variant)}
              />`,
        )}
      <//>
      <div class="below">
        <${StatusLine} answer=${conversation.answer} />
        <${Composer}
          draft=${draft}
          models=${models}
          settings=${asked}
          busy=${conversation.busy}
          ready=${conversation.ready}
          onSend=${(text, files) => conversation.ready && (conversation.ask(text, files, asked), true)}
          onStop=${() => conversation.stop()}
          onModel=${(model) => change({ ...settings, model })}
          onSettings=${() => setDialog(true)}
        />
      </div>
    </section>
    ${dialog ? html`<${SettingsDialog} settings=${settings} tools=${models?.tools ?? []} onChange=${change} onClose=${() => setDialog(false)} />` : null}
  </main>`;
}

/** What is wrong with the session, and what can be done about it. */
function Problem({ onBegin }) {
  return html`<div class="empty">
    <p>${conversation.problem}</p>
    ${conversation.unread ? html`<button type="button" class="button" onClick=${() => conversation.open(conversation.sessionId)}>Try again</button>` : null}
    <button type="button" class="button" onClick=${onBegin}>New chat</button>
  </div>`;
}

/** The list of messages. It follows the end, unless the user scrolled away from it. */
function Scroller({ version, children }) {
  const box = useRef(null);
  const pinned = useRef(true);
  const [away, setAway] = useState(false);
  const follow = () => {
    if (pinned.current) box.current.scrollTop = box.current.scrollHeight;
  };
  useLayoutEffect(() => {
    pinned.current = true;
    follow();
  }, [version]);
  useEffect(() => {
    const watcher = new ResizeObserver(follow);
    watcher.observe(box.current.firstElementChild);
    return () => watcher.disconnect();
  }, []);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    pinned.current = scrollHeight - scrollTop - clientHeight < PINNED_PIXELS;
    setAway(!pinned.current);
  };
  const down = () => {
    pinned.current = true;
    follow();
  };
  return html`<div class="scroll-frame">
    <div class="scroller" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-label="Conversation" aria-live="off">
      <div class="column">${children}</div>
    </div>
    ${away ? html`<button type="button" class="button to-end" onClick=${down}><${Glyph} name="down" />To the end</button>` : null}
  </div>`;
}

function StatusLine({ answer }) {
  const state = useShownState(answer);
  const [, tick] = useState(0);
  const live = answer?.live === true;
  useEffect(() => {
    if (!live) return undefined;
    const timer = setInterval(() => tick((number) => number + 1), 500);
    return () => clearInterval(timer);
  }, [live]);
  return html`<div class="status-line small" data-state=${state}>
    ${answer
      ? html`<span class=${`dot ${{ error: "bad", done: "good", judging: "warn", retrying: "warn" }[state] ?? ""} ${live ? "pulse" : ""}`}></span>
          <span>${shownWords(answer)}</span>
          ${live ? html`<${Numbers} answer=${answer} /><span class="spacer"></span><span class="muted hint-keys"><kbd>Esc</kbd> stops</span>` : null}`
      : html`<span class="muted hint-keys"><kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> begins a line</span>`}
  </div>`;
}
