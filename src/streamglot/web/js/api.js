// Requests to the gateway. The key is held in sessionStorage, is sent in a header, and is never part of an address.

import { SseParser } from "./lib/sse.js";

const KEY = "streamglot.key";

/** A failed request. ``code`` and ``message`` come from the gateway; ``turnId`` and ``sessionId`` name the stored turn. */
export class ApiError extends Error {
  constructor(status, code, message, retryAfter = "") {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
    this.turnId = "";
    this.sessionId = "";
  }
}

export function getKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

const keyListeners = new Set();

/** Takes the user's key, or forgets it when it is empty. */
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  for (const listener of keyListeners) listener("changed");
}

/** ``listener("needed")``: the gateway refused the key in use, or a request without one; ``listener("changed")``: the key was changed. */
export function onKey(listener) {
  keyListeners.add(listener);
  return () => keyListeners.delete(listener);
}

/** Sends a request and returns the Response. Raises an ApiError for every status other than success.
 *  ``body`` is sent as JSON, unless it is bytes, text or a Blob. */
export async function send(path, { method, body, headers = {}, signal } = {}) {
  const all = { ...headers };
  const key = getKey();
  if (key) all.authorization = `Bearer ${key}`;
  let data = body;
  if (body !== undefined && typeof body === "object" && !(body instanceof Blob) && !ArrayBuffer.isView(body)) {
    data = JSON.stringify(body);
    all["content-type"] ??= "application/json";
  }
  const options = { method: method ?? (body === undefined ? "GET" : "POST"), headers: all, body: data, signal };
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin", cache: "no-store", referrerPolicy: "no-referrer" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The gateway cannot be reached. Is it running?");
  }
  if (response.status === 401 && key === getKey()) for (const listener of keyListeners) listener("needed");
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** The decoded JSON of an answer; null where it has no body. */
export async function request(path, options) {
  const response = await send(path, options);
  return response.status === 204 ? null : response.json();
}

/** The events of a server-sent stream, read by read: lists of {id, event, data}. Takes an open Response, as ``send`` returns it. */
export async function* events(response) {
  const parser = new SseParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield parser.feed(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A random id. A page of another machine over plain HTTP has no crypto.randomUUID. */
export function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A file of the gateway, saved by the browser: fetched with the key in a header, since an address must not hold it. */
export async function download(path, name) {
  const response = await send(path);
  save(await response.blob(), name);
}

export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

async function errorOf(response) {
  let code = "";
  let message = "";
  const text = await response.text().catch(() => "");
  try {
    const body = JSON.parse(text);
    const error = body.error ?? body;
    code = String(error.code ?? error.type ?? "");
    message = String(typeof error === "string" ? error : (error.message ?? ""));
  } catch {
    message = text.slice(0, 500);
  }
  const error = new ApiError(response.status, code, message || `HTTP ${response.status}`, response.headers.get("retry-after") ?? "");
  error.turnId = response.headers.get("x-streamglot-turn") ?? "";
  error.sessionId = response.headers.get("x-streamglot-session") ?? "";
  return error;
}
