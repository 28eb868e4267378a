// Clients whose user is asked about a call, and approves or denies it. `before` are the calls that the client was given before the
// decision and would run, `asked` is what the user was asked.
import { HttpAgent } from "@ag-ui/client";
import * as ai6 from "ai";
import * as ai7 from "ai-7";

const QUESTION = "q";
const REASON = " Not today.";

function agui(approved) {
  const client = async (url, answer) => {
    const agent = new HttpAgent({ url, threadId: "thread", initialMessages: [{ id: "asked", role: "user", content: QUESTION }] });
    let outcome = null;
    const listener = { onRunFinishedEvent: ({ event }) => { outcome = event.outcome; } };
    const first = await agent.runAgent({ runId: "run-1" }, listener);
    answer.before = first.newMessages.flatMap((message) => message.toolCalls ?? []).map((call) => call.function.name);
    const [interrupt] = outcome.interrupts;
    answer.asked = { message: interrupt.message, tool: interrupt.metadata.toolName, arguments: interrupt.metadata.arguments };
    const payload = approved ? { approved } : { approved, reason: REASON };
    const second = await agent.runAgent({ runId: "run-2", resume: [{ interruptId: interrupt.id, status: "resolved", payload }] }, listener);
    for (const message of [...first.newMessages, ...second.newMessages]) {
      if (message.role !== "assistant") continue;
      answer.text += message.content ?? "";
      for (const call of message.toolCalls ?? []) answer.toolCalls.push({ name: call.function.name, arguments: call.function.arguments });
    }
    answer.finish = outcome.type;
  };
  client.strict = true;
  return client;
}

function chatState() {
  return {
    status: "ready", error: undefined, messages: [],
    pushMessage(message) { this.messages = [...this.messages, message]; },
    popMessage() { this.messages = this.messages.slice(0, -1); },
    replaceMessage(index, message) { this.messages = this.messages.map((old, place) => (place === index ? message : old)); },
    snapshot: (value) => structuredClone(value),
  };
}

function ui({ AbstractChat, DefaultChatTransport }, approved) {
  class Chat extends AbstractChat {}
  return async (url, answer) => {
    const ran = [];
    const chat = new Chat({
      state: chatState(), transport: new DefaultChatTransport({ api: url }),
      onToolCall: ({ toolCall }) => { ran.push({ name: toolCall.toolName, arguments: JSON.stringify(toolCall.input) }); },
    });
    await chat.sendMessage({ text: QUESTION });
    if (chat.error) throw chat.error;
    answer.before = ran.map((call) => call.name);
    const part = chat.lastMessage.parts.find((each) => each.state === "approval-requested");
    answer.asked = { tool: part.toolName, arguments: JSON.stringify(part.input) };
    await chat.addToolApprovalResponse({ id: part.approval.id, approved, reason: approved ? undefined : REASON });
    await chat.sendMessage();
    if (chat.error) throw chat.error;
    answer.toolCalls = ran;
    answer.messages = chat.messages;
    for (const each of chat.lastMessage.parts) if (each.type === "text") answer.text += each.text;
  };
}

export const APPROVALS = {
  "ag-ui-approves": agui(true),
  "ag-ui-denies": agui(false),
  "ai-6-approves": ui(ai6, true),
  "ai-6-denies": ui(ai6, false),
  "ai-7-approves": ui(ai7, true),
  "ai-7-denies": ui(ai7, false),
};
