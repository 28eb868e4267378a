// Each of the vendors' clients as a function (url, answer) that fills the answer, and throws where the client does.
// An error with `reported` set was said by the stream itself.
import { HttpAgent } from "@ag-ui/client";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createOpenAICompatible as createOpenAICompatible7 } from "@ai-sdk/openai-compatible-7";
import Anthropic from "@anthropic-ai/sdk";
import { ApiError, GoogleGenAI } from "@google/genai";
import * as ai6 from "ai";
import * as ai7 from "ai-7";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { APPROVALS } from "./approvals.mjs";
import { EXAMPLES } from "./examples.mjs";

const QUESTION = "q";
const asked = [{ role: "user", content: QUESTION }];

function reported(message) {
  return Object.assign(new Error(message), { reported: true });
}

function usage(input, output, reasoning, cached) {
  const counts = { input, output, reasoning, cached };
  const known = Object.entries(counts).filter(([, value]) => typeof value === "number");
  return known.length ? Object.fromEntries(known) : null;
}

// --- AG-UI: schema, order of events, reducer; the client itself does not miss a RUN_FINISHED

async function agui(url, answer) {
  const agent = new HttpAgent({ url, threadId: "thread", initialMessages: [{ id: "asked", role: "user", content: QUESTION }] });
  let last, finished, failed;
  const { newMessages } = await agent.runAgent({ runId: "run" }, {
    onEvent: ({ event }) => { last = event.type; },
    onRunFinishedEvent: ({ event }) => { finished = event; },
    onRunErrorEvent: ({ event }) => { failed = event; },
  });
  for (const message of newMessages) {
    if (message.role === "assistant") {
      answer.text += message.content ?? "";
      for (const call of message.toolCalls ?? []) answer.toolCalls.push({ name: call.function.name, arguments: call.function.arguments });
    }
    if (message.role === "reasoning") answer.reasoning += message.content;
  }
  answer.messages = newMessages;
  const spent = (finished ?? failed)?.usage?.[0];
  if (spent) answer.usage = usage(spent.inputTokens, spent.outputTokens, spent.reasoningTokens, spent.cachedInputTokens);
  answer.outcome = finished?.outcome ?? null;
  answer.finish = finished?.metadata?.finishReason ?? null;
  if (failed) throw reported(failed.message);
  if (last !== "RUN_FINISHED") throw new Error(`the last event is ${last}, not RUN_FINISHED`);
}
agui.strict = true;

// --- the UI message stream

function uiStream({ DefaultChatTransport, readUIMessageStream }) {
  return async (url, answer) => {
    const transport = new DefaultChatTransport({ api: url });
    const stream = await transport.sendMessages({
      chatId: "chat", trigger: "submit-message", messageId: undefined, abortSignal: undefined,
      messages: [{ id: "asked", role: "user", parts: [{ type: "text", text: QUESTION }] }],
    });
    const [seen, read] = stream.tee();
    let said = null, finish = null;
    const watching = (async () => {
      try {
        for await (const part of seen) {
          if (part.type === "error") said = part.errorText;
          if (part.type === "finish") finish = part;
          if (part.type === "abort") finish = { finishReason: "abort" };
        }
      } catch { /* the other branch reports it */ }
    })();
    let message, fault = null;
    for await (const state of readUIMessageStream({ stream: read, onError: (error) => { fault ??= error; } })) message = state;
    await watching;
    for (const part of message?.parts ?? []) {
      if (part.type === "text") answer.text += part.text;
      if (part.type === "reasoning") answer.reasoning += part.text;
      if (part.type === "dynamic-tool" || part.type.startsWith("tool-")) {
        answer.toolCalls.push({ name: part.toolName ?? part.type.slice(5), arguments: JSON.stringify(part.input ?? null) });
      }
      if ((part.type === "text" || part.type === "reasoning") && part.state !== "done" && !fault) fault = new Error(`a ${part.type} part was left open`);
    }
    answer.parts = message?.parts ?? [];
    answer.metadata = message?.metadata ?? null;
    answer.finish = finish?.finishReason ?? null;
    const spent = message?.metadata?.usage;
    if (spent) answer.usage = usage(spent.inputTokens, spent.outputTokens, spent.reasoningTokens, spent.cachedInputTokens);
    if (fault) throw fault.message === said ? reported(said) : fault;
    if (!finish) throw new Error("the stream has no finish part");
  };
}

