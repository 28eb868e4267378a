// Markdown to sanitised HTML. The output of a model is untrusted until DOMPurify has processed it.

import { Marked } from "../../vendor/marked.js";
import "../../vendor/purify.js";

const marked = new Marked({ gfm: true, breaks: false, async: false });
const purify = globalThis.DOMPurify;
const TAGS = (
  "a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small " +
  "span strong sub summary sup table tbody td tfoot th thead tr u ul var"
).split(" ");
const OPTIONS = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["href", "title", "alt", "src", "align", "colspan", "rowspan", "start", "open", "lang", "dir"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#|data:image\/(?:png|gif|jpeg|webp|avif);)/i,
  RETURN_TRUSTED_TYPE: true,
};

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    const address = node.getAttribute("href") ?? "";
    if (/^data:/i.test(address)) node.removeAttribute("href");
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  } else if (node.tagName === "IMG" && !/^data:image\//i.test(node.getAttribute("src") ?? "")) {
    // Fetching an image could send parts of the conversation to its host, so the address is shown as a link instead.
    const link = node.ownerDocument.createElement("a");
    const address = node.getAttribute("src") ?? "";
    if (/^https?:/i.test(address)) link.setAttribute("href", address);
    link.setAttribute("target", "_blank");
    link.setAttribute("rel", "noopener noreferrer nofollow");
    link.textContent = `Image: ${node.getAttribute("alt") || address || "without an address"}`;
    node.replaceWith(link);
  }
});

/** HTML that is safe to show; a TrustedHTML where the browser has that. */
export function sanitise(html) {
  return purify.sanitize(html, OPTIONS);
}

/** Markdown that grows. ``update(text)`` gives its blocks; a block that is complete keeps its identity, and only the last one is
 *  parsed again. A block is {key, kind: "html", html} or {key, kind: "code", language, text, open}. */
export class MarkdownBlocks {
  #done = [];
  #offset = 0;
  #links = {};
  #text = "";
  #blocks = [];

  update(text) {
    const source = text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text;
    if (source === this.#text) return this.#blocks;
    if (!source.startsWith(this.#text.slice(0, this.#offset))) {
      this.#done = [];
      this.#offset = 0;
      this.#links = {};
    }
    this.#text = source;
    const tail = source.slice(this.#offset);
    const tokens = this.#lex(tail);
    let last = tokens.length - 1;
    while (last > 0 && tokens[last].type === "space") last -= 1;
    for (const token of tokens.slice(0, Math.max(0, last))) {
      this.#offset += token.raw.length;
      this.#push(this.#done, token, false);
    }
    this.#blocks = [...this.#done];
    for (const token of tokens.slice(Math.max(0, last))) this.#push(this.#blocks, token, true);
    return this.#blocks;
  }

  #lex(tail) {
    const tokens = marked.lexer(tail);
    Object.assign(this.#links, tokens.links);
    tokens.links = this.#links;
    return tokens;
  }

  #push(blocks, token, last) {
    if (token.type === "space" || token.type === "def") return;
    const key = blocks.length;
    if (token.type === "code") {
      const fence = /^ {0,3}(`{3,}|~{3,})/.exec(token.raw)?.[1];
      const open = last && fence !== undefined && !new RegExp(`\\n {0,3}${fence[0]}{${fence.length},}[ \\t]*\\n*$`).test(token.raw);
      blocks.push({ key, kind: "code", language: (token.lang ?? "").split(/\s/)[0], text: token.text, open });
    } else {
      const one = [token];
      one.links = this.#links;
      blocks.push({ key, kind: "html", html: sanitise(marked.parser(one)) });
    }
  }
}
