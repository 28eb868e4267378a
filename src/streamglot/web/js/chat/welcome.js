// The content of an empty chat: what streamglot is, and how to connect a client.

import { html, useState } from "../../vendor/htm-preact.js";
import { CodeBlock } from "../lib/markdown_view.js";
import { CopyButton } from "../ui.js";

const CLIENTS = {
  curl: { title: "curl", language: "bash", text: (base, model) => `curl -N ${base}/v1/chat/completions \\\n  -H 'content-type: application/json' \\\n  -d '{"model": "${model}", "stream": true,\n       "messages": [{"role": "user", "content": "Hello"}]}'` },
  openai: {
    title: "OpenAI SDK",
    language: "python",
    text: (base, model) =>
      `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key="none")\nfor chunk in client.chat.completions.create(model="${model}", stream=True,\n        messages=[{"role": "user", "content": "Hello"}]):\n    print(chunk.choices[0].delta.content or "", end="")`,
  },
  anthropic: {
    title: "Anthropic SDK",
    language: "python",
    text: (base, model) =>
      `from anthropic import Anthropic\n\nclient = Anthropic(base_url="${base}", api_key="none")\nwith client.messages.stream(model="${model}", max_tokens=500,\n        messages=[{"role": "user", "content": "Hello"}]) as stream:\n    for text in stream.text_stream:\n        print(text, end="")`,
  },
  agents: {
    title: "Coding agents",
    language: "bash",
    text: (base) => `# Claude Code\nANTHROPIC_BASE_URL=${base} claude\n\n# Codex, aider and other OpenAI clients\nOPENAI_BASE_URL=${base}/v1 aider`,
  },
  ollama: { title: "Ollama", language: "bash", text: (base, model) => `OLLAMA_HOST=${base} ollama run ${model}` },
};

export function Welcome({ models, problem }) {
  const [client, setClient] = useState("curl");
  const base = location.origin;
  const model = models?.default || models?.models?.[0]?.name || "replay";
  const chosen = CLIENTS[client];
  const real = (models?.models ?? []).some((one) => one.upstream !== "replay") || models?.patterns?.length > 0;
  const keys = (event) => {
    const names = Object.keys(CLIENTS);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(client) + step + names.length) % names.length];
    setClient(next);
    event.currentTarget.querySelector(`#client-${next}`)?.focus();
  };
  return html`<div class="welcome">
    <h1>Every LLM stream, one language.</h1>
    <p class="lead">
      streamglot reads the stream of any provider and writes the dialect of any client, live. Chat with your models below, or configure
      your client with this address:
    </p>
    <p class="address"><code>${base}</code><${CopyButton} text=${base} label="Copy the address" /></p>
    <div class="clients card">
      <div class="client-tabs" role="tablist" aria-label="Clients" onKeyDown=${keys}>
        ${Object.entries(CLIENTS).map(
          ([name, { title }]) =>
            html`<button
              type="button"
              key=${name}
              id=${`client-${name}`}
              role="tab"
              aria-selected=${name === client ? "true" : "false"}
              aria-controls="client-panel"
              tabindex=${name === client ? 0 : -1}
              onClick=${() => setClient(name)}
            >
              ${title}
            </button>`,
        )}
      </div>
      <div id="client-panel" role="tabpanel" aria-labelledby=${`client-${client}`}>
        <${CodeBlock} key=${client} text=${chosen.text(base, model)} language=${chosen.language} />
      </div>
    </div>
    ${models && !real
      ? html`<p class="small muted">
          No upstream is configured. Only <code>replay</code> answers, and it repeats your message. Set a provider's key in the environment
          (<code>streamglot doctor</code> lists them), or run a small model here with <code>streamglot local pull</code>.
        </p>`
      : null}
    ${problem ? html`<p class="small muted">${problem}</p>` : null}
  </div>`;
}