// --- the AI SDK's own providers, read by streamText

// The SDK has the client run these, whose items are the provider's own: they are no calls of a declared function.
const RUN_BY_NAME = ["apply_patch", "local_shell", "shell"];

function aiSdk({ streamText }, model) {
  return async (url, answer) => {
    const result = streamText({ model: model(url), prompt: QUESTION, maxOutputTokens: 1024, maxRetries: 0, onError() {} });
    let fault = null, raw;
    for await (const part of result.fullStream) {
      if (part.type === "text-delta") answer.text += part.text;
      if (part.type === "reasoning-delta") answer.reasoning += part.text;
      if (part.type === "tool-call") answer.toolCalls.push({ name: part.toolName, arguments: typeof part.input === "string" ? part.input : JSON.stringify(part.input), server: part.providerExecuted === true || RUN_BY_NAME.includes(part.toolName) });
      if (part.type === "error") fault ??= part.error;
      if (part.type === "finish") {
        answer.finish = part.finishReason;
        raw = part.rawFinishReason;
        const spent = part.totalUsage;
        answer.usage = usage(
          spent.inputTokens, spent.outputTokens,
          spent.reasoningTokens ?? spent.outputTokenDetails?.reasoningTokens,
          spent.cachedInputTokens ?? spent.inputTokenDetails?.cacheReadTokens,
        );
      }
    }
    if (fault) {
      const name = fault?.name ?? "";
      const words = typeof fault === "string" ? fault : fault?.message ?? JSON.stringify(fault);
      throw /TypeValidation|JSONParse|InvalidResponse|NoOutput/.test(name) ? new Error(`${name}: ${words}`) : reported(words);
    }
    // where the wire never said why it ended, the SDK makes up "other" and has no word of the provider to show for it
    if (answer.finish === null || (answer.finish === "other" && raw === undefined)) throw new Error("no finish");
  };
}

// --- the vendors' SDKs

async function openaiChat(url, answer) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key", maxRetries: 0 });
  try {
    const stream = client.chat.completions.stream({ model: "m", messages: asked, stream_options: { include_usage: true } });
    stream.on("chunk", (chunk) => {
      const delta = chunk.choices[0]?.delta;
      if (chunk.choices[0]?.index === 0) answer.reasoning += delta?.reasoning_content ?? "";
    });
    const completion = await stream.finalChatCompletion();
    const choice = completion.choices.find((one) => one.index === 0);
    answer.text = choice.message.content ?? "";
    answer.refusal = choice.message.refusal ?? "";
    for (const call of choice.message.tool_calls ?? []) answer.toolCalls.push({ name: (call.function ?? call.custom).name, arguments: call.function?.arguments ?? call.custom?.input });
    answer.finish = choice.finish_reason;
    const spent = completion.usage;
    if (spent) answer.usage = usage(spent.prompt_tokens, spent.completion_tokens, spent.completion_tokens_details?.reasoning_tokens, spent.prompt_tokens_details?.cached_tokens);
  } catch (error) {
    throw error?.constructor === OpenAI.APIError || error?.status ? reported(error.message) : error;
  }
}

async function openaiResponses(url, answer) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key", maxRetries: 0 });
  let response;
  try {
    response = await client.responses.stream({ model: "m", input: QUESTION }).finalResponse();
  } catch (error) {
    throw error?.constructor === OpenAI.APIError || error?.status ? reported(error.message) : error;
  }
  for (const item of response.output) {
    if (item.type === "message") for (const part of item.content) answer[part.refusal === undefined ? "text" : "refusal"] += part.text ?? part.refusal ?? "";
    if (item.type === "reasoning") for (const part of [...(item.summary ?? []), ...(item.content ?? [])]) answer.reasoning += part.text;
    if (item.type === "function_call") answer.toolCalls.push({ name: item.name, arguments: item.arguments });
    if (item.type === "custom_tool_call") answer.toolCalls.push({ name: item.name, arguments: item.input });
  }
  answer.finish = response.incomplete_details?.reason ?? response.status;
  const spent = response.usage;
  if (spent) answer.usage = usage(spent.input_tokens, spent.output_tokens, spent.output_tokens_details?.reasoning_tokens, spent.input_tokens_details?.cached_tokens);
  if (!["completed", "incomplete", "failed"].includes(response.status)) throw new Error(`the response ended as ${response.status}`);
  if (response.status === "failed") throw reported(response.error?.message ?? "failed");
}

