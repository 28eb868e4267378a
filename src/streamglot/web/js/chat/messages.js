// The messages: the user's turns, and answers with their reasoning, tool calls, errors and numbers.

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { request } from "../api.js";
import { approvalsFeed as feed } from "../feed.js";
import { useStore } from "../lib/store.js";
import { CodeBlock, Markdown } from "../lib/markdown_view.js";
import { href } from "../router.js";
import { CopyButton, Glyph, IconButton, duration, money, plain, toast } from "../ui.js";
import { STATES } from "./answer.js";
import { pendingApprovals, useShownState } from "./approvals.js";

export function UserTurn({ turn, onBranch, onEdit, disabled }) {
  return html`<article class="turn user" aria-label="You">
    <div class="bubble">
      ${turn.attachments?.length ? html`<${Attachments} files=${turn.attachments} />` : null}
      ${turn.text ? html`<p class="plain-text">${turn.text}</p>` : null}
    </div>
    <div class="actions">
      <${CopyButton} text=${turn.text} label="Copy message" />
      <${IconButton} tiny name="edit" label="Edit and ask again" disabled=${disabled} onClick=${() => onEdit(turn)} />
      <${IconButton} tiny name="branch" label="Branch from here" disabled=${disabled} onClick=${() => onBranch(turn)} />
    </div>
  </article>`;
}

export function Attachments({ files, onRemove }) {
  return html`<ul class="attachments" aria-label="Attachments">
    ${files.map(
      (file) =>
        html`<li key=${file.name}>
          ${file.data && file.mime.startsWith("image/")
            ? html`<img src=${`data:${file.mime};base64,${file.data}`} alt=${file.name} />`
            : html`<${Glyph} name="file" />`}
          <span class="cut">${file.name}</span>
          ${onRemove ? html`<${IconButton} tiny name="close" label=${`Remove ${file.name}`} onClick=${() => onRemove(file)} />` : null}
        </li>`,
    )}
  </ul>`;
}

export function AnswerTurn({ answer, onAgain, onBranch, onShow, busy }) {
  useStore(answer);
  const variants = answer.variants ?? [];
  const at = variants.indexOf(answer);
  return html`<article class="turn answer" aria-label="Answer" aria-busy=${answer.live ? "true" : "false"}>
    <div class="blocks">
      ${answer.blocks.map((block, number) => html`<${Block} key=${number} block=${block} answer=${answer} />`)}
      ${answer.live ? html`<${Approvals} answer=${answer} />` : null}
      ${answer.live && answer.blocks.length === 0 ? html`<${Waiting} answer=${answer} />` : null}
      ${answer.error ? html`<${ErrorCard} error=${answer.error} partial=${answer.blocks.length > 0} onRetry=${busy ? null : () => onAgain(answer)} />` : null}
    </div>
    <div class="actions" hidden=${answer.live}>
      <${CopyButton} text=${() => answer.text} label="Copy answer" />
      <${IconButton} tiny name="again" label="Answer again" disabled=${busy} onClick=${() => onAgain(answer)} />
      <${IconButton} tiny name="branch" label="Branch from here" disabled=${busy} onClick=${() => onBranch(answer)} />
      ${answer.turnId
        ? html`<a class="button plain tiny icon" href=${href("inspect", answer.turnId)} aria-label="Inspect this stream" title="Inspect this stream"
            ><${Glyph} name="inspect"
          /></a>`
        : null}
      ${variants.length > 1
        ? html`<span class="variants number">
            <${IconButton} tiny name="left" label="Earlier answer" disabled=${at === 0 || busy} onClick=${() => onShow(answer, variants[at - 1])} />
            ${at + 1} of ${variants.length}
            <${IconButton} tiny name="right" label="Later answer" disabled=${at === variants.length - 1 || busy} onClick=${() => onShow(answer, variants[at + 1])} />
          </span>`
        : null}
      <${Numbers} answer=${answer} />
    </div>
  </article>`;
}

/** Tokens, speed, time to the first token and cost of an answer. */
export function Numbers({ answer }) {
  const { usage, cost, firstSeconds, tokensPerSecond } = answer;
  const parts = [];
  if (answer.state === "stopped") parts.push("stopped");
  if (answer.finish === "length") parts.push("cut at the token limit");
  if (usage?.outputTokens != null) parts.push(`${plain(usage.inputTokens)} in, ${plain(usage.outputTokens)} out`);
  else if (answer.live && answer.chars) parts.push(`about ${plain(Math.round(answer.chars / 4))} tokens`);
  if (tokensPerSecond) parts.push(`${plain(Math.round(tokensPerSecond))} tokens/s`);
  if (firstSeconds != null) parts.push(`first after ${duration(firstSeconds)}`);
  if (cost != null) parts.push(money(cost));
  return html`<span class="numbers number muted">${parts.join(" · ")}</span>`;
}

function Block({ block, answer }) {
  if (block.kind === "text") return html`<div class=${block.refusal ? "refusal" : ""}><${Markdown} text=${block.text} /></div>`;
  if (block.kind === "reasoning") return html`<${Thinking} block=${block} />`;
  if (block.kind === "call") return html`<${ToolCard} block=${block} live=${answer.live} />`;
  if (block.kind === "media") return html`<${Media} block=${block} />`;
  return null;
}

