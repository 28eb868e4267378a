// The settings of a request: model, system prompt, parameters, tools. They are stored in this browser.

import { html, useState } from "../../vendor/htm-preact.js";
import { Dialog } from "../ui.js";

const PLACE = "streamglot.settings";
const NUMBERS = [
  ["temperature", "Temperature", "0 to 2", 0.1],
  ["topP", "Top p", "0 to 1", 0.05],
  ["maxTokens", "Longest answer", "tokens", 1],
  ["seed", "Seed", "a whole number", 1],
];
const EFFORTS = ["", "none", "minimal", "low", "medium", "high", "xhigh", "max"];

export function loadSettings() {
  try {
    return { model: "", system: "", parameters: {}, tools: null, ...JSON.parse(localStorage.getItem(PLACE) ?? "{}") };
  } catch {
    return { model: "", system: "", parameters: {}, tools: null };
  }
}

export function saveSettings(settings) {
  localStorage.setItem(PLACE, JSON.stringify(settings));
}

export function SettingsDialog({ settings, tools, onChange, onClose }) {
  const [draft, setDraft] = useState(settings);
  const change = (more) => setDraft({ ...draft, ...more });
  const parameter = (name, value) => {
    const { [name]: _before, ...rest } = draft.parameters;
    change({ parameters: value === "" || Number.isNaN(value) ? rest : { ...rest, [name]: value } });
  };
  const chosen = (name) => (draft.tools === null ? false : draft.tools.includes(name));
  const toggle = (name) => {
    const now = draft.tools ?? [];
    change({ tools: now.includes(name) ? now.filter((one) => one !== name) : [...now, name] });
  };
  const submit = (event) => {
    event.preventDefault();
    onChange(draft);
    onClose();
  };
  return html`<${Dialog} title="Request settings" onClose=${onClose}>
    <form onSubmit=${submit}>
      <label class="field">
        <span>System prompt</span>
        <textarea class="area" rows="4" placeholder="How the model should behave" value=${draft.system} onInput=${(event) => change({ system: event.target.value })}></textarea>
      </label>
      <div class="pair">
        ${NUMBERS.map(
          ([name, title, hint, step]) =>
            html`<label class="field" key=${name}>
              <span>${title}</span>
              <input
                class="input"
                type="number"
                step=${step}
                placeholder=${`not sent (${hint})`}
                value=${draft.parameters[name] ?? ""}
                onInput=${(event) => parameter(name, event.target.value === "" ? "" : Number(event.target.value))}
              />
            </label>`,
        )}
        <label class="field">
          <span>Reasoning effort</span>
          <select class="select" value=${draft.parameters.reasoningEffort ?? ""} onChange=${(event) => parameter("reasoningEffort", event.target.value)}>
            ${EFFORTS.map((word) => html`<option key=${word} value=${word}>${word || "as the model likes"}</option>`)}
          </select>
        </label>
      </div>
      <fieldset class="tools-list">
        <legend class="label">Tools of the gateway</legend>
        ${tools.length === 0
          ? html`<p class="small muted">There are none. <code>[tools]</code> in <code>streamglot.toml</code> enables built-in tools and MCP servers.</p>`
          : html`<label class="switch"
                ><input type="checkbox" checked=${draft.tools !== null} onChange=${(event) => change({ tools: event.target.checked ? tools.map((tool) => tool.name) : null })} />Choose them here (otherwise the
                route decides)</label
              >
              ${draft.tools !== null
                ? tools.map(
                    (tool) =>
                      html`<label class="switch" key=${tool.name} title=${tool.description}
                        ><input type="checkbox" checked=${chosen(tool.name)} onChange=${() => toggle(tool.name)} /><span class="mono">${tool.name}</span></label
                      >`,
                  )
                : null}`}
      </fieldset>
      <div class="row end">
        <button type="button" class="button" onClick=${onClose}>Cancel</button>
        <button class="button primary">Use these</button>
      </div>
    </form>
  <//>`;
}
