// The conversation that is open: asks, resumes, stops, branches. It uses the public API like any client.

import { ApiError, events, randomId, request, send } from "../api.js";
import { approvalsFeed } from "../feed.js";
import { Store } from "../lib/store.js";
import { say } from "../ui.js";
import { Answer, STATES, fromStored, storedAnswer, takeTimes, toMessages } from "./answer.js";
import { shownState, shownWords } from "./approvals.js";

const PENDING = "streamglot.pending"; // the request id of an answer whose session the page's address does not name yet
const STOP_MILLISECONDS = 3000; // how long a stopped stream may take to end before its connection is cut
const STORED_TRIES = 12; // a turn is in the store within 200 ms: looked for up to 5 s on a busy machine
const PENDING_TRIES = 40; // up to half a minute: without it, the page would show an empty chat
const LONGEST_PAUSE = 1000; // milliseconds between two tries

/** ``turns``: the users' turns as {role, text, attachments}, and Answers. ``variants`` of an answer are its siblings. */
export class Conversation extends Store {
  sessionId = "";
  title = "";
  turns = [];
  loading = false;
  problem = null;
  #abort = null;
  #number = 0;

  /** The title of the session, or the beginning of the first message. */
  get heading() {
    return this.title || (this.turns[0]?.text ?? "").slice(0, 80);
  }

  get answer() {
    const last = this.turns.at(-1);
    return last?.role === "assistant" ? last : null;
  }

  get busy() {
    return this.answer?.live === true;
  }

  /** Whether the turns of the session could not be read. A question in it would be sent without them. */
  get unread() {
    return this.problem !== null && this.turns.length === 0;
  }

  /** Whether a question can be asked now. */
  get ready() {
    return !this.busy && !this.loading && !this.unread;
  }

  /** Starts a new conversation, with these turns if any are given. */
  reset(turns = []) {
    this.#leave();
    Object.assign(this, { sessionId: "", title: "", turns, loading: false, problem: null });
    this.changed();
  }