/** The reasoning area. It is open while the model reasons and closes afterwards, unless the user opened it. */
function Thinking({ block }) {
  const [opened, setOpened] = useState(null);
  const body = useRef(null);
  const open = opened ?? block.open === true;
  useEffect(() => {
    if (block.open && body.current) body.current.scrollTop = body.current.scrollHeight;
  });
  const seconds = block.endedAt && block.began ? (block.endedAt - block.began) / 1000 : null;
  const title = block.open ? "Thinking" : seconds != null ? `Thought for ${seconds < 1 ? "a moment" : duration(seconds)}` : "Thoughts";
  return html`<section class=${`thinking ${block.open ? "live" : ""}`} aria-label="Thinking">
    <button type="button" class="fold" aria-expanded=${open ? "true" : "false"} onClick=${() => setOpened(!open)}>
      <${Glyph} name="think" /><span>${title}</span><${Glyph} name=${open ? "down" : "right"} />
    </button>
    ${open ? html`<div class="thoughts" ref=${body} tabindex="0" aria-label="Thoughts"><p class="plain-text">${block.text || "…"}</p></div>` : null}
  </section>`;
}

function callStatus(block, live) {
  if (block.open) return ["", "writing arguments"];
  if (block.result !== undefined) return block.failed ? ["bad", "failed"] : ["good", "done"];
  if (!block.complete) return ["bad", "broken off"];
  return live ? ["warn", "running"] : ["", "not run"];
}

function ToolCard({ block, live }) {
  const [kind, words] = callStatus(block, live);
  const [open, setOpen] = useState(false);
  const shown = block.open || open;
  return html`<section class="tool card" aria-label=${`Tool call ${block.name}`}>
    <button type="button" class="fold" aria-expanded=${shown ? "true" : "false"} onClick=${() => setOpen(!shown)}>
      <${Glyph} name="tool" />
      <span class="mono cut">${block.name}</span>
      <span class=${`badge ${kind}`}>${words}</span>
      ${block.seconds != null ? html`<span class="muted small number">${duration(block.seconds)}</span>` : null}
      <span class="spacer"></span>
      <${Glyph} name=${shown ? "down" : "right"} />
    </button>
    ${shown
      ? html`<div class="tool-body">
          <span class="label">Arguments</span>
          <${CodeBlock} text=${pretty(block.text, block.open)} language="json" open=${block.open} />
          ${block.result !== undefined ? html`<span class="label">Result</span><${CodeBlock} text=${pretty(block.result)} language="json" />` : null}
        </div>`
      : null}
  </section>`;
}

function pretty(text, open = false) {
  if (open) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Waiting({ answer }) {
  return html`<p class="waiting muted"><span class="pulse"></span>${STATES[useShownState(answer)]}…</p>`;
}

/** The calls that wait for approval, with their arguments, which can be changed. */
function Approvals({ answer }) {
  useStore(feed);
  return pendingApprovals(answer).map((asked) => html`<${ApprovalCard} key=${asked.id} asked=${asked} />`);
}

export function ApprovalCard({ asked }) {
  const [text, setText] = useState(pretty(asked.text ?? ""));
  const [editing, setEditing] = useState(false);
  const [decided, setDecided] = useState(false);
  const edited = text !== pretty(asked.text ?? "");
  const decide = async (approved) => {
    setDecided(true);
    const body = approved ? { approved, ...(edited ? { text } : {}) } : { approved, message: "refused by the user" };
    try {
      await request(`/approvals/${encodeURIComponent(asked.id)}`, { body });
    } catch (error) {
      setDecided(false);
      toast(error.message);
    }
  };
  return html`<section class="approval card" aria-label="Approval needed">
    <h2 class="card-title"><${Glyph} name="warn" /> ${asked.message || "Approve this?"}</h2>
    ${asked.tool ? html`<p class="small muted">The model wants to call <code>${asked.tool}</code>${asked.seconds ? html`. Without a decision it is refused in ${duration(asked.seconds)}` : null}.</p>` : null}
    ${editing
      ? html`<label class="field"
          ><span>Arguments</span>
          <textarea class="area mono" rows="6" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
        </label>`
      : html`<${CodeBlock} text=${text} language="json" />`}
    <div class="row">
      <button type="button" class="button primary" disabled=${decided} onClick=${() => decide(true)}>${edited ? "Approve the changed call" : "Approve"}</button>
      <button type="button" class="button" disabled=${decided || editing} onClick=${() => setEditing(true)}><${Glyph} name="edit" />Edit</button>
      <button type="button" class="button danger" disabled=${decided} onClick=${() => decide(false)}>Deny</button>
    </div>
  </section>`;
}

function ErrorCard({ error, partial, onRetry }) {
  const facts = [error.code, error.status ? `status ${error.status}` : "", error.origin ? `from the ${error.origin}` : ""].filter(Boolean);
  return html`<section class="error card" role="alert" aria-label="Error">
    <h2 class="card-title"><${Glyph} name="warn" />${partial ? "The answer was interrupted" : "The request failed"}</h2>
    <p class="plain-text">${error.message}</p>
    <div class="row">
      <span class="mono muted">${facts.join(" · ")}</span>
      <span class="spacer"></span>
      ${onRetry ? html`<button type="button" class="button" onClick=${onRetry}><${Glyph} name="again" />Try again</button>` : null}
    </div>
  </section>`;
}

function Media({ block }) {
  const source = block.data ? `data:${block.mimeType};base64,${block.data}` : "";
  if (source && /^image\/(png|jpeg|gif|webp|avif)$/.test(block.mimeType)) return html`<img class="media" src=${source} alt="Image made by the model" />`;
  if (source && /^audio\//.test(block.mimeType)) return html`<audio class="media" controls src=${source}></audio>`;
  return html`<p class="muted small">A file of the type ${block.mimeType || "unknown"}.</p>`;
}
