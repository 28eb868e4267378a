// One stream read by one of the vendors' own clients, and what it understood, as one line of JSON:
//   {client, ok, text, reasoning, refusal, toolCalls: [{name, arguments, server?}], finish, usage, error, rejected, warnings}
// `error` is what the client reported; `rejected` is true where the client refused the bytes themselves, false where the
// stream said in its own words that it had failed.
//
//   node read.mjs CLIENT URL      one stream
//   node read.mjs                 lines {"client", "url", "id"?} on stdin, one line of answer for each, in order
import { createInterface } from "node:readline";
import { CLIENTS } from "./clients.mjs";

const WAIT_MS = 30_000; // milliseconds for one stream
const warnings = [];
for (const level of ["warn", "error", "log", "info"]) {
  console[level] = (...words) => warnings.push(words.map(String).join(" "));
}
globalThis.AI_SDK_LOG_WARNINGS = (given) => warnings.push(JSON.stringify(given));
process.on("unhandledRejection", (reason) => warnings.push(`unhandled: ${reason?.message ?? reason}`));

async function read(name, url) {
  const answer = { client: name, ok: false, text: "", reasoning: "", refusal: "", toolCalls: [], finish: null, usage: null, error: null, rejected: false };
  const client = CLIENTS[name];
  if (!client) return { ...answer, error: `no client ${name}; there are ${Object.keys(CLIENTS).join(", ")}`, rejected: true, warnings: [] };
  warnings.length = 0;
  let clock;
  try {
    const late = new Promise((_, reject) => { clock = setTimeout(() => reject(new Error("the client did not finish in time")), WAIT_MS); });
    await Promise.race([client(url, answer), late]);
  } catch (error) {
    answer.error ??= String(error?.message ?? error).slice(0, 600);
    answer.rejected = error?.reported !== true;
  } finally {
    clearTimeout(clock);
  }
  answer.ok = answer.error === null;
  answer.warnings = [...warnings];
  if (client.strict && answer.warnings.length) {
    answer.ok = false;
    answer.rejected = true;
    answer.error ??= `warning: ${answer.warnings[0]}`;
  }
  return answer;
}

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + "\n");
}

const [name, url] = process.argv.slice(2);
if (name) {
  const answer = await read(name, url);
  say(answer);
  process.exitCode = answer.ok ? 0 : 1;
} else {
  for await (const line of createInterface({ input: process.stdin })) {
    if (!line.trim()) continue;
    const { client, url, id } = JSON.parse(line);
    say({ ...(id === undefined ? {} : { id }), ...(await read(client, url)) });
  }
}