  #leave() {
    this.#number += 1;
    this.#abort?.abort();
    this.#abort = null;
    this.forgetPending();
  }

  /** Forgets the pending request. The page's address names its session, or nobody looks for it any more. */
  forgetPending() {
    sessionStorage.removeItem(PENDING);
  }

  // --- asking

  /** Sends a user's turn. ``settings``: model, system, parameters, tools. */
  async ask(text, attachments, settings) {
    this.turns = [...this.turns, { role: "user", text, attachments }];
    await this.#run(settings);
  }

  /** Asks for another answer to the user's turn before ``answer``; the old answer stays as a variant. */
  async again(answer, settings) {
    const place = this.turns.indexOf(answer);
    this.turns = this.turns.slice(0, place);
    await this.#run(settings, [...(answer.variants ?? [answer])]);
  }

  /** Shows another variant in place of ``answer``. */
  show(answer, variant) {
    this.turns = this.turns.map((turn) => (turn === answer ? variant : turn));
    this.changed();
  }

  /** A new conversation with everything up to this turn. */
  branch(turn) {
    const place = this.turns.indexOf(turn);
    this.reset(this.turns.slice(0, place + 1));
  }

  async #run(settings, variants = null) {
    this.#leave();
    const number = this.#number;
    const answer = new Answer();
    answer.requestId = `page-${randomId()}`;
    answer.model = settings.model;
    if (variants) answer.variants = variants;
    variants?.forEach((one) => (one.variants = variants));
    variants?.push(answer);
    const messages = toMessages(this.turns, settings.system);
    this.turns = [...this.turns, answer];
    answer.start();
    this.changed();
    say(STATES.connecting);
    const body = {
      threadId: this.sessionId || answer.requestId,
      runId: answer.requestId,
      messages,
      tools: [],
      context: [],
      state: {},
      forwardedProps: { model: settings.model, ...settings.parameters },
    };
    if (settings.tools) body.streamglot = { tools: settings.tools };
    const headers = { "x-request-id": answer.requestId, "x-streamglot-keep": "1" };
    if (this.sessionId) headers["x-streamglot-session"] = this.sessionId;
    if (!this.sessionId) sessionStorage.setItem(PENDING, answer.requestId);
    await this.#follow(answer, number, "/agui", { body, headers });
  }

  /** Reads an answer and announces its states, also that it waits for approval, while another page is shown too. */
  async #follow(answer, number, path, options = {}) {
    const abort = (this.#abort = new AbortController());
    let told = answer.state;
    const tell = () => {
      const state = shownState(answer);
      if (number === this.#number && state !== told) {
        told = state;
        say(shownWords(answer));
      }
      if (!answer.live) leave();
    };
    const watched = [approvalsFeed.use(), approvalsFeed.watch(tell)];
    const leave = () => watched.splice(0).forEach((end) => end());
    try {
      const response = await send(path, { ...options, signal: abort.signal });
      if (number === this.#number) await this.#read(response, answer, number, tell);
    } catch (error) {
      this.#failed(answer, error, number);
    } finally {
      leave();
    }
  }

  async #read(response, answer, number, tell) {
    const { headers } = response;
    answer.turnId = headers.get("x-streamglot-turn") ?? answer.turnId;
    answer.streamId = headers.get("x-streamglot-stream") ?? answer.streamId;
    answer.upstream = headers.get("x-streamglot-upstream") ?? answer.upstream;
    this.sessionId = headers.get("x-streamglot-session") ?? this.sessionId;
    this.changed();
    for await (const list of events(response)) {
      if (number !== this.#number) return;
      const live = answer.live;
      for (const event of list) answer.apply(JSON.parse(event.data));
      if (answer.live !== live) this.changed(); // the connection may end later than the answer
      tell();
    }
    answer.fail({ message: "The connection ended before the answer did.", code: "connection_lost", status: 0, retryable: true });
    tell();
    this.changed();
    await this.#price(answer);
  }

  #failed(answer, error, number) {
    if (error.name === "AbortError") {
      if (answer.live) answer.end("stopped");
    } else {
      const { message, code = "", status = 0 } = error;
      answer.turnId ||= error.turnId ?? "";
      if (number === this.#number) this.sessionId = error.sessionId || this.sessionId;
      answer.fail({ message, code, status, retryable: !(error instanceof ApiError) || status === 0 || status === 429 || status >= 500 });
      say(`${STATES.error}: ${message}`);
    }
    if (number === this.#number && !this.sessionId) this.forgetPending();
    this.changed();
  }

  /** The cost, which the gateway knows once the turn is stored. */
  async #price(answer) {
    if (!answer.turnId) return;
    const turn = await stored(() => request(`/turns/${encodeURIComponent(answer.turnId)}`), (found) => found.ending !== "");
    if (!turn) return;
    answer.cost = turn.cost;
    if (answer.resumed) takeTimes(answer, turn);
    if (turn.usage) answer.usage ??= { inputTokens: turn.usage.input_tokens, outputTokens: turn.usage.output_tokens };
    answer.changed();
    this.changed();
  }

  // --- stopping

  /** Stops the answer and its upstream request. */
  async stop() {
    const answer = this.answer;
    const abort = this.#abort;
    if (!answer?.live) return;
    const timer = setTimeout(() => abort?.abort(), STOP_MILLISECONDS);
    try {
      await request(`/overview/${encodeURIComponent(answer.requestId)}/stop`, { body: { own: true } });
    } catch {
      // It runs in another process, or has ended.
      const id = answer.streamId || answer.turnId;
      if (id) await request(`/v1/streams/${encodeURIComponent(id)}/stop`, { method: "POST" }).catch(() => {});
    }
    if (!answer.live) clearTimeout(timer);
  }

  // --- resuming

  /** Shows a stored session. If it is being answered, resumes the stream from its beginning. */
  async open(sessionId) {
    this.#leave();
    const number = this.#number;
    Object.assign(this, { sessionId, title: "", turns: [], loading: true, problem: null });
    this.changed();
    try {
      const path = `/sessions/${encodeURIComponent(sessionId)}?limit=100`;
      const { session, data } = await stored(() => request(path), (found) => found.data.length, { must: true });
      const [newest] = data;
      const detail = await request(`/turns/${encodeURIComponent(newest.id)}`);
      if (number !== this.#number) return;
      const { turns, system } = fromStored(detail);
      const running = detail.ending === "";
      const answer = running ? new Answer() : storedAnswer(detail);
      Object.assign(this, { title: session.title, turns: [...turns, answer], loading: false, system });
      linkTurns(this.turns, data);
      Object.assign(answer, { turnId: detail.id, streamId: detail.id, requestId: detail.request_id, model: detail.model });
      this.changed();
      if (!detail.request) this.problem = "The messages of this session are not stored (store.content is off).";
      if (running) await this.#resume(answer, number);
    } catch (error) {
      if (number !== this.#number || error.name === "AbortError") return;
      Object.assign(this, { loading: false, problem: error.message });
      this.changed();
    }
  }

  async #resume(answer, number) {
    answer.resumed = true;
    answer.start();
    await this.#follow(answer, number, `/v1/streams/${encodeURIComponent(answer.streamId)}?after=0`);
  }

  /** The session of an answer that began just before the page was loaded again; "" if there is none. */
  async pendingSession() {
    const requestId = sessionStorage.getItem(PENDING);
    if (!requestId) return "";
    const number = this.#number;
    const find = ({ data }) => data.find((turn) => turn.request_id === requestId);
    const found = await stored(() => request("/turns?limit=20"), find, { tries: PENDING_TRIES });
    if (number !== this.#number) return ""; // meanwhile the user asked something, or opened a session
    const session = found ? (find(found).session_id ?? "") : "";
    if (!session) this.forgetPending();
    return session;
  }
}

/** Assigns each answer its turn by the turn's title, which is the beginning of the user's message. */
function linkTurns(turns, summaries) {
  let place = 0;
  for (let at = turns.length - 1; at > 0; at -= 1) {
    if (turns[at].role !== "assistant" || turns[at - 1].role !== "user") continue;
    const words = turns[at - 1].text.split(/\s+/).join(" ").trim();
    const found = summaries.findIndex((summary, number) => number >= place && summary.title && words.startsWith(summary.title.trim()));
    if (found < 0) continue;
    turns[at].turnId = summaries[found].id;
    place = found + 1;
  }
}

/** Repeats a request until its answer fits, because the store is updated with a delay. Returns null (with ``must``: an error) otherwise. */
async function stored(ask, good, { must = false, tries = STORED_TRIES } = {}) {
  let problem = null;
  for (let number = 0; number < tries; number += 1) {
    try {
      const found = await ask();
      if (good(found)) return found;
    } catch (error) {
      problem = error;
      if (error.status !== 404) break;
    }
    await new Promise((done) => setTimeout(done, Math.min(60 * (number + 1), LONGEST_PAUSE)));
  }
  if (must) throw problem ?? new ApiError(404, "not_found", "It was not found in the store.");
  return null;
}
