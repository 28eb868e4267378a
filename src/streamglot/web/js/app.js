// The shell: the top bar, the current page and the dialog for the key.

import { html, render, useEffect, useState } from "../vendor/htm-preact.js";
import { getKey, onKey, setKey } from "./api.js";
import { navigate, useRoute } from "./router.js";
import { Dialog, IconButton } from "./ui.js";
import { ChatPage } from "./pages/chat.js";
import { InspectPage } from "./pages/inspect.js";
import { OverviewPage } from "./pages/overview.js";

const PAGES = {
  chat: { title: "Chat", component: ChatPage },
  inspect: { title: "Inspector", component: InspectPage },
  overview: { title: "Overview", component: OverviewPage },
};
const THEMES = { auto: "light", light: "dark", dark: "auto" };
const THEME_GLYPHS = { auto: "auto", light: "sun", dark: "moon" };

function App() {
  const route = useRoute();
  const page = PAGES[route.page] ? route.page : "chat";
  const [keyNeeded, setKeyNeeded] = useState(false);
  const [keyNumber, setKeyNumber] = useState(0);
  useEffect(
    () =>
      onKey((what) => {
        setKeyNeeded(what === "needed");
        if (what === "changed") setKeyNumber((number) => number + 1);
      }),
    [],
  );
  useEffect(() => {
    document.title = `${PAGES[page].title} · streamglot`;
  }, [page]);
  const Page = PAGES[page].component;
  return html`
    <header class="topbar">
      <a class="wordmark" href="#/chat" aria-label="streamglot"><img src="/web/icon.svg" alt="" /><span>streamglot</span></a>
      <nav class="tabs" aria-label="Pages">
        ${Object.entries(PAGES).map(
          ([name, { title }]) =>
            html`<a key=${name} href=${`#/${name}`} aria-current=${name === page ? "page" : undefined}>${title}</a>`,
        )}
      </nav>
      <span class="spacer"></span>
      ${getKey() ? html`<${IconButton} name="key" label="Forget the key" onClick=${() => setKey("")} />` : null}
      <${ThemeButton} />
    </header>
    <${Page} key=${`${page} ${keyNumber}`} route=${route} />
    ${keyNeeded ? html`<${KeyDialog} onClose=${() => setKeyNeeded(false)} />` : null}
    <div id="status-region" class="hidden-text" role="status" aria-live="polite"></div>
    <div id="toast" class="toast"></div>
  `;
}

function ThemeButton() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "auto");
  const change = () => {
    const next = THEMES[theme];
    if (next === "auto") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("streamglot.theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("streamglot.theme", next);
    }
    setTheme(next);
  };
  return html`<${IconButton} name=${THEME_GLYPHS[theme]} label=${`Theme: ${theme}`} onClick=${change} />`;
}

function KeyDialog({ onClose }) {
  const [key, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (key.trim()) setKey(key.trim());
  };
  return html`<${Dialog} title="This gateway requires a key" onClose=${onClose}>
    <form onSubmit=${submit}>
      <p class="muted small">
        Enter a key that <code>streamglot keys add NAME</code> created, or one of <code>[[server.keys]]</code>. It stays in this tab
        and is forgotten when you close it.
      </p>
      <label class="field">
        <span>Key</span>
        <input
          class="input mono"
          type="password"
          autocomplete="off"
          autofocus
          value=${key}
          onInput=${(event) => setText(event.target.value)}
        />
      </label>
      <div class="row end">
        <button type="button" class="button" onClick=${onClose}>Not now</button>
        <button class="button primary" disabled=${!key.trim()}>Use this key</button>
      </div>
    </form>
  <//>`;
}

if (!location.hash) navigate("#/chat", true);
render(html`<${App} />`, document.getElementById("app"));
