// One answer: the events of an AG-UI run, folded into blocks that can be shown and sent back.

import { Store } from "../lib/store.js";

/** The labels of an answer's states. */
export const STATES = {
  connecting: "Connecting",
  thinking: "Thinking",
  writing: "Writing",
  calling: "Calling a tool",
  running: "Running a tool",
  judging: "Waiting for approval",
  retrying: "Waiting for the upstream",
  done: "Done",
  stopped: "Stopped",
  error: "Failed",
};
const OVER = ["done", "stopped", "error"];

/** ``blocks``: {kind: "reasoning" | "text" | "call" | "media", …}, in the order in which they began. Times are in milliseconds. */
export class Answer extends Store {
  interval = 30; // thirty changes a second are smooth, and leave half of the time to the rest of the page
  role = "assistant";
  blocks = [];
  state = "connecting";
  error = null;
  usage = null;
  cost = null;
  finish = "";
  model = "";
  upstream = "";
  requestId = "";
  turnId = "";
  streamId = "";
  began = 0;
  waitAttempt = 0; // the attempt that the upstream is waited for now, and when that wait was first seen
  waitBegan = 0;
  firstAt = 0;
  endedAt = 0;
  chars = 0;
  resumed = false; // the events came again, and their times say nothing
  #byId = new Map();

  get live() {
    return !OVER.includes(this.state);
  }

  get text() {
    return this.blocks
      .filter((block) => block.kind === "text")
      .map((block) => block.text)
      .join("\n\n");
  }

  /** Seconds to the first event with content; null before it. */
  get firstSeconds() {
    return this.firstAt && !this.resumed ? (this.firstAt - this.began) / 1000 : null;
  }

  /** Tokens per second: the upstream's count, or an estimate of four characters per token until it is known. */
  get tokensPerSecond() {
    const seconds = ((this.endedAt || performance.now()) - this.firstAt) / 1000;
    const tokens = this.usage?.outputTokens ?? this.chars / 4;
    return this.firstAt && !this.resumed && seconds > 0.05 && tokens ? tokens / seconds : null;
  }

  start() {
    this.began = performance.now();
    this.changed();
  }

