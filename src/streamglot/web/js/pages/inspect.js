import { html } from "../../vendor/htm-preact.js";

/** The page at #/inspect. ``route`` is {page, rest, query}. */
export function InspectPage({ route }) {
  return html`<main class="page"><div class="prose"><h1>Inspect</h1></div></main>`;
}
