import { html } from "../../vendor/htm-preact.js";

/** The page at #/overview. ``route`` is {page, rest, query}. */
export function OverviewPage({ route }) {
  return html`<main class="page"><div class="prose"><h1>Overview</h1></div></main>`;
}
