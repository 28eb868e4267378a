// Parts that all pages use: glyphs, buttons, dialogs, menus, messages.

import { html, render, useEffect, useLayoutEffect, useRef, useState } from "../vendor/htm-preact.js";

const GLYPHS = {
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM6 15H5V4h10v2",
  check: "M5 12.500l4.5 4.500L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  more: "M6.5 12a.8.8 0 11-1.6 0 .8.8 0 011.6 0zM12.8 12a.8.8 0 11-1.6 0 .8.8 0 011.6 0zM19.1 12a.8.8 0 11-1.6 0 .8.8 0 011.6 0z",
  search: "M11 18a7 7 0 100-14 7 7 0 000 14zM16.5 16.500L21 21",
  clip: "M8 12.500l5.5-5.500a3 3 0 014.3 4.300l-7.3 7.300a5 5 0 01-7-7L11 4",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 5.500v5M9 13.500v5",
  branch: "M6 8.500v7M8.5 6a2.5 2.5 0 11-5 0 2.5 2.5 0 015 0zM8.5 18a2.5 2.5 0 11-5 0 2.5 2.5 0 015 0zM20.5 6a2.5 2.5 0 11-5 0 2.5 2.5 0 015 0zM18 8.500c0 5-8.5 3.5-11 7.2",
  again: "M19 12a7 7 0 11-2-5l2 2M19 4v5h-5",
  edit: "M5 19l1-4L16 5l3 3L9 18z",
  inspect: "M4 6h7M4 12h12M9 18h11M4 18h1M20 6h-5M20 12h0",
  down: "M6 9.500l6 6 6-6",
  right: "M9.5 6l6 6-6 6",
  left: "M14.5 6l-6 6 6 6",
  tool: "M14.5 6.500a4 4 0 01-5.3 5.300L5 16l3 3 4.2-4.200a4 4 0 005.3-5.300L15 12l-3-3z",
  think: "M9 18h6M10 21h4M12 3a6 6 0 00-3.5 10.900c.8.6 1 1.3 1 2.100h5c0-.8.2-1.5 1-2.100A6 6 0 0012 3z",
  warn: "M12 4l9 16H3zM12 10v4M12 17h.010",
  key: "M14 10a4 4 0 11-3 3.900L4 21v-3h3l4-4M16 9h.010",
  sun: "M12 16a4 4 0 100-8 4 4 0 000 8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.600L7 7M17 17l1.4 1.400M18.4 5.600L17 7M7 17l-1.4 1.4",
  moon: "M19 14.500A7.5 7.5 0 019.5 5 7.5 7.5 0 1019 14.500z",
  auto: "M12 20a8 8 0 100-16 8 8 0 000 16zM12 4v16M12 8h5.500M12 12h8M12 16h5.5",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
};

/** A glyph. Screen readers skip it: the button beside it has a label. */
export function Glyph({ name }) {
  return html`<svg class="glyph" viewBox="0 0 24 24" aria-hidden="true"><path d=${GLYPHS[name]} /></svg>`;
}

/** A button with only a glyph. ``label`` is for screen readers and is shown as a tooltip. */
export function IconButton({ name, label, tiny, class: more = "", ...rest }) {
  const kind = `button plain icon ${tiny ? "tiny" : ""} ${more}`;
  return html`<button type="button" class=${kind} aria-label=${label} title=${label} ...${rest}><${Glyph} name=${name} /></button>`;
}