  apply(event) {
    const rule = RULES[event.type];
    if (rule) rule(this, event, this.#byId);
    this.changed();
  }

  fail(error) {
    if (!this.live) return;
    this.error = error;
    this.end("error");
  }

  end(state) {
    this.state = state;
    this.endedAt = performance.now();
    for (const block of this.blocks) {
      block.open = false;
      if (block.kind === "reasoning" && !block.endedAt) block.endedAt = this.endedAt;
    }
    this.changed();
  }

  say(state) {
    this.state = state;
    if (!this.firstAt) this.firstAt = performance.now();
  }
}

function closeReasoning(answer) {
  for (const block of answer.blocks) {
    if (block.kind === "reasoning" && block.open) {
      block.open = false;
      block.endedAt = performance.now();
    }
  }
}

function delta(answer, block, text) {
  if (!block) return;
  block.text += text;
  answer.chars += text.length;
}

const RULES = {
  TEXT_MESSAGE_START(answer, event, byId) {
    closeReasoning(answer);
    const block = { kind: "text", text: "", open: true, refusal: event.metadata?.refusal === true };
    byId.set(event.messageId, block);
    answer.blocks.push(block);
    answer.say("writing");
  },
  TEXT_MESSAGE_CONTENT: (answer, event, byId) => delta(answer, byId.get(event.messageId), event.delta),
  TEXT_MESSAGE_END(_answer, event, byId) {
    const block = byId.get(event.messageId);
    if (block) block.open = false;
  },
  REASONING_MESSAGE_START(answer, event, byId) {
    const block = { kind: "reasoning", text: "", open: true, began: performance.now(), endedAt: 0 };
    byId.set(event.messageId, block);
    answer.blocks.push(block);
    answer.say("thinking");
  },
  REASONING_START: (answer) => answer.say("thinking"),
  REASONING_MESSAGE_CONTENT: (answer, event, byId) => delta(answer, byId.get(event.messageId), event.delta),
  REASONING_MESSAGE_END: (answer) => closeReasoning(answer),
  REASONING_END: (answer) => closeReasoning(answer),
  REASONING_ENCRYPTED_VALUE(_answer, event, byId) {
    const block = byId.get(event.entityId);
    if (block) block.encrypted = event.encryptedValue;
  },
  TOOL_CALL_START(answer, event, byId) {
    closeReasoning(answer);
    const block = { kind: "call", id: event.toolCallId, name: event.toolCallName, text: "", open: true, complete: false };
    block.metadata = event.metadata;
    byId.set(event.toolCallId, block);
    answer.blocks.push(block);
    answer.say("calling");
  },
  TOOL_CALL_ARGS: (answer, event, byId) => delta(answer, byId.get(event.toolCallId), event.delta),
  TOOL_CALL_END(answer, event, byId) {
    const block = byId.get(event.toolCallId);
    if (!block) return;
    block.open = false;
    block.complete = event.metadata?.complete !== false;
    block.ranAt = performance.now();
    answer.state = "running";
  },
  TOOL_CALL_RESULT(answer, event, byId) {
    const block = byId.get(event.toolCallId);
    if (!block) return;
    block.result = event.content;
    block.failed = event.metadata?.isError === true;
    block.seconds = block.ranAt ? (performance.now() - block.ranAt) / 1000 : null;
  },
  CUSTOM(answer, event) {
    if (event.name === "media") answer.blocks.push({ kind: "media", ...event.value });
    if (event.name === "citation") answer.blocks.findLast((block) => block.kind === "text")?.citations?.push(event.value);
  },
  RUN_FINISHED(answer, event) {
    answer.usage = event.usage?.[0] ?? null;
    answer.finish = event.metadata?.finishReason ?? "";
    answer.end(event.outcome?.type === "cancelled" ? "stopped" : "done");
  },
  RUN_ERROR(answer, event) {
    answer.usage = event.usage?.[0] ?? null;
    const { reason = "", status = 0, retryable = false, origin = "" } = event.metadata ?? {};
    answer.fail({ message: event.message, code: reason || event.code, status, retryable, origin });
  },
};

// --- to and from messages

/** The conversation as AG-UI messages. */
export function toMessages(turns, system) {
  const messages = system ? [{ id: "system", role: "system", content: system }] : [];
  turns.forEach((turn, number) => {
    const id = (part) => `m${number}-${part}`;
    if (turn.role === "user") messages.push({ id: id(0), role: "user", content: userContent(turn) });
    else turn.blocks.forEach((block, part) => messages.push(...blockMessages(block, id(part))));
  });
  return messages;
}

function userContent(turn) {
  if (!turn.attachments?.length) return turn.text;
  const parts = turn.attachments.map((file) =>
    file.data
      ? { type: "image", source: { type: "data", value: file.data, mimeType: file.mime }, metadata: { filename: file.name } }
      : { type: "text", text: `File ${file.name}:\n\n${file.text}` },
  );
  return turn.text ? [...parts, { type: "text", text: turn.text }] : parts;
}

function blockMessages(block, id) {
  const sealed = block.encrypted ? { encryptedValue: block.encrypted } : {};
  if (block.kind === "text" && block.text) return [{ id, role: "assistant", content: block.text, ...sealed }];
  if (block.kind === "reasoning" && (block.text || block.encrypted)) return [{ id, role: "reasoning", content: block.text, ...sealed }];
  if (block.kind === "call" && block.complete && block.result !== undefined) {
    const call = { id: block.id, type: "function", function: { name: block.name, arguments: block.text || "{}" }, ...sealed };
    if (block.metadata) call.metadata = block.metadata;
    const result = { id: `${id}-result`, role: "tool", toolCallId: block.id, content: block.result };
    return [{ id, role: "assistant", toolCalls: [call] }, block.failed ? { ...result, metadata: { isError: true } } : result];
  }
  return []; // a call without a result cannot be sent back
}

/** The conversation of a stored turn: {system, turns}. */
export function fromStored(detail) {
  const turns = [];
  let system = "";
  for (const message of detail.request?.messages ?? []) {
    if (message.role === "system" || message.role === "developer") system += (system ? "\n\n" : "") + partsText(message.parts);
    else if (message.role === "user") turns.push(storedUser(message.parts));
    else addParts(assistantOf(turns), message.parts);
  }
  return { system, turns };
}

/** The answer of a stored turn, or null if it has none. */
export function storedAnswer(detail) {
  const answer = new Answer();
  addParts(answer, detail.response?.choices?.[0]?.parts ?? []);
  answer.turnId = detail.id;
  answer.model = detail.model;
  answer.upstream = detail.upstream;
  answer.cost = detail.cost;
  answer.state = detail.error ? "error" : detail.ending === "cancelled" || detail.ending === "client_gone" ? "stopped" : "done";
  if (detail.usage) answer.usage = { inputTokens: detail.usage.input_tokens, outputTokens: detail.usage.output_tokens };
  if (detail.error) answer.error = detail.error;
  takeTimes(answer, detail);
  return answer;
}

/** The times of a turn as the gateway measured them. */
export function takeTimes(answer, detail) {
  if (!detail.duration) return;
  answer.began = 1; // any time will do: only differences are shown
  answer.firstAt = 1 + (detail.timings?.first_event ?? 0) * 1000;
  answer.endedAt = 1 + detail.duration * 1000;
  answer.resumed = false;
}

function assistantOf(turns) {
  if (turns.at(-1)?.role !== "assistant") {
    const answer = new Answer();
    answer.state = "done";
    turns.push(answer);
  }
  return turns.at(-1);
}

function addParts(answer, parts) {
  for (const part of parts) {
    if (part.type === "text" || part.type === "refusal") answer.blocks.push({ kind: "text", text: part.text, refusal: part.type === "refusal" });
    else if (part.type === "reasoning") answer.blocks.push({ kind: "reasoning", text: part.text });
    else if (part.type === "media") answer.blocks.push({ kind: "media", mimeType: part.mime, data: part.data, url: part.url });
    else if (part.type === "tool_call") {
      const complete = part.complete !== false;
      answer.blocks.push({ kind: "call", id: part.call_id, name: part.name, text: part.arguments, complete });
    } else if (part.type === "tool_result") {
      const call = answer.blocks.findLast((block) => block.kind === "call" && block.id === part.call_id);
      if (call) {
        call.result = partsText(part.content);
        call.failed = part.is_error === true;
      }
    }
  }
}

function storedUser(parts) {
  const media = parts.filter((part) => part.type === "media" && part.data);
  const attachments = media.map((part) => ({ name: part.filename || "image", mime: part.mime, data: part.data }));
  return { role: "user", text: partsText(parts), attachments };
}

const partsText = (parts) =>
  parts
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("\n\n");
