// The composer of a message: text, attachments, the model and the request settings.

import { html, useLayoutEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { Glyph, IconButton, toast } from "../ui.js";
import { Attachments } from "./messages.js";
import { ModelPicker } from "./models.js";

const MAX_FILE_BYTES = 8 * 2 ** 20; // below the largest body that the gateway takes, in base64
const MAX_TEXT_CHARS = 400_000;
const IMAGES = /^image\/(png|jpeg|gif|webp)$/;

/** ``onSend`` returns whether it took the message; if not, the message stays. ``busy`` and ``ready`` say
 *  which button is shown and whether it can be used: they may be older than the conversation by a frame. */
export function Composer({ draft, models, settings, busy, ready, onSend, onStop, onModel, onSettings }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState([]);
  const [over, setOver] = useState(false);
  const area = useRef(null);
  const picker = useRef(null);
  // before the page is painted, so that what is typed at once is not lost
  useLayoutEffect(() => {
    if (!draft) return;
    setText(draft.text);
    setFiles(draft.attachments ?? []);
    area.current.focus();
  }, [draft]);
  useLayoutEffect(() => {
    if (matchMedia("(hover: hover)").matches) area.current.focus();
  }, []);
  const add = async (list) => {
    for (const file of list) {
      try {
        const read = await readFile(file);
        setFiles((before) => [...before.filter((one) => one.name !== read.name), read]);
      } catch (error) {
        toast(error.message);
      }
    }
  };
  const send = () => {
    if ((!text.trim() && !files.length) || !onSend(text.trim(), files)) return;
    setText("");
    setFiles([]);
  };
  const keys = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  };
  const pasted = (event) => {
    const found = [...(event.clipboardData?.files ?? [])];
    if (found.length) {
      event.preventDefault();
      add(found);
    }
  };
  const dropped = (event) => {
    event.preventDefault();
    setOver(false);
    add([...event.dataTransfer.files]);
  };
  const sent = Object.keys(settings.parameters).length + (settings.system ? 1 : 0) + (settings.tools ? 1 : 0);
  return html`<form
    class=${`composer ${over ? "over" : ""}`}
    aria-label="Message"
    onSubmit=${(event) => {
      event.preventDefault();
      send();
    }}
    onDragOver=${(event) => {
      event.preventDefault();
      setOver(true);
    }}
    onDragLeave=${() => setOver(false)}
    onDrop=${dropped}
  >
    ${files.length ? html`<${Attachments} files=${files} onRemove=${(file) => setFiles(files.filter((one) => one !== file))} />` : null}
    <textarea
      ref=${area}
      rows="1"
      aria-label="Your message"
      placeholder="Ask anything"
      value=${text}
      onInput=${(event) => setText(event.target.value)}
      onKeyDown=${keys}
      onPaste=${pasted}
    ></textarea>
    <div class="row">
      <input ref=${picker} type="file" multiple hidden accept="image/*,text/*,.md,.json,.csv,.py,.js,.ts,.toml,.yaml,.yml" onChange=${(event) => add([...event.target.files])} />
      <${IconButton} name="clip" label="Attach images or text" onClick=${() => picker.current.click()} />
      <button type="button" class="button plain" aria-label="System prompt, parameters and tools" title="System prompt, parameters and tools" onClick=${onSettings}>
        <${Glyph} name="sliders" />${sent ? html`<span class="badge">${sent}</span>` : null}
      </button>
      <${ModelPicker} models=${models} value=${settings.model} onChange=${onModel} />
      <span class="spacer"></span>
      ${busy
        ? html`<button type="button" class="button send" aria-label="Stop (Esc)" title="Stop (Esc)" onClick=${onStop}><${Glyph} name="stop" /></button>`
        : html`<button class="button primary send" aria-label="Send (Enter)" title="Send (Enter)" disabled=${!ready || (!text.trim() && !files.length)}><${Glyph} name="send" /></button>`}
    </div>
  </form>`;
}

async function readFile(file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(`${file.name} is larger than 8 MiB`);
  if (IMAGES.test(file.type)) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    let binary = "";
    for (let place = 0; place < bytes.length; place += 32_768) binary += String.fromCharCode(...bytes.subarray(place, place + 32_768));
    return { name: file.name, mime: file.type, data: btoa(binary) };
  }
  const text = await file.text();
  if (text.includes("\0") || text.includes("\ufffd")) throw new Error(`${file.name} is neither an image nor text`);
  if (text.length > MAX_TEXT_CHARS) throw new Error(`${file.name} has more than ${MAX_TEXT_CHARS} characters`);
  return { name: file.name, mime: file.type || "text/plain", text };
}
