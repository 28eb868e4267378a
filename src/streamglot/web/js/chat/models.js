// The model picker: models that are listed, and any other name that an upstream's pattern allows.

import { html, useLayoutEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { Glyph } from "../ui.js";

const MAX_SHOWN = 60; // entries at once: who wants another one types a part of its name

export function ModelPicker({ models, value, onChange }) {
  const [open, setOpen] = useState(false);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const root = useRef(null);
  const field = useRef(null);
  // before it is painted, so that what is typed at once is not lost
  useLayoutEffect(() => {
    if (!open) return undefined;
    field.current.focus();
    const outside = (event) => root.current?.contains(event.target) || setOpen(false);
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [open]);
  const entries = open ? choices(models, text.trim()) : [];
  const choose = (name) => {
    onChange(name);
    setOpen(false);
    root.current.querySelector("button").focus();
  };
  const keys = (event) => {
    if (event.key === "ArrowDown") setAt(Math.min(at + 1, entries.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
    else if (event.key === "Enter") {
      if (entries[at]) choose(entries[at].name);
    } else if (event.key === "Escape") {
      setOpen(false);
      root.current.querySelector("button").focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const label = value || models?.default || "Choose a model";
  return html`<span class="model-picker" ref=${root}>
    <button
      type="button"
      class="button plain"
      aria-haspopup="listbox"
      aria-expanded=${open ? "true" : "false"}
      aria-label=${`Model: ${label}`}
      onClick=${() => {
        setText("");
        setAt(0);
        setOpen(!open);
      }}
    >
      <span class="cut">${label}</span><${Glyph} name="down" />
    </button>
    ${open
      ? html`<div class="menu models" onKeyDown=${keys}>
          <input
            ref=${field}
            class="input"
            role="combobox"
            aria-expanded="true"
            aria-controls="model-list"
            aria-activedescendant=${entries[at] ? `model-${at}` : undefined}
            aria-label="Find or name a model"
            placeholder="Find or name a model"
            value=${text}
            onInput=${(event) => {
              setText(event.target.value);
              setAt(0);
            }}
          />
          <ul id="model-list" role="listbox" aria-label="Models">
            ${entries.map(
              (entry, number) =>
                html`<li key=${entry.name} id=${`model-${number}`} role="option" aria-selected=${number === at ? "true" : "false"} onClick=${() => choose(entry.name)}>
                  <span class="cut">${entry.name}</span>
                  <span class="muted small cut">${entry.facts}</span>
                </li>`,
            )}
          </ul>
          ${entries.length === 0 ? html`<p class="small muted">No upstream serves a model of this name.</p>` : null}
        </div>`
      : null}
  </span>`;
}

function choices(models, text) {
  const words = text.toLowerCase();
  const listed = (models?.models ?? []).map((model) => ({ name: model.name, facts: facts(model) }));
  const found = listed.filter((entry) => entry.name.toLowerCase().includes(words) || entry.facts.toLowerCase().includes(words));
  const typed = [];
  if (text && !listed.some((entry) => entry.name === text)) {
    for (const pattern of models?.patterns ?? []) {
      const own = text.startsWith(`${pattern.upstream}/`);
      if (own || matches(text, pattern.pattern)) typed.push({ name: own ? text : `${pattern.upstream}/${text}`, facts: facts(pattern) });
    }
  }
  return [...found, ...typed].slice(0, MAX_SHOWN);
}

function facts(model) {
  const more = model.tools === "prompt" ? ", tools as words" : "";
  const refused = model.refused?.length ? `, without ${model.refused.slice(0, 3).join(", ")}${model.refused.length > 3 ? " …" : ""}` : "";
  return `${model.upstream} (${model.dialect}${more}${refused})`;
}

function matches(name, pattern) {
  const form = pattern.replace(/[.+^${}()|\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".");
  try {
    return new RegExp(`^${form}$`).test(name);
  } catch {
    return false;
  }
}