/** Copies ``text`` (or the result of ``text()``) and shows a short confirmation. */
export function CopyButton({ text, label = "Copy", tiny = true, words = false }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return undefined;
    const timer = setTimeout(() => setCopied(false), 1600);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async () => {
    await copyText(typeof text === "function" ? text() : text);
    setCopied(true);
    say("Copied");
  };
  const shown = copied ? "Copied" : label;
  return html`<button
    type="button"
    class=${`button plain ${tiny ? "tiny" : ""} ${words ? "" : "icon"}`}
    aria-label=${shown}
    title=${shown}
    onClick=${copy}
  >
    <${Glyph} name=${copied ? "check" : "copy"} />${words ? shown : null}
  </button>`;
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea"); // no permission, or no secure context
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** A modal dialog. ``onClose`` is called when it is closed in any way. */
export function Dialog({ title, onClose, children }) {
  const ref = useRef(null);
  const there = useRef(true); // the browser tells of a close in the next frame: another dialog may be open by then
  const closed = () => there.current && onClose();
  useLayoutEffect(() => {
    const dialog = ref.current;
    dialog.showModal();
    return () => {
      there.current = false;
      dialog.close();
    };
  }, []);
  return html`<dialog ref=${ref} class="dialog" aria-label=${title} onClose=${closed} onCancel=${closed}>
    <div class="stack">
      <h2>${title}</h2>
      ${children}
    </div>
  </dialog>`;
}

/** A button that opens a menu below it. ``children`` is a function of ``close`` that gives the entries. */
export function MenuButton({ label, glyph = "more", tiny = true, children }) {
  const [place, setPlace] = useState(null);
  const root = useRef(null);
  const close = () => setPlace(null);
  // before it is painted, so that a key that is pressed at once is not lost
  useLayoutEffect(() => {
    if (!place) return undefined;
    root.current.querySelector(".menu button, .menu a")?.focus();
    const outside = (event) => root.current?.contains(event.target) || close();
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [place]);
  const open = (event) => {
    event.preventDefault();
    event.stopPropagation();
    const box = event.currentTarget.getBoundingClientRect();
    setPlace(place ? null : { top: `${box.bottom + 4}px`, left: `${Math.max(8, Math.min(box.left, innerWidth - 200))}px` });
  };
  const keys = (event) => {
    if (!place) return;
    const entries = [...root.current.querySelectorAll(".menu button, .menu a")];
    const at = entries.indexOf(document.activeElement);
    if (event.key === "Escape") {
      close();
      root.current.querySelector("button").focus();
    } else if (event.key === "ArrowDown") entries[(at + 1) % entries.length]?.focus();
    else if (event.key === "ArrowUp") entries[(at - 1 + entries.length) % entries.length]?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return html`<span ref=${root} onKeyDown=${keys}>
    <${IconButton} name=${glyph} label=${label} tiny=${tiny} aria-haspopup="menu" aria-expanded=${place ? "true" : "false"} onClick=${open} />
    ${place ? html`<div class="menu" role="menu" aria-label=${label} style=${{ position: "fixed", ...place }}>${children(close)}</div>` : null}
  </span>`;
}

// --- the one polite status region, and messages that go away by themselves

/** Announces a short text to screen readers. */
export function say(text) {
  const region = document.getElementById("status-region");
  if (region) region.textContent = text;
}

let toastTimer = 0;

/** Shows a short text for a few seconds. */
export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  say(text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (place.textContent = ""), 4000);
}

// --- numbers and times

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const PLAIN = new Intl.NumberFormat("en");

export const compact = (number) => COMPACT.format(number ?? 0);
export const plain = (number) => PLAIN.format(number ?? 0);

/** Seconds, as short as they can be read: 340 ms, 2.4 s, 3 min 12 s. */
export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const rest = Math.floor(seconds % 60);
  return `${Math.floor(seconds / 60)} min${rest ? ` ${rest} s` : ""}`;
}

/** US dollars; small amounts keep two digits that say something. */
export function money(amount) {
  if (amount == null) return "–";
  if (amount === 0) return "$0";
  return amount < 0.01 ? `$${amount.toPrecision(2)}` : `$${amount.toFixed(2)}`;
}

/** A time in the past, relative to now: "just now", "5 min ago", "yesterday", or a date. */
export function ago(seconds) {
  const past = Date.now() / 1000 - seconds;
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86_400) return `${Math.floor(past / 3600)} h ago`;
  if (past < 172_800) return "yesterday";
  return new Date(seconds * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

export { html, render };
