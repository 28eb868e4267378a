// The first examples of the vendors' documentation, verbatim except for the address, the key and the model, as functions
// (url, answer). What they write to the console is the answer's text. They guard against nothing.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic, { APIError as AnthropicError } from "@anthropic-ai/sdk";
import { ApiError, GoogleGenAI } from "@google/genai";
import { APICallError, generateText, streamText } from "ai";
import { Ollama } from "ollama";
import OpenAI, { APIError as OpenAIError } from "openai";

const OWN_ERRORS = [OpenAIError, AnthropicError, ApiError, APICallError];

// The standard output and the console of an example.
function outputs(answer) {
  const write = (text) => { answer.text += text; };
  return { process: { stdout: { write } }, console: { log: (value) => write(typeof value === "object" ? JSON.stringify(value) : String(value ?? "")) } };
}

// Marks the errors by which a client reports what a stream or a status said.
function example(run) {
  return async (url, answer) => {
    try {
      await run(url, outputs(answer));
    } catch (error) {
      // ollama throws a plain Error for an error in a stream; a mistake of the example would be a TypeError
      if (OWN_ERRORS.some((kind) => error instanceof kind) || error?.name === "ResponseError" || error?.constructor === Error) error.reported = true;
      throw error;
    }
  };
}

async function openaiChatStream(url, { process }) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key", maxRetries: 0 });
  const stream = await client.chat.completions.create({
    model: "m",
    messages: [{ role: "user", content: "Say this is a test" }],
    stream: true,
  });
  for await (const chunk of stream) {
    process.stdout.write(chunk.choices[0].delta.content || "");
  }
}

async function openaiChat(url, { console }) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key", maxRetries: 0 });
  const completion = await client.chat.completions.create({
    model: "m",
    messages: [
      { role: "developer", content: "Talk like a pirate." },
      { role: "user", content: "Are semicolons optional in JavaScript?" },
    ],
  });
  console.log(completion.choices[0].message.content);
}

async function openaiResponsesStream(url, { console }) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key", maxRetries: 0 });
  const stream = await client.responses.create({
    model: "m",
    input: 'Say "Sheep sleep deep" ten times fast!',
    stream: true,
  });
  let text = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta; // the example logs the whole event
  }
  console.log(text);
}

async function openaiResponses(url, { console }) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key", maxRetries: 0 });
  const response = await client.responses.create({
    model: "m",
    instructions: "You are a coding assistant that talks like a pirate",
    input: "Are semicolons optional in JavaScript?",
  });
  console.log(response.output_text);
}

async function anthropicStream(url, { console }) {
  const anthropic = new Anthropic({ baseURL: url, apiKey: "key", maxRetries: 0 });
  const stream = anthropic.messages
    .stream({
      model: "m",
      max_tokens: 1024,
      messages: [{ role: "user", content: "Say hello there!" }],
    })
    .on("text", (text) => {
      console.log(text);
    });
  await stream.finalMessage();
}

async function anthropicWhole(url, { console }) {
  const client = new Anthropic({ baseURL: url, apiKey: "key", maxRetries: 0 });
  const message = await client.messages.create({
    max_tokens: 1024,
    messages: [{ role: "user", content: "Hello, Claude" }],
    model: "m",
  });
  console.log(message.content.filter((block) => block.type === "text").map((block) => block.text).join("")); // logs all blocks
}

async function genaiStream(url, { console }) {
  const ai = new GoogleGenAI({ apiKey: "key", httpOptions: { baseUrl: url } });
  const response = await ai.models.generateContentStream({ model: "m", contents: "Write a 100-word poem." });
  for await (const chunk of response) {
    console.log(chunk.text);
  }
}

async function genai(url, { console }) {
  const ai = new GoogleGenAI({ apiKey: "key", httpOptions: { baseUrl: url } });
  const response = await ai.models.generateContent({ model: "m", contents: "Why is the sky blue?" });
  console.log(response.text);
}

async function ollamaStream(url, { process }) {
  const ollama = new Ollama({ host: url });
  const message = { role: "user", content: "Why is the sky blue?" };
  const response = await ollama.chat({ model: "m", messages: [message], stream: true });
  for await (const part of response) {
    process.stdout.write(part.message.content);
  }
}

async function ollamaWhole(url, { console }) {
  const ollama = new Ollama({ host: url });
  const response = await ollama.chat({ model: "m", messages: [{ role: "user", content: "Why is the sky blue?" }] });
  console.log(response.message.content);
}

function aiSdkStream(model) {
  return async (url, { process }) => {
    const { textStream } = streamText({ model: model(url), prompt: "Invent a new holiday and describe its traditions.", maxRetries: 0, onError() {} });
    for await (const textPart of textStream) {
      process.stdout.write(textPart);
    }
  };
}

function aiSdk(model) {
  return async (url, { console }) => {
    const { text } = await generateText({ model: model(url), prompt: "What is love?", maxRetries: 0 });
    console.log(text);
  };
}

const compatible = (url) => createOpenAICompatible({ name: "x", baseURL: `${url}/v1`, apiKey: "key" })("m");
const responses = (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey: "key" })("m");
const claude = (url) => createAnthropic({ baseURL: `${url}/v1`, apiKey: "key" })("m");

const RUNS = {
  "openai-chat-stream": openaiChatStream,
  "openai-chat": openaiChat,
  "openai-responses-stream": openaiResponsesStream,
  "openai-responses": openaiResponses,
  "anthropic-stream": anthropicStream,
  anthropic: anthropicWhole,
  "google-genai-stream": genaiStream,
  "google-genai": genai,
  "ollama-stream": ollamaStream,
  ollama: ollamaWhole,
  "ai-sdk-chat-stream": aiSdkStream(compatible),
  "ai-sdk-chat": aiSdk(compatible),
  "ai-sdk-responses-stream": aiSdkStream(responses),
  "ai-sdk-responses": aiSdk(responses),
  "ai-sdk-anthropic-stream": aiSdkStream(claude),
  "ai-sdk-anthropic": aiSdk(claude),
};

export const EXAMPLES = Object.fromEntries(Object.entries(RUNS).map(([name, run]) => [`example-${name}`, example(run)]));