async function anthropic(url, answer) {
  const client = new Anthropic({ baseURL: url, apiKey: "key", maxRetries: 0 });
  let message;
  try {
    message = await client.messages.stream({ model: "m", max_tokens: 1024, messages: asked }).finalMessage();
  } catch (error) {
    const said = error?.error?.error?.message;
    throw said ? reported(said) : error;
  }
  for (const block of message.content) {
    if (block.type === "text") answer.text += block.text;
    if (block.type === "thinking") answer.reasoning += block.thinking;
    if (block.type.endsWith("tool_use")) answer.toolCalls.push({ name: block.name, arguments: JSON.stringify(block.input), server: block.type !== "tool_use" });
  }
  answer.finish = message.stop_reason;
  const spent = message.usage;
  const cached = spent.cache_read_input_tokens ?? undefined;
  answer.usage = usage(spent.input_tokens + (cached ?? 0) + (spent.cache_creation_input_tokens ?? 0), spent.output_tokens, undefined, cached);
  if (answer.finish === null) throw new Error("the message has no stop_reason");
}

async function genai(url, answer) {
  const client = new GoogleGenAI({ apiKey: "key", httpOptions: { baseUrl: url } });
  let blocked;
  try {
    for await (const chunk of await client.models.generateContentStream({ model: "m", contents: QUESTION })) {
      const candidate = chunk.candidates?.find((one) => (one.index ?? 0) === 0);
      for (const part of candidate?.content?.parts ?? []) {
        if (part.functionCall) answer.toolCalls.push({ name: part.functionCall.name, arguments: JSON.stringify(part.functionCall.args ?? {}) });
        else if (part.thought) answer.reasoning += part.text ?? "";
        else answer.text += part.text ?? "";
      }
      answer.finish = candidate?.finishReason ?? answer.finish;
      blocked ??= chunk.promptFeedback?.blockReason;
      const spent = chunk.usageMetadata;
      if (spent) answer.usage = usage((spent.promptTokenCount ?? 0) + (spent.toolUsePromptTokenCount ?? 0), (spent.candidatesTokenCount ?? 0) + (spent.thoughtsTokenCount ?? 0), spent.thoughtsTokenCount, spent.cachedContentTokenCount);
    }
  } catch (error) {
    throw error instanceof ApiError ? reported(error.message) : error;
  }
  if (answer.finish === null && !blocked) throw new Error("the stream has no finishReason");
}

async function ollama(url, answer) {
  const client = new Ollama({ host: url });
  try {
    for await (const chunk of await client.chat({ model: "m", messages: asked, stream: true })) {
      answer.text += chunk.message.content ?? "";
      answer.reasoning += chunk.message.thinking ?? "";
      for (const call of chunk.message.tool_calls ?? []) answer.toolCalls.push({ name: call.function.name, arguments: JSON.stringify(call.function.arguments) });
      if (chunk.done) {
        answer.finish = chunk.done_reason;
        answer.usage = usage(chunk.prompt_eval_count, chunk.eval_count);
      }
    }
  } catch (error) {
    throw error instanceof SyntaxError || /^Did not receive done/.test(error?.message ?? "") ? error : reported(error.message);
  }
}

export const CLIENTS = {
  "ag-ui": agui,
  "ai-6": uiStream(ai6),
  "ai-7": uiStream(ai7),
  "ai-sdk-openai-compatible-6": aiSdk(ai6, (url) => createOpenAICompatible({ name: "x", baseURL: `${url}/v1`, apiKey: "key", includeUsage: true })("m")),
  "ai-sdk-openai-compatible-7": aiSdk(ai7, (url) => createOpenAICompatible7({ name: "x", baseURL: `${url}/v1`, apiKey: "key", includeUsage: true })("m")),
  "ai-sdk-openai-responses": aiSdk(ai6, (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey: "key" }).responses("m")),
  "ai-sdk-anthropic": aiSdk(ai6, (url) => createAnthropic({ baseURL: `${url}/v1`, apiKey: "key" })("m")),
  "openai-chat": openaiChat,
  "openai-responses": openaiResponses,
  "anthropic": anthropic,
  "google-genai": genai,
  "ollama": ollama,
  ...APPROVALS,
  ...EXAMPLES,
};
