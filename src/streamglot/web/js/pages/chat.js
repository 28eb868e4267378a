import { html } from "../../vendor/htm-preact.js";

/** The page at #/chat. ``route`` is {page, rest, query}. */
export function ChatPage({ route }) {
  return html`<main class="page"><div class="prose"><h1>Chat</h1></div></main>`;
}
